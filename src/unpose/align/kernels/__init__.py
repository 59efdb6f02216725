"""Backends of the search: which code scores poses and compares pixels on which device.

A backend is one module that offers four names, with the same arguments and results in every backend:

``best_poses``    the best pose of every pair of images on the grid of poses
``best_poses_of_candidates``  the same for each image and its candidates
``peaks``         the best few poses of given pairs of images
``ImagePairs``    refinement, moments and lost energy of pairs of images at one size

``reference.py`` runs on every device with plain torch operations, and is what the tests compare the other backends
with. ``cpu.py`` uses kernels compiled by numba (``search_cpu.py``, ``peaks_cpu.py``, ``pixels_cpu.py``,
``gauss_newton_cpu.py``), ``cuda.py`` a Triton kernel (``search_cuda.py``). To add a backend, write its module here and
add one line to the table below.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

__all__ = ["BACKENDS", "backend_for"]

BACKENDS = {
    "cpu": "cpu",
    "cuda": "cuda" if find_spec("triton") is not None else "reference",  # there are systems without Triton
}
"""Device type -> module in this folder; every other device runs the reference."""


def backend_for(device: torch.device) -> Any:
    """Return the backend module for a device. It is imported on first use: numba and Triton are slow to import."""
    return import_module(f"unpose.align.kernels.{BACKENDS.get(device.type, 'reference')}")
