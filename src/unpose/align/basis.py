"""A small steerable basis: turning an image about its centre multiplies its coefficients by phases.

Images are projected onto Fourier-Bessel functions ``J_k(l r / R) exp(i k theta)`` on a disc and compressed, frequency
by frequency, to the combinations with most of the energy of the given images (steerable principal components). The
functions are known between the pixels, so the coefficients of a shifted, scaled or mirrored image are computed by
moving the functions instead of resampling the image.
"""

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
import scipy.special
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.groups import area_change, reflection, scaling, transform, translation
from unpose.images import pixel_grid

__all__ = ["SteerableBasis", "analysis_matrix", "bessel_counts", "fit_basis", "project"]

_BAND_LIMIT = 0.62
"""Largest radial frequency, as a fraction of Nyquist; higher ones describe single pixels rather than shapes."""
_RADII_PER_PIXEL = 24
"""Resolution of the table of radial functions."""
_MAX_KEPT_PIXELS = 1024
"""The matrix of all functions is kept for the next search if images are no larger than this; it then takes 17 MB."""
_N_TRAINING = 512
"""Images that the compression is fitted to."""
_TILE = 64
"""Images projected at once. It is fixed, because the rounding of a matrix product depends on its shape."""


@dataclass(frozen=True)
class SteerableBasis:
    """Functions ``sum_q mixing_k[q] J_k(l_kq r / R) exp(i k theta)`` for images of one shape."""

    radius: float
    mixing: tuple[NDArray, ...]  # (count_k, kept_k) combinations kept, one array for each frequency k
    shape: tuple[int, int]
    channels: int

    @property
    def starts(self) -> NDArray:
        """Index of the first coefficient of each frequency, (K + 1,); within a frequency, channel after channel."""
        kept = [mix.shape[1] * self.channels for mix in self.mixing]
        return np.concatenate([[0], np.cumsum(kept)]).astype(np.int64)

    @property
    def n_frequencies(self) -> int:
        """Number of angular frequencies K, from 0."""
        return len(self.mixing)


def fit_basis(images: Tensor, views: Tensor, size: int) -> SteerableBasis:
    """Fit a basis of about ``size`` complex functions to images (n, c, h, w) as seen in views (V, 3, 3)."""
    height, width = images.shape[-2:]
    radius = float(np.hypot(height, width)) / 2
    available = bessel_counts(radius)
    full = _uncompressed(radius, (height, width), images.shape[1])
    chosen = torch.linspace(0, len(images) - 1, min(len(images), _N_TRAINING)).round().long()
    some_views = views[torch.linspace(0, len(views) - 1, min(len(views), 9)).round().long()]
    analyse = _uncompressed_analysis if height * width <= _MAX_KEPT_PIXELS else _uncompressed_analysis.__wrapped__
    analysis = analyse(radius, (height, width), tuple(some_views.flatten().tolist()))
    coefficients = project_with(full, images[chosen], analysis.to(images.device)).flatten(0, 1)  # (m, C)
    candidates = []  # energy, frequency, direction
    vectors = []
    starts = full.starts
    for k, count in enumerate(available):
        block = coefficients[:, starts[k] : starts[k + 1]].reshape(-1, count).to(torch.complex128)
        covariance = (block.mH @ block).real.cpu().numpy()
        energies, directions = np.linalg.eigh(covariance)
        vectors.append(directions[:, ::-1])
        candidates += [(energy, k, q) for q, energy in enumerate(energies[::-1])]
    candidates.sort(key=lambda item: -item[0])
    kept = candidates[: max(1, size // images.shape[1])]
    counts = np.bincount([k for _, k, _ in kept], minlength=len(available))
    last = int(np.flatnonzero(counts).max()) + 1
    # Every frequency below the last keeps at least one function, so that no block of coefficients is empty.
    mixing = tuple(vectors[k][:, : max(1, counts[k])] for k in range(last))
    return SteerableBasis(radius, mixing, (height, width), images.shape[1])


def _uncompressed(radius: float, shape: tuple[int, int], channels: int = 1) -> SteerableBasis:
    """All functions below the band limit."""
    return SteerableBasis(radius, tuple(np.eye(count) for count in bessel_counts(radius)), shape, channels)


@lru_cache(maxsize=1)
def _uncompressed_analysis(radius: float, shape: tuple[int, int], views: tuple[float, ...]) -> Tensor:
    """The matrix of all functions in views, given as their entries; consecutive searches on one grid share it."""
    return analysis_matrix(_uncompressed(radius, shape), torch.tensor(views, dtype=torch.float64).reshape(-1, 3, 3))


def project(basis: SteerableBasis, images: Tensor, views: Tensor) -> Tensor:
    """Compute the coefficients of images in each view: (n, c, h, w), (V, 3, 3) -> (n, V, C) complex.

    Turning the view by ``phi`` (counter-clockwise) multiplies block k by ``exp(-i k phi)``; the real part of the inner
    product of two coefficient vectors is the inner product of the two images.
    """
    return project_with(basis, images, analysis_matrix(basis, views).to(images.device))


def project_with(basis: SteerableBasis, images: Tensor, analysis: Tensor) -> Tensor:
    """:func:`project` with a matrix from :func:`analysis_matrix`."""
    n, channels = images.shape[:2]
    flat = images.reshape(n * channels, -1).to(analysis.dtype)
    tile = _TILE * channels
    parts = []
    for start in range(0, len(flat), tile):
        part = flat[start : start + tile]
        padded = torch.nn.functional.pad(part, (0, 0, 0, tile - len(part)))
        parts.append((padded @ analysis)[: len(part)])
    single = torch.view_as_complex(
        torch.cat(parts).reshape(n, channels, -1, sum(m.shape[1] for m in basis.mixing), 2)
    )  # (n, c, V, C1)
    if channels == 1:
        return single[:, 0]
    kept = [mix.shape[1] for mix in basis.mixing]
    blocks = single.split(kept, dim=-1)  # per frequency (n, c, V, kept_k)
    return torch.cat([block.permute(0, 2, 1, 3).flatten(2) for block in blocks], dim=-1)


def analysis_matrix(basis: SteerableBasis, views: Tensor) -> Tensor:
    """Sample the functions, moved to each view, at the pixels: (h * w, V * C1 * 2) float32, real before imaginary.

    C1 is the number of coefficients of one channel.
    """
    grid = pixel_grid(basis.shape, torch.float64).flatten(0, 1)  # (p, 2)
    table = _radial_table(basis)
    views = views.double().cpu()
    # <I o view, psi> = integral of I(q) psi(view q) |area|: the function is moved, not the image.
    are_shifts = torch.equal(views[:, :, :2], torch.eye(3, dtype=views.dtype)[:, :2].expand(len(views), -1, -1))
    found = _functions_on_lattice(basis, table, (grid[:, None] + views[:, :2, 2]).numpy()) if are_shifts else None
    if found is None:
        found = np.empty((len(grid), len(views), table.shape[1]), np.complex64)  # (p, V, C1)
        for number, view in enumerate(views):
            place = transform(view, grid).numpy()
            found[:, number] = _functions(basis, table, place) * np.float32(area_change(view).abs())
    return torch.view_as_real(torch.from_numpy(found)).flatten(1)


def _functions_on_lattice(basis: SteerableBasis, table: NDArray, points: NDArray) -> NDArray | None:
    """Evaluate the functions at points (p, V, 2), once for each point that views share: (p, V, C1) complex64.

    Shifts are multiples of half a pixel, so the shifted pixels of all views lie on one lattice, which has far fewer
    points. None if they do not.
    """
    places = np.rint(2 * points).astype(np.int64)
    lowest = places.min((0, 1))
    width, height = places.max((0, 1)) - lowest + 1
    if width * height > places.shape[0] * places.shape[1] or not np.array_equal(2 * points, places):
        return None
    y, x = np.divmod(np.arange(height * width), width)
    lattice = _functions(basis, table, (np.stack([x, y], axis=-1) + lowest) / 2)
    return lattice[(places[..., 1] - lowest[1]) * width + places[..., 0] - lowest[0]]


def _functions(basis: SteerableBasis, table: NDArray, points: NDArray) -> NDArray:
    """Evaluate the conjugate basis functions at points (p, 2): (p, C1) complex64, orthonormal on the disc."""
    radius = np.hypot(points[:, 0], points[:, 1])
    place = np.minimum(radius * _RADII_PER_PIXEL, len(table) - 2)  # the last two rows of the table are zero
    below = place.astype(np.int64)
    radial = table[below] + (place - below).astype(np.float32)[:, None] * (table[below + 1] - table[below])
    # Powers of exp(-i angle), with angles counter-clockwise on screen, are much cheaper than exponentials.
    turn = np.where(radius > 0, (points[:, 0] + 1j * points[:, 1]) / np.where(radius > 0, radius, 1.0), 1.0)
    powers = np.repeat(turn[:, None], basis.n_frequencies, axis=1)
    powers[:, 0] = 1.0
    phases = np.cumprod(powers, axis=1).astype(np.complex64)
    return radial * phases[:, np.repeat(np.arange(basis.n_frequencies), [mix.shape[1] for mix in basis.mixing])]


def _radial_table(basis: SteerableBasis) -> NDArray:
    """The radial functions on a fine grid of radii, zero outside the disc: (radii, C1) float32."""
    tables = _bessel_table(basis.radius)
    return np.concatenate([t @ mix for t, mix in zip(tables, basis.mixing, strict=False)], axis=1).astype(np.float32)


def bessel_counts(radius: float) -> list[int]:
    """Number of Bessel functions below the band limit on a disc of this radius in pixels, for each frequency."""
    return [table.shape[1] for table in _bessel_table(radius)]


@cache
def _bessel_table(radius: float) -> tuple[NDArray, ...]:
    """For each frequency, the Bessel functions up to the band limit, of unit norm on the disc: (radii, count_k).

    They are slow to evaluate, so they are tabulated once for each radius and interpolated linearly.
    """
    r = np.arange(int(radius * _RADII_PER_PIXEL) + 3) / _RADII_PER_PIXEL
    tables: list[NDArray] = []
    while True:
        k, limit = len(tables), _BAND_LIMIT * np.pi * radius
        zeros = scipy.special.jn_zeros(k, max(1, int(limit / np.pi) + 2))
        zeros = zeros[zeros <= limit]
        if not len(zeros):
            return tuple(tables) if tables else (np.ones((len(r), 1)),)
        radial = scipy.special.jv(k, np.outer(r / radius, zeros)) * (r < radius)[:, None]
        # A real image has the same energy at k and at -k, so k > 0 counts twice.
        norm = np.sqrt(np.pi) * radius * np.abs(scipy.special.jv(k + 1, zeros)) / np.sqrt(1 if k == 0 else 2)
        tables.append(radial / norm)


def view_grid(shifts: Tensor, scales: Tensor, mirrored: bool) -> Tensor:
    """All combinations as poses, ordered by mirror, then scale, then shift: (M * Z * S, 3, 3) float64."""
    flips = torch.stack([torch.eye(3, dtype=torch.float64), reflection(torch.float64)])[: 2 if mirrored else 1]
    moved = translation(shifts.double())[None, None] @ scaling(scales.double())[None, :, None] @ flips[:, None, None]
    return moved.flatten(0, 2)
