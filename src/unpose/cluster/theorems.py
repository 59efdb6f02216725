"""The quantities of theorems 3.1 and 4.1: the largest orbit distance, the contraction, and the reach of orbits.

The theorems compare the largest distance R between the orbits of one class with ``rho_min``, the least reach of the
orbits of all convex combinations of its images. The reach of a manifold is the largest distance up to which every point
has one nearest point on it. It is small where the manifold curves sharply, or comes near itself: the orbit of an image
that is nearly symmetric does the latter.
"""

import math

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unpose.groups import Group, parse_continuous, rotation
from unpose.images import as_batch, pixel_grid, sample_with_gradient, warp

__all__ = ["combination_reach", "contraction", "contraction_bound", "orbit_reach", "radius"]


def radius(distances: ArrayLike, classes: ArrayLike | None = None) -> float:
    """R of theorem 4.1: the largest orbit distance between two images of one class.

    Parameters
    ----------
    distances : (n, n) array
        Orbit distances.
    classes : (n,) array of int, optional
        Class of each image; by default all are of one class.

    Returns
    -------
    float

    Examples
    --------
    >>> radius([[0.0, 1.0, 9.0], [1.0, 0.0, 8.0], [9.0, 8.0, 0.0]], classes=[0, 0, 1])
    1.0
    """
    return float(np.where(_same_class(classes, np.shape(distances)), distances, 0.0).max())


def contraction(before: ArrayLike, after: ArrayLike, classes: ArrayLike | None = None, *, floor: float = 0.0) -> float:
    """The largest ratio ``d(S_j+, S_k+) / d(S_j, S_k)`` of one round: 1 - epsilon of (4.1).

    The theorem is about one class. Over pairs of different classes the ratio says nothing about it.

    Parameters
    ----------
    before, after : (n, n) array
        Orbit distances before and after the round.
    classes : (n,) array of int, optional
        Class of each image; by default all are of one class. Pairs of different classes are left out.
    floor : float, default 0.0
        Leave out pairs that are not farther apart than this before the round: differences that resampling makes.

    Returns
    -------
    float
        NaN if no pair is left.

    Examples
    --------
    >>> contraction([[0.0, 2.0], [2.0, 0.0]], [[0.0, 0.5], [0.5, 0.0]])
    0.25
    """
    before, after = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    counts = _same_class(classes, before.shape) & (before > max(floor, 1e-9 * before.max()))
    return float((after[counts] / before[counts]).max()) if counts.any() else math.nan


def contraction_bound(beta: float, radius: float) -> float:
    """The factor ``beta R^2 / 2`` by which a round contracts one class at least, in the limit of flat orbits.

    The paper gives no constants. For kernel attention with the RBF kernel they follow from one line: the mean of the
    points under the weights ``exp(-beta |x - v_i|^2)`` has the derivative ``2 beta C`` with respect to x, where C is
    the weighted covariance of the points, and no direction of a set of diameter R has a variance above ``R^2 / 4``. A
    round contracts if the factor is below one: ``beta < 2 / R^2``, which is (4.1) with c' = 2 and
    ``epsilon = 1 - beta R^2 / 2``. Orbits that are close compared with their reach behave like points of a flat space.

    Parameters
    ----------
    beta : float
        Of the kernel ``exp(-beta d^2)``.
    radius : float
        Largest distance R within the class.

    Returns
    -------
    float

    Examples
    --------
    >>> contraction_bound(beta=0.5, radius=1.0)
    0.25
    """
    return beta * radius**2 / 2


def orbit_reach(image: ArrayLike | Tensor, group: str | Group = "se2", *, n_angles: int = 72) -> float:
    """Estimate the reach of the orbit of an image.

    Federer's formula: the least ``|b - a|^2 / (2 dist(b - a, T_a))`` over pairs of points a, b of the manifold, where
    T_a is its tangent space at a. Poses are isometries that move the orbit along itself, so a is the image as given and
    b runs over its copies at all whole-pixel shifts and ``n_angles`` angles.

    Parameters
    ----------
    image : (h, w) or (h, w, c) array
        An image that is smooth on the scale of a pixel: where resampling changes it, the estimate is too small.
    group : {"se2", "so2", "translation"} or Group, default "se2"
        Group of isometries without mirrors. Its dimension is that of the orbit: three for SE(2).
    n_angles : int, default 72
        Number of angles of the full circle, if the group rotates.

    Returns
    -------
    float
        In the units of the image's norm. For a Gaussian under translations it is ``|image| / sqrt(3)``; it is never
        more than ``|image| / sqrt(2)`` if copies can be shifted off the original.

    Notes
    -----
    All shifts of one angle are one correlation by FFT, so the cost is ``n_angles`` times a few transforms.

    Examples
    --------
    >>> blob = np.exp(-((np.indices((31, 31)) - 15.0) ** 2).sum(0) / (2 * 2.5**2))
    >>> round(orbit_reach(blob, "translation") / float(np.linalg.norm(blob)), 2)
    0.58
    """
    lie = parse_continuous(group)
    if not lie.is_isometric or lie.mirrored:
        raise ValueError(f"group must be one of isometries without mirrors: se2, so2 or translation, got {lie}")
    moves = lie.generators[:, :2].abs().amax(0) > 0  # (2, 3): which entries of (A, b) change
    shifts, rotates = bool(moves[:, 2].any()), bool(moves[:, :2].any())
    pixels = as_batch(np.asarray(image)[None], dtype=torch.float64)[0]  # (c, h, w)
    # Room for every rotation, and for every shift up to the copy beside the original.
    side = 2 * math.ceil(math.hypot(*pixels.shape[-2:])) + 1
    canvas = warp(pixels[None], torch.eye(3, dtype=torch.float64)[None], (side, side))[0]
    basis = _tangent_basis(canvas, lie.generators[:, :2].to(canvas))  # (k, c, side, side)
    probes = torch.cat([canvas[None], basis])
    spectra = torch.fft.rfft2(probes).conj()
    angles = torch.arange(n_angles if rotates else 1, dtype=torch.float64) * (2 * math.pi / n_angles)
    own = torch.einsum("pchw,chw->p", probes, canvas)  # with the image as given: its energy, then nearly zeros
    least = math.inf
    for angle in angles:
        copy = warp(canvas[None], rotation(angle)[None])[0]
        if shifts:
            products = torch.fft.irfft2((torch.fft.rfft2(copy) * spectra).sum(1), s=(side, side))  # (p, side, side)
        else:
            products = torch.einsum("pchw,chw->p", probes, copy)[:, None, None]
        squared = copy.square().sum() + own[0] - 2 * products[0]  # |b - a|^2
        normal = squared - (products[1:] - own[1:, None, None]).square().sum(0)  # its square without the tangent part
        moved = squared > 1e-9 * own[0]  # not the image itself
        if moved.any():
            ratio = squared[moved] / (2 * normal[moved].clamp(min=1e-12 * own[0].item()).sqrt())
            least = min(least, float(ratio.min()))
    return least


def combination_reach(
    aligned: ArrayLike, group: str | Group = "se2", *, count: int = 8, random_state: int = 0
) -> float:
    """Estimate ``rho_min``: the least reach of the orbits of convex combinations of aligned images.

    Parameters
    ----------
    aligned : (n, h, w) or (n, h, w, c) array
        Images of one class, aligned with each other.
    group : {"se2", "so2", "translation"} or Group, default "se2"
        Group of isometries.
    count : int, default 8
        Number of random combinations; the images themselves and their mean are always among them.
    random_state : int, default 0
        Seed of the random weights.

    Returns
    -------
    float
        An upper estimate: the least reach over a sample.

    Notes
    -----
    The definition (B.9) is in an appendix that we do not have. Over images at *all* poses the infimum would be zero for
    any two images: half of one plus half of its copy after half a turn is symmetric, and with weights next to one half
    it is nearly symmetric, with a reach next to zero. So the combinations here are of images at the poses at which they
    are aligned, as in the mean (2.5).

    Examples
    --------
    >>> blob = np.exp(-((np.indices((31, 31)) - 15.0) ** 2).sum(0) / (2 * 2.5**2))
    >>> combined = combination_reach(np.stack([blob, 2 * blob]), "translation", count=2)
    >>> round(combined / float(np.linalg.norm(blob)), 2)  # the least combination is the smaller blob itself
    0.58
    """
    images = np.asarray(aligned, dtype=np.float64)
    n = len(images)
    weights = np.concatenate(
        [np.eye(n), np.full((1, n), 1 / n), np.random.default_rng(random_state).dirichlet(np.ones(n), count)]
    )
    return min(orbit_reach(image, group) for image in np.tensordot(weights, images, axes=1))


def _same_class(classes: ArrayLike | None, shape: tuple[int, ...]) -> NDArray:
    """Pairs of different images of one class, (n, n) bool."""
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(f"distances must be a square matrix, got shape {shape}")
    names = np.zeros(shape[0]) if classes is None else np.asarray(classes)
    if names.shape != shape[:1]:
        raise ValueError(f"classes must be one for each of {shape[0]} images, got shape {names.shape}")
    return (names[:, None] == names) & ~np.eye(shape[0], dtype=bool)


def _tangent_basis(image: Tensor, generators: Tensor) -> Tensor:
    """An orthonormal basis of the derivatives of an image (c, h, w) along the group's generators: (k, c, h, w)."""
    grid = pixel_grid((image.shape[-2], image.shape[-1]), image.dtype)
    _, slopes = sample_with_gradient(image[None], grid[None])  # (1, c, h, w, 2)
    places = torch.cat([grid, torch.ones_like(grid[..., :1])], dim=-1)
    velocity = torch.einsum("kij,hwj->khwi", generators, places)
    along = torch.einsum("chwi,khwi->kchw", slopes[0], velocity).flatten(1)
    _, sizes, right = torch.linalg.svd(along, full_matrices=False)
    kept = sizes > 1e-6 * image.norm()  # a direction along which nothing changes is no tangent
    return right[kept].unflatten(1, image.shape)
