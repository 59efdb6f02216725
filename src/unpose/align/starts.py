"""Alignment from known starting poses: refinement and measurement without the search of the grid."""

from dataclasses import replace
from typing import Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unpose.align.pipeline import Job, refine_and_measure
from unpose.align.search import Search, SearchSettings

_DEFAULT = Search()


def align_from(
    images: ArrayLike | Tensor,
    references: ArrayLike | Tensor,
    poses: ArrayLike | Tensor,
    *,
    search: Search = _DEFAULT,
    **settings: Unpack[SearchSettings],
) -> tuple[NDArray, NDArray]:
    """Refine given poses that bring image i roughly onto reference i, and measure the distances there.

    For callers that know a rough pose already, for example from signatures; :func:`unpose.align.align` searches the
    whole group.

    Parameters
    ----------
    images : array of shape (n, h, w) or (n, h, w, c)
        Images to bring onto the references.
    references : array of shape (n, h, w) or (n, h, w, c)
        References, one for each image.
    poses : array of shape (n, 3, 3)
        Starting poses; image i is brought roughly onto reference i. They may include a mirror whatever the group is.
    search : Search, default Search()
        Poses, comparison of images and resources.
    **settings : optional
        Single settings, which replace those of ``search``; :class:`unpose.align.Search` describes them.

    Returns
    -------
    poses : array of shape (n, 3, 3)
        Refined poses; a start is kept where refinement does not lower the distance.
    distances : array of shape (n,)
        Distances at these poses.

    Examples
    --------
    >>> bar = np.zeros((1, 16, 16), np.float32)
    >>> bar[:, 3:13, 7:9] = 1
    >>> moved = np.roll(bar, 1, axis=2)
    >>> poses, distances = align_from(bar, moved, np.eye(3)[None])
    >>> round(float(poses[0, 0, 2]), 2), bool(distances[0] < 0.1)  # one pixel to the right
    (1.0, True)
    """
    job = Job(references, images, replace(search, **settings))
    starts = torch.as_tensor(np.asarray(poses, dtype=np.float64))
    if not len(job.fixed) == len(job.moving) == len(starts) or starts.shape[1:] != (3, 3):
        raise ValueError(
            f"images, references and poses (n, 3, 3) must pair up, got {len(job.moving)} images, {len(job.fixed)} "
            f"references and poses of shape {tuple(starts.shape)}"
        )
    rows = torch.arange(len(starts))
    found, distances, _ = refine_and_measure(job, rows, rows, starts)
    return found.numpy(), distances.numpy()
