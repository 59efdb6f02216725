"""How well new images belong to the clusters of a finished run: a confidence, and whether an image fits at all."""

from copy import copy
from typing import TYPE_CHECKING

from unpose.runs.finished import FinishedRun

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_EXPONENT = 4
"""Of the distances in the membership, 2 / (m - 1) for the fuzzifier m = 1.5."""
_QUANTILE = 0.99
_FEWEST, _MOST = 5, 500
"""Different members of a cluster that are needed to know the range of their distances, and that are used."""


def membership(distances: "ArrayLike") -> "NDArray":
    """Membership of images in their nearest cluster, as in fuzzy c-means.

    ``1 / sum_j (d_min / d_j)^4``, the membership of Bezdek (1981) with the fuzzifier 1.5: 1 on the mean of a cluster,
    1/k if all k means are equally far.

    Parameters
    ----------
    distances : array_like, shape (n, k)
        Distance of each image from each mean; infinite for a constant image.

    Returns
    -------
    ndarray, shape (n,)
        Between 0 and 1; 0 for a constant image.

    Examples
    --------
    >>> membership([[0.5, 0.5], [0.25, 0.5], [0.0, 0.5]]).round(2).tolist()
    [0.5, 0.94, 1.0]
    """
    import numpy as np

    distances = np.asarray(distances, dtype=np.float64)
    nearest = distances.min(1, keepdims=True)
    is_known = np.isfinite(nearest)
    # A distance of zero counts as 1, whether it is the nearest or another one that is zero, too.
    ratios = np.divide(nearest, distances, out=np.ones_like(distances), where=is_known & (distances > 0))
    return np.where(is_known[:, 0], 1 / (ratios**_EXPONENT).sum(1), 0.0)


def fits_cluster(run: FinishedRun, images: "NDArray", labels: "NDArray", poses: "NDArray") -> list[bool | None]:
    """Whether images are as similar to the mean of their cluster as its own members are.

    An aligned image fits if its distance from the mean is at most the 99 % quantile of the distances of the members,
    each measured from the mean of the other members. All are compared as the thumbnails that the run keeps: by
    correlation, sqrt(2 - 2 r), or by the difference of pixels if the run did not ignore light.

    Parameters
    ----------
    run : FinishedRun
    images : ndarray, shape (n, h, w) or (n, h, w, 3)
        New images on the canvas of the run.
    labels : ndarray of int, shape (n,)
        Cluster of each image; -1 for a constant image, which fits none.
    poses : ndarray, shape (n, 3, 3)
        The pose that brings each image onto the mean of its cluster.

    Returns
    -------
    list of bool or None
        None for clusters of fewer than five different images, whose range is not known.

    Examples
    --------
    After ``distances, poses = run.model.place(images)`` and ``labels = distances.argmin(1)``,
    ``fits_cluster(run, images, labels, poses[range(len(labels)), labels])`` says which images are of a known kind.

    >>> callable(fits_cluster)
    True
    """
    import numpy as np

    from unpose.report import thumbnail

    side = max(run.pictures["images"].shape[1:3])
    fits: list[bool | None] = [False] * len(images)
    is_counted = run.model.copies_ == np.arange(len(run.labels))
    for label in np.unique(labels[labels >= 0]):
        rows, members = np.flatnonzero(labels == label), np.flatnonzero((run.labels == label) & is_counted)
        if len(members) < _FEWEST:
            answers: list[bool | None] = [None] * len(rows)
        else:
            members = members[np.linspace(0, len(members) - 1, min(len(members), _MOST)).astype(np.int64)]
            known = _aligned(run, run.pictures["images"][members], run.poses[members])  # (m, pixels)
            small = np.stack([np.asarray(thumbnail(images[row], run.display_range, side)) for row in rows])
            new = _aligned(run, small if run.colour == "rgb" else small[..., 0], poses[rows])
            mean = known.mean(0)
            others = (len(members) * mean - known) / (len(members) - 1)
            limit = np.quantile(_distances(run, known, others), _QUANTILE)
            answers = (_distances(run, new, mean) <= limit).tolist()
        for row, answer in zip(rows, answers, strict=True):
            fits[row] = answer
    return fits


def _aligned(run: FinishedRun, thumbnails: "NDArray", poses: "NDArray") -> "NDArray":
    """Thumbnails (m, h, w[, 3]) at the size of the canvas, without effects of light, aligned by poses: (m, pixels)."""
    import numpy as np
    from PIL import Image

    size = run.shape[::-1]
    images = np.stack([np.asarray(Image.fromarray(each).resize(size, Image.Resampling.BICUBIC)) for each in thumbnails])
    model = copy(run.model)  # with these images in place of the fitted ones
    model.labels_, model.poses_ = np.zeros(len(images), np.int64), poses
    return model.aligned(images, 0).reshape(len(images), -1).astype(np.float64)


def _distances(run: FinishedRun, images: "NDArray", means: "NDArray") -> "NDArray":
    """Distance of each image (m, pixels) from its mean, (m, pixels) or (pixels,)."""
    import numpy as np

    if run.model.light == "keep":
        return np.sqrt(((images - means) ** 2).mean(-1))
    norms = np.linalg.norm(images, axis=-1) * np.linalg.norm(means, axis=-1)
    return np.sqrt(np.maximum(0, 2 - 2 * (images * means).sum(-1) / np.maximum(norms, 1e-30)))
