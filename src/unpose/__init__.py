"""Learning that does not depend on pose: how a thing is turned, shifted, scaled or mirrored in its picture.

The names most people need:

=========================== ====================================================================================
``InvariantClustering``     group images at unknown pose; a scikit-learn estimator
``align_stack``             align images of one thing and average them
``nearest``                 the nearest neighbours of every image, up to pose
``warp``                    resample images by poses
``posed``                   make posed copies of images, with the true poses
``read_folder``             read a folder, a stack or a list of files into one array
``load``                    load a labelled data set by name, or from a folder
``gsa_net``                 a network of group self-attention, invariant by construction
``pretrained``              a trained network that comes with the package
``symmetrize``              average any model over the orbit of each image
``canonicalize``            bring each image to its canonical pose before a model sees it
``equivariance_error``      measure how invariant or equivariant a function is
=========================== ====================================================================================

The rooms, each imported as ``unpose.<room>``:

============= ===================================================================================================
``groups``    which transformations: continuous and finite groups; poses as 3x3 matrices
``images``    pixels: sampling, warping, smoothing, canvas, light
``files``     reading and writing images and tables
``align``     search an orbit: the pose that brings one image onto another
``cluster``   group, align and average images; the paper's method is in ``cluster.published``
``nn``        layers and networks that are equivariant to a group
``train``     recipes, the training loop, checkpoints, pretrained networks
``data``      data sets, folders and generators
``adapt``     make a model that one already has invariant: averages, canonicalizers
``audit``     measure how invariant or equivariant any function is, and which module breaks it
``discover``  which transformations images obey, and how far
``dedupe``    duplicates up to pose
``points``    point clouds: equivariant layers and frames
``rigid``     the rigid motion between two point clouds
``contours``  outlines: their distance over rotation, start, mirror and scale; networks
``sphere``    attention on the sphere
``motion``    recurrent networks whose hidden copies move
``reproduce`` the figures, tables and theorems of the papers, each of which can be run
``runs``      the folder of a finished ``unpose cluster`` run, from Python
``report``    results as pages and pictures
``compiled``  numba decorators and threads that the CPU kernels share
============= ===================================================================================================

Names and rooms are imported on first use, because torch takes seconds to import.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

_ROOMS = (
    "adapt", "align", "audit", "cluster", "compiled", "contours", "data", "dedupe", "discover", "files", "groups",
    "images", "motion", "nn", "points", "report", "reproduce", "rigid", "runs", "sphere", "train",
)  # fmt: skip
_NAMES = {
    "InvariantClustering": "cluster",
    "align_stack": "cluster",
    "canonicalize": "adapt",
    "equivariance_error": "audit",
    "gsa_net": "nn",
    "load": "data",
    "nearest": "align",
    "posed": "data",
    "pretrained": "train",
    "read_folder": "data",
    "symmetrize": "adapt",
    "warp": "images",
}

__all__ = [*_NAMES, *_ROOMS]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"unpose.{name}")
    if name in _NAMES:
        return getattr(import_module(f"unpose.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'unpose' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
