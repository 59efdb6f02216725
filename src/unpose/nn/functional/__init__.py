"""Functions behind the layers, without parameters: attention, relative positions, and argument checks."""
