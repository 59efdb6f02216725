"""Compiled kernels of Keys sampling, one file per device type: ``keys_cpu.py`` (numba) and ``keys_cuda.py`` (Triton).

Each has one function ``sample(images, points, gradient=...)``; :mod:`unpose.images.sampling` chooses between them.
"""
