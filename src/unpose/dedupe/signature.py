"""Signatures: short vectors that hardly change when a picture is turned, mirrored, brightened or slightly cropped.

The disc of a picture is equalised and projected onto the Fourier-Bessel functions of :mod:`unpose.align.basis`, about
fifty of the lowest. A turn by ``phi`` multiplies the coefficients of frequency k by ``exp(-i k phi)``, a mirror
conjugates them. Products in which the phases cancel, ``Re(a_k conj(b_k))`` and ``Re(a_k b_l conj(c_(k+l)))``, are
therefore the same for all turns and mirror images. A fixed linear map, fitted to altered copies of photographs
(``benchmarks/dedupe_fit.py``), turns them into vectors whose Euclidean distance is small for copies.

A crop moves the centre and changes the scale, so a picture has a vector for each of several *views*, smaller discs
inside its disc: for crops of 10 % at nine places, for turned pictures cut to an upright rectangle, and, in a second set
of vectors, for the parts of a picture that a stamp leaves free. The copy is compared by few of its views with all views
of the original.
"""

import io
import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import scipy.special
import torch
from numpy.typing import NDArray

from unpose.align.basis import SteerableBasis, analysis_matrix, bessel_counts
from unpose.dedupe.kernels import halved_ranks
from unpose.files import read_file
from unpose.groups import scaling, translation

PATCH = 64
"""Side of the patches, the discs of pictures, that pixels are first compared at."""
_SIDE = 32
"""Side of the patches that signatures are computed from."""
_RADIUS = _SIDE / 2


@dataclass(frozen=True)
class View:
    """A disc inside the disc of a picture: its scale and centre in units of the radius."""

    scale: float
    x: float = 0.0
    y: float = 0.0

    @property
    def pose(self) -> NDArray:
        """Maps patch coordinates, in units of the radius, to the coordinates of the view: (3, 3)."""
        moved = translation(torch.tensor([-self.x, -self.y], dtype=torch.float64))
        return (scaling(torch.tensor(1 / self.scale, dtype=torch.float64)) @ moved).numpy()


@dataclass(frozen=True)
class Layer:
    """A set of views and the functions that they are projected onto."""

    name: str
    views: tuple[View, ...]
    queries: tuple[int, ...]  # the views by which a picture looks for its originals
    limit: float  # largest zero of the Bessel functions, in radians per radius
    size: int  # entries of a vector


def _ring(count: int, distance: float, scale: float) -> tuple[View, ...]:
    angles = [2 * math.pi * step / count for step in range(count)]
    return tuple(View(scale, distance * math.cos(angle), distance * math.sin(angle)) for angle in angles)


_CROPS = tuple(View(0.9, 0.08 * x, 0.08 * y) for x in (-1, 0, 1) for y in (-1, 0, 1))
WHOLE = Layer("whole", (View(1.0), *_CROPS, *map(View, (0.82, 0.75, 0.68, 0.62, 0.56))), (0,), 18.0, 48)
PARTS = Layer("parts", (View(0.6), *_ring(8, 0.4, 0.6)), (0, 1, 3, 5, 7), 14.0, 32)
LAYERS = (WHOLE, PARTS)


def signatures(patches: NDArray) -> dict[str, NDArray]:
    """Compute the signatures of pictures.

    Parameters
    ----------
    patches : uint8 array of shape (n, 64, 64)
        The disc of each picture, as :func:`unpose.dedupe.extract_patch` cuts it.

    Returns
    -------
    dict of str to float16 arrays of shape (n, views, size)
        The vectors of each layer.

    Examples
    --------
    >>> patches = np.random.default_rng(0).integers(0, 256, (2, 64, 64), np.uint8)
    >>> turned = np.rot90(patches, axes=(1, 2))
    >>> one, two = signatures(patches)["whole"], signatures(turned)["whole"]
    >>> one.shape, bool(np.abs(one[:, 0] - two[:, 0]).max() < 0.1 * np.abs(one[0, 0] - one[1, 0]).max())
    ((2, 15, 48), True)
    """
    found, small = {}, ranks(patches)
    for layer in LAYERS:
        if len(patches) == 0:
            found[layer.name] = np.zeros((0, len(layer.views), layer.size), np.float16)
            continue
        vectors = invariants(projected(small, layer), layer) @ fitted()[layer.name]
        found[layer.name] = np.clip(vectors, -60000, 60000).astype(np.float16)
    return found


def projected(small: NDArray, layer: Layer, view: int | None = None) -> NDArray:
    """Project the :func:`ranks` of patches (n, 32, 32) as seen in each view, with unit norm: (n, views, C) complex64.

    With ``view``, only in that one: (n, 1, C). Several layers and views share the ranks.
    """
    n, matrix, constant = len(small), _analysis(layer), _constant(layer)  # (pixels, views, 2 C + 1), (views, 2 C)
    if view is not None:
        matrix, constant = matrix[:, view : view + 1], constant[view : view + 1]
    found = small.reshape(n, -1) @ matrix.reshape(len(matrix), -1)
    found = found.reshape(n, len(constant), -1)  # the last entry of each view is its mean
    values = found[..., :-1] - found[..., -1:] * constant
    norm = np.sqrt(np.einsum("nvc,nvc->nv", values, values))[..., None]
    values /= np.maximum(norm, 1e-6)
    return np.ascontiguousarray(values, dtype=np.float32).view(np.complex64)


def ranks(patches: NDArray) -> NDArray:
    """Replace the pixels of patches (n, 64, 64) by their ranks inside the disc, and halve: (n, 32, 32) float32.

    Ranks bound what a bright stamp adds, and any increasing change of brightness keeps them.
    """
    small = np.zeros((len(patches), _SIDE, _SIDE), np.float32)
    halved_ranks(np.ascontiguousarray(patches), disc(PATCH), small)
    return small


def invariants(coefficients: NDArray, layer: Layer) -> NDArray:
    """Combine coefficients (..., C) to numbers that turns and mirrors leave alone: (..., D) float32.

    The square root (for products of three, the cube root) brings all of them to the scale of a coefficient.
    """
    starts = basis_of(layer).starts
    blocks = [coefficients[..., starts[k] : starts[k + 1]] for k in range(len(starts) - 1)]
    parts = [blocks[0].real]
    for block in blocks[1:]:
        first, second = np.triu_indices(block.shape[-1])
        products = (block[..., first] * block[..., second].conj()).real
        parts.append(np.sign(products) * np.sqrt(np.abs(products)))
    for k in range(1, 6):
        for m in range(k, min(6, len(blocks) - k, 9 - k)):
            count = min(2, blocks[k].shape[-1], blocks[m].shape[-1], blocks[k + m].shape[-1])
            products = (blocks[k][..., :count] * blocks[m][..., :count] * blocks[k + m][..., :count].conj()).real
            parts.append(np.cbrt(products))
    return np.concatenate(parts, axis=-1).astype(np.float32)


@cache
def basis_of(layer: Layer) -> SteerableBasis:
    """The Fourier-Bessel functions below the limit of a layer, on a disc of the signature's size."""
    kept = []
    for k, available in enumerate(bessel_counts(_RADIUS)):
        count = int((scipy.special.jn_zeros(k, available) <= layer.limit).sum())
        if count == 0:
            break
        kept.append(np.eye(available)[:, :count])
    return SteerableBasis(_RADIUS, tuple(kept), (_SIDE, _SIDE), 1)


@cache
def _analysis(layer: Layer) -> NDArray:
    """Matrix that projects patches onto the functions in each view, and takes the mean: (pixels, views, 2 C + 1)."""
    parts = []
    for view in layer.views:
        pose = torch.from_numpy(view.pose)
        pose[:2, 2] *= _RADIUS
        functions = analysis_matrix(basis_of(layer), pose[None]).numpy()  # (pixels, 2 C)
        inside = _inside(view).ravel()
        parts.append(np.concatenate([functions * inside[:, None], inside[:, None] / inside.sum()], axis=1))
    return np.stack(parts, axis=1).astype(np.float32)


@cache
def _constant(layer: Layer) -> NDArray:
    """The coefficients of a constant in each view, which are subtracted times the mean: (views, 2 C)."""
    total: NDArray = _analysis(layer)[..., :-1].sum(0)
    return total


def _inside(view: View) -> NDArray:
    """The pixels of a patch that lie in the disc of a view, (32, 32) float32."""
    y, x = (np.indices((_SIDE, _SIDE)) - (_SIDE - 1) / 2) / _RADIUS
    return (np.hypot(x - view.x, y - view.y) <= view.scale).astype(np.float32)


@cache
def disc(side: int) -> NDArray:
    """The pixels of a square patch inside its disc, (side, side) bool."""
    y, x = np.indices((side, side)) - (side - 1) / 2
    return np.hypot(x, y) <= side / 2


@cache
def fitted() -> dict[str, NDArray]:
    """The fitted numbers: the linear maps of both layers, (D, size) each, and the weights of the probability, (6,)."""
    content = read_file(Path(__file__).with_name("fitted.npz"), max_bytes=2**20)
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        return {name: stored[name].astype(np.float32) for name in stored.files}
