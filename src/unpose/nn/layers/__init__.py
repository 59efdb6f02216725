"""Layers as torch modules: attention, convolution, norm and pooling, position encodings, invariant attention."""
