"""Compiled kernels of Keys sampling, one file per device type: ``keys_cpu.py`` (numba) and ``keys_cuda.py`` (Triton).

Each has one function ``sample(images, points, gradient=...)``; :mod:`unpose.images.sampling` chooses between them.
"""

from importlib.util import find_spec

__all__ = ["KERNELS"]

KERNELS = {"cpu": "keys_cpu"} | ({"cuda": "keys_cuda"} if find_spec("triton") else {})
"""Device type -> module in this folder. Some builds of torch for CUDA come without Triton."""
