"""Compiled CPU kernels of group attention; start with :mod:`unpose.nn.ops.cpu.attention`, which lists the files."""
