"""Generators of one-parameter groups that images obey, found without a list of candidates.

The question is that of Yang et al., "Generative Adversarial Symmetry Discovery" (ICML 2023): which matrices ``A`` leave
the distribution of the images unchanged under ``exp(t A)``? The adversary is replaced by a linear problem, see
:func:`find_generators`.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unpose.discover.descriptors import descriptors, joined, reduced
from unpose.groups import parse_continuous
from unpose.images import as_batch, warp

FREE = 0.22
"""Images move freely along a generator if their spread along it is at least this: about 13 degrees of a rotation."""
_MOST = 2000
_STEP = 1.0
"""Length of the finite difference in pixels."""
_DIRECTIONS, _WAVES = 48, 400
_RIDGE = 1e-2
_AFFINE = parse_continuous("affine")
_GROUPS = ("translation", "so2", "se2", "similarity", "affine")
_NAMED = {
    "shift along x": (1, 0, 0, 0, 0, 0), "shift along y": (0, 1, 0, 0, 0, 0), "turn": (0, 0, 1, 0, 0, 0),
    "scale": (0, 0, 0, 1, 0, 0), "stretch": (0, 0, 0, 0, 1, 0), "shear": (0, 0, 0, 0, 0, 1),
    "shear along x": (0, 0, 1, 0, 0, 1), "shear along y": (0, 0, -1, 0, 0, 1),
}  # fmt: skip
"""Generators with a name, in the coordinates of the affine Lie algebra; those along x and y move rows and columns."""


@dataclass(frozen=True)
class Generator:
    """A one-parameter group of affine transformations.

    Parameters
    ----------
    coordinates : ndarray of shape (6,)
        Coordinates in the affine Lie algebra (see CONVENTIONS.md) with shifts in units of ``radius``, of length one.
    radius : float
        Root mean squared distance of the content from the image centre, in pixels of the images.
    spread : float
        Standard deviation of a normal distribution of strengths that would be as hard to tell from a moved one: for a
        rotation in radians. Infinite if moved images cannot be told from real ones.

    Examples
    --------
    >>> turn = Generator(np.array([0, 0, 1.0, 0, 0, 0]), 8.0, math.inf)
    >>> turn.name, turn.cosine("shear")
    ('turn', 0.0)
    """

    coordinates: NDArray
    radius: float
    spread: float

    @property
    def matrix(self) -> NDArray:
        """The generator ``A``, (3, 3): ``exp(t A)`` are the poses of the group."""
        vector = self.coordinates * np.array([self.radius, self.radius, 1, 1, 1, 1])
        matrix: NDArray = _AFFINE.hat(torch.from_numpy(vector)).numpy()
        return matrix

    @property
    def is_free(self) -> bool:
        """Whether images move freely along the generator."""
        return self.spread >= FREE

    @property
    def name(self) -> str:
        """The named generator that is nearest: a shift, turn, scale, stretch or shear."""
        return max(_NAMED, key=self.cosine)

    def cosine(self, name: str) -> float:
        """Cosine of the angle to a named generator, regardless of the sign; one if both are the same group."""
        other = np.array(_NAMED[name], dtype=np.float64)
        return float(abs(self.coordinates @ other) / np.linalg.norm(other))

    def __str__(self) -> str:
        far = "freely" if math.isinf(self.spread) else f"with a spread of {self.spread:.2g}"
        return f"{self.name} (cosine {self.cosine(self.name):.3f}), {far}" + ("" if self.is_free else ": not free")


@dataclass(frozen=True)
class Generators:
    """What :func:`find_generators` found.

    Parameters
    ----------
    all : tuple of Generator
        Six orthogonal generators, those along which images move most freely first.

    Examples
    --------
    >>> turn = Generator(np.array([0, 0, 1.0, 0, 0, 0]), 8.0, math.inf)
    >>> Generators((turn,)).group
    'so2'
    """

    all: tuple[Generator, ...]

    @property
    def free(self) -> tuple[Generator, ...]:
        """The generators along which images move freely; none, if the images have no continuous symmetry."""
        return tuple(each for each in self.all if each.is_free)

    @property
    def group(self) -> str | None:
        """The smallest continuous group of the library that contains the free generators; None if there are none."""
        if not self.free:
            return None
        names = [coordinate.name for coordinate in _AFFINE.coordinates]
        for group in _GROUPS:
            inside = [names.index(coordinate.name) for coordinate in parse_continuous(group).coordinates]
            if all(np.linalg.norm(each.coordinates[inside]) >= 0.95 for each in self.free):
                break
        return group

    def __str__(self) -> str:
        return "\n".join(map(str, self.all))


def find_generators(images: ArrayLike, *, random_state: int = 0) -> Generators:
    """Find the one-parameter groups of affine transformations under which images are distributed alike.

    Parameters
    ----------
    images : array of shape (n, h, w) or (n, h, w, c)
        Images, some hundred at least; of more than 2,000, a random sample is used.
    random_state : int, default 0
        Seed of the sample and of the random features.

    Returns
    -------
    Generators

    Notes
    -----
    Let images move by ``exp(t A)``. Their distribution does not change if its score along ``A`` vanishes. This score is
    linear in ``A``, and so is its projection to features ``f`` of the images: its coefficients are ``C^-1 E[df/dt]``
    with the covariance ``C`` of the features. The Fisher information about ``t`` is then a quadratic form of ``A``,
    ``E[df/dt]^T C^-1 E[df/dt]``, and its eigenvectors with the smallest eigenvalues are the generators. No adversary is
    trained, and all generators are found at once.

    Derivatives are differences of two moved copies, which interpolation blurs alike. Features are principal components
    of smoothed pixels and gradient histograms, and random Fourier features of these. Generators are compared by the
    distance that they move the content. The information is the product of the estimates from two halves of the images,
    so that noise does not add to it. A transformation of unlimited range, such as a shear, can only be obeyed within a
    range; ``spread`` says how far.

    Examples
    --------
    >>> from unpose.data import posed
    >>> letters = 0.1 * np.random.default_rng(0).random((200, 16, 16))
    >>> letters[:, 3:13, 5] = letters[:, 12, 5:11] = 1  # the letter L
    >>> find_generators(posed(letters, "so2").images).all[0].name
    'turn'
    """
    generator = torch.Generator().manual_seed(random_state)
    batch = as_batch(images)
    if len(batch) < 2 * len(_NAMED):
        raise ValueError(f"generators are found from some hundred images, got {len(batch)}")
    longer = max(batch.shape[-2:])
    batch = reduced(batch[torch.randperm(len(batch), generator=generator)[:_MOST].sort().values])
    radius = _content_radius(batch)
    features = _moved_features(batch, radius, generator)  # (6, 2, n, features)
    slopes = (features[:, 1] - features[:, 0]) / _STEP  # (6, n, features), per pixel
    covariance = torch.cov(features.mean((0, 1)).T)
    covariance.diagonal().add_(_RIDGE * covariance.diagonal().mean())
    order = torch.randperm(len(batch), generator=generator)
    first, second = (slopes[:, half].mean(1) for half in order.tensor_split(2))  # (6, features) each
    crossed = first @ torch.linalg.solve(covariance, second.T)
    values, vectors = torch.linalg.eigh((crossed + crossed.T) / 2)  # ascending
    factor = longer / max(batch.shape[-2:])  # by which the images were reduced
    return Generators(
        tuple(
            Generator(vector.numpy(), factor * radius, math.inf if value <= 0 else 1 / (math.sqrt(value) * radius))
            for value, vector in zip(values.tolist(), vectors.T, strict=True)
        )
    )


def _content_radius(images: Tensor) -> float:
    """Root mean squared distance of the content of images (n, c, h, w) from their centre, in pixels."""
    x, y = (torch.arange(side, dtype=images.dtype) - (side - 1) / 2 for side in (images.shape[-1], images.shape[-2]))
    mass = images.abs().mean(dim=(0, 1))  # (h, w)
    total = mass.sum().clamp_min(torch.finfo(images.dtype).tiny)
    return max(1.0, float(((x.square() + y[:, None].square()) * mass).sum() / total) ** 0.5)


def _moved_features(images: Tensor, radius: float, generator: torch.Generator) -> Tensor:
    """Features of images moved by half a step back and forth along each generator: (6, 2, n, features) in float64."""
    units = torch.tensor([1.0, 1.0, *[radius] * 4])  # pixels that a unit of each coordinate moves the content
    steps = [sign * _STEP / 2 * torch.eye(6)[k] / units[k] for k in range(6) for sign in (-1, 1)]
    moved = joined([descriptors(warp(images, _AFFINE.exp(step).to(images.dtype))) for step in steps])
    described = torch.stack(moved).double()  # (12, n, d)
    flat = described.flatten(0, 1) - described.mean((0, 1))
    values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
    kept = vectors[:, -_DIRECTIONS:]
    components = flat @ kept  # (12 n, 48)
    sample = components[torch.randperm(len(components), generator=generator)[:1000]]
    width = 0.5 * torch.pdist(sample).square().median().clamp_min(1e-12)
    waves = torch.randn(components.shape[1], _WAVES, generator=generator, dtype=torch.float64) * (2 / width).sqrt()
    phases = 2 * math.pi * torch.rand(_WAVES, generator=generator, dtype=torch.float64)
    scale = values[-_DIRECTIONS:].clamp_min(0).mean().sqrt().clamp_min(1e-12)
    features = torch.cat([components / scale, math.sqrt(2) * torch.cos(components @ waves + phases)], dim=1)
    return features.view(6, 2, len(images), -1)
