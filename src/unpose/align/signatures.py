"""Signatures: short vectors that are nearly the same for all poses of an image, by which an index finds candidates.

An image is brought to a normal position: its centroid to the centre, and to a standard size if the group scales. Its
coefficients in the steerable basis (:mod:`unpose.align.basis`) then differ between poses by phases only: a turn by
``phi`` multiplies those of frequency k by ``exp(-i k phi)``. In the products ``a_k conj(b_k)`` and
``a_k b_l conj(c_(k+l))`` the phases cancel; a mirror conjugates them, so their real parts are mirror-blind, too.

Which of these numbers tell shapes apart depends on the images. They are weighted by how much they differ between
nearest neighbours, found in a sample by comparing all pairs at all angles: the differences of neighbours get unit
variance, and the directions in which the sample varies most beyond them are kept. This is relevant component analysis
(Bar-Hillel et al., 2003), with neighbours instead of labels.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.align import coarse
from unpose.align.basis import SteerableBasis
from unpose.compiled import worker_pool
from unpose.groups import scaling, translation
from unpose.images import pixel_grid, warp

SIZE = 64
"""Numbers in a signature."""
_FUNCTIONS = 2
"""Functions of each frequency, those of most energy, that enter products of three coefficients."""
_MAX_FREQUENCY = 10
"""Largest frequency in products of three."""
_RADIUS = 0.25
"""Radius of gyration of images of standard size, as a share of the larger side."""
_NEIGHBOURS = 5
"""Nearest images in the sample whose differences are taken to be noise."""
_SHRINKAGE = 0.1
"""Share of the mean variance added to every direction: a sample says little about directions of small variance."""


@dataclass(frozen=True)
class Normaliser:
    """What turns coarse images into signatures, fitted to a sample of the images.

    Its index has the small shifts (and scales) by which two images in normal position still differ.
    """

    index: coarse.Index
    mean: Tensor  # (D,)
    matrix: Tensor  # (D, SIZE)

    def signatures(self, coefficients: Tensor) -> Tensor:
        """Coefficients (n, C) of images in normal position -> signatures (n, SIZE) float32."""
        return (invariants(coefficients, self.index) - self.mean) @ self.matrix


def normal_poses(images: Tensor, *, scales: bool) -> Tensor:
    """Poses that bring coarse images (n, c, h, w) to normal position, in coarse pixels: (n, 3, 3).

    The centroid of the energy comes to the centre, and with ``scales`` the radius of gyration to a standard length.
    """
    energy = images.square().sum(1)  # (n, h, w)
    grid = pixel_grid((images.shape[-2], images.shape[-1]), images.dtype, images.device)
    total = energy.sum((1, 2)).clamp(min=1e-20)
    centroid = torch.einsum("nhw,hwi->ni", energy, grid) / total[:, None]
    moved = translation(-centroid)
    if not scales:
        return moved
    spread = torch.einsum("nhw,hw->n", energy, grid.square().sum(-1)) / total - centroid.square().sum(1)
    standard = _RADIUS * max(images.shape[-2:])
    return scaling(standard / spread.clamp(min=1.0).sqrt()) @ moved


def in_normal_position(images: Tensor, poses: Tensor) -> Tensor:
    """Coarse images (n, c, h, w) in normal position, of the energy that they had before."""
    moved = warp(images, poses)
    lengths = [each.square().sum((1, 2, 3), keepdim=True).sqrt() for each in (images, moved)]
    return moved * (lengths[0] / lengths[1].clamp(min=1e-12))


def fit_normaliser(plan: coarse.Plan, images: Tensor, n_threads: int) -> Normaliser:
    """Fit the basis and the weights of the signatures to a sample (m, c, h, w) of the coarse images."""
    normal = in_normal_position(images, normal_poses(images, scales=plan.group.scales and plan.max_scale > 1))
    index = coarse.build_index(coarse.near_centre(plan), normal, normal)
    coefficients = index.coefficients(normal)
    numbers = invariants(coefficients, index)
    neighbours = _sample_neighbours(index, normal, coefficients, n_threads)
    with worker_pool(1) as thread:  # the rounding of products must not depend on the number of threads
        mean, matrix = thread.submit(relevant_components, numbers.double().cpu(), neighbours.cpu()).result()
    return Normaliser(index, mean.to(numbers), matrix.to(numbers))


def _sample_neighbours(index: coarse.Index, normal: Tensor, coefficients: Tensor, n_threads: int) -> Tensor:
    """The nearest images of each image in the sample, over all pairs, angles and small shifts: (m, neighbours)."""
    norms = coefficients.abs().square().sum(-1)
    found = []
    for start, scores, _ in coarse.search_all_pairs(index, normal, coefficients, n_threads=n_threads):
        squared = norms - 2 * scores  # (t, m)
        rows = torch.arange(len(scores), device=squared.device)
        squared[rows, start + rows] = torch.inf
        found.append(squared.topk(min(_NEIGHBOURS, len(normal) - 1), largest=False).indices)
    return torch.cat(found)


def invariants(coefficients: Tensor, index: coarse.Index) -> Tensor:
    """Combine coefficients (n, C) to numbers that turns, and mirrors in groups that have them, leave alone: (n, D).

    Where only some angles are searched, two images with one shape at any angle may be different things, and the
    coefficients themselves are taken. Roots bring all numbers to the scale of a coefficient.
    """
    if not index.plan.full_circle:
        return torch.view_as_real(coefficients.contiguous()).flatten(1)
    pairs, triples = _products(index.basis)
    a, b = (torch.from_numpy(each).to(coefficients.device) for each in pairs)
    two = coefficients[:, a] * coefficients[:, b].conj()
    a, b, c = (torch.from_numpy(each).to(coefficients.device) for each in triples)
    three = coefficients[:, a] * coefficients[:, b] * coefficients[:, c].conj()
    constant = coefficients[:, : index.basis.starts[1]].real
    parts = [constant, _root(two.real, 2), _root(three.real, 3)]
    if not index.plan.group.mirrored:
        parts += [_root(two.imag, 2), _root(three.imag, 3)]
    return torch.cat(parts, dim=1)


def _root(values: Tensor, degree: int) -> Tensor:
    return values.sign() * values.abs().pow(1 / degree)


def _products(basis: SteerableBasis) -> tuple[tuple[NDArray, NDArray], tuple[NDArray, NDArray, NDArray]]:
    """Indices of the coefficients in products of two of one frequency, and of three of frequencies k, l and k + l."""
    starts = basis.starts
    ranges = [range(starts[k], starts[k + 1]) for k in range(basis.n_frequencies)]
    two = [(a, b) for each in ranges[1:] for a in each for b in each if a <= b]
    few = [each[:_FUNCTIONS] for each in ranges[: _MAX_FREQUENCY + 1]]
    three = [
        (a, b, c)
        for k in range(1, len(few))
        for m in range(k, len(few) - k)
        for a in few[k] for b in few[m] for c in few[k + m]
    ]  # fmt: skip
    first, second = np.array(two, np.int64).reshape(-1, 2).T
    a, b, c = np.array(three, np.int64).reshape(-1, 3).T
    return (first, second), (a, b, c)


def relevant_components(numbers: Tensor, neighbours: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (D,) and map (D, d) of numbers (m, D) in which neighbours (m, r) differ by unit variance in any direction.

    The directions kept are those in which the sample varies most compared with neighbours.
    """
    mean = numbers.mean(0)
    centred = numbers - mean
    difference = (centred[:, None] - centred[neighbours]).flatten(0, 1)
    within, total = difference.T @ difference / len(difference), centred.T @ centred / len(centred)
    within.diagonal().add_(max(_SHRINKAGE * float(within.diagonal().mean()), 1e-30))
    energy, directions = torch.linalg.eigh(within)
    whiten = directions / energy.sqrt()
    _, chosen = torch.linalg.eigh(whiten.T @ total @ whiten)
    return mean, whiten @ chosen.flip(1)[:, :SIZE]
