"""Canonicalizers without training: from moments, by search against references, from a model's own features.

A canonicalizer is a torch module that maps images (n, c, h, w) to a :class:`~unpose.adapt.poses.Pose`. It keeps no
state of a call. All of them can be exchanged for one another; ``coordinates.py`` and ``learned.py`` have more.
"""

import math
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from unpose.adapt.frames import MOMENT_GROUPS, moment_frames
from unpose.adapt.poses import Pose
from unpose.adapt.views import View, check_border, no_larger, resampled
from unpose.align import Search, SearchSettings, nearest
from unpose.audit import as_model, evaluation
from unpose.groups import FiniteGroup, Group, area_change, inverse, parse, parse_continuous, rotation
from unpose.images import as_batch, from_batch

_N_ALTERNATIVES = 3
_DIFFERENT_DEGREES = 20.0
"""Two poses are clearly different if they differ by more than this angle, by a mirror, or by three pixels."""
_RIDGE = 0.3
"""Ridge of the contrast of features, as a share of their mean variance; from 0.1 to 1 it made no difference."""


class Canonicalizer(nn.Module):
    """Base class: ``forward`` maps images (n, c, h, w) to a :class:`Pose`, and leaves nothing behind in the module.

    Examples
    --------
    >>> isinstance(moments("so2"), Canonicalizer)
    True
    """

    def forward(self, images: Tensor) -> Pose:
        """(n, c, h, w) -> Pose of n"""
        raise NotImplementedError


def pose_from_scores(scores: Tensor, elements: Tensor, identity_score: Tensor, different: Tensor) -> Pose:
    """The pose of the highest score.

    scores (n, k) of elements (n, k, 3, 3) or (k, 3, 3); identity_score (n,); different (n, k, k) or (k, k) says which
    candidates are clearly different poses.
    """
    n, k = scores.shape
    value, best = scores.max(1)
    rows = torch.arange(n, device=scores.device)
    different = different.expand(n, k, k)[rows, best]  # (n, k)
    others = scores.masked_fill(~different, -torch.inf)
    ranked, order = others.topk(min(_N_ALTERNATIVES, k), dim=1)
    elements = elements.expand(n, k, 3, 3)
    chosen = elements[rows, best]
    # An alternative that does not exist is the best pose once more.
    alternatives = torch.where((ranked > -torch.inf)[:, :, None, None], elements[rows[:, None], order], chosen[:, None])
    return Pose(chosen, value, value - ranked[:, 0], value - identity_score, alternatives)


def are_different(elements: Tensor) -> Tensor:
    """Which of the poses (..., k, 3, 3) are clearly different from one another: (..., k, k) bool."""
    relative = inverse(elements)[..., :, None, :, :] @ elements[..., None, :, :, :]  # (..., k, k, 3, 3)
    angle = torch.atan2(
        relative[..., 0, 1] - relative[..., 1, 0], relative[..., 0, 0] + relative[..., 1, 1]
    ).abs()  # fmt: skip
    shift = relative[..., :2, 2].norm(dim=-1)
    return (angle > math.radians(_DIFFERENT_DEGREES)) | (area_change(relative) < 0) | (shift > 3)


class _Moments(Canonicalizer):
    standard: Tensor

    def __init__(self, group: Group, views: int, standard: Tensor) -> None:
        super().__init__()
        self.group, self.views = group, views
        self.register_buffer("standard", standard)

    def forward(self, images: Tensor) -> Pose:
        frames, weights = moment_frames(images, self.group, self.views)  # type: ignore[arg-type]
        frames = self.standard.to(frames) @ frames
        scores = weights.log()
        # The identity has the score of the nearest pose of the frame.
        turn = frames[..., 0, 0] + frames[..., 1, 1]  # largest for the pose nearest to the identity
        unturned = scores.gather(1, turn.argmax(1, keepdim=True))[:, 0]
        return pose_from_scores(scores, frames, unturned, are_different(frames))


def moments(group: str | Group, like: ArrayLike | Tensor | None = None, *, views: int = 8) -> Canonicalizer:
    """Canonicalize by moments: the centroid to the centre, the principal axis to a standard direction.

    Free of training and fast, for objects on an even background. The direction is undefined for round objects, which
    a margin near zero says.

    Parameters
    ----------
    group : str or Group
        translation, so2, se2 or similarity.
    like : images, optional
        Upright images: their mean direction is the standard one. By default it is along x.
    views : int, default 8
        Number of directions that are compared.

    Returns
    -------
    Canonicalizer

    Examples
    --------
    >>> bar = torch.zeros(1, 1, 17, 17); bar[..., 7:10, 3:14] = 1
    >>> pose = moments("so2")(bar.mT)
    >>> round(abs(float(pose.element[0, 0, 1])), 3)  # turned by a right angle
    1.0
    """
    parsed = parse_continuous(group)
    if parsed.kind not in MOMENT_GROUPS or parsed.mirrored:
        raise ValueError(f"moments canonicalize {', '.join(MOMENT_GROUPS)}, got {parsed}")
    standard = torch.eye(3)
    if like is not None and parsed.turns:
        frames, weights = moment_frames(as_images(like).float(), parsed, views)
        best = frames[torch.arange(len(frames)), weights.argmax(1)]  # (n, 3, 3)
        # The frame turns the principal direction to x; upright images have it at a mean angle from there.
        cos, sin = best[:, 0, 0].mean(), best[:, 0, 1].mean()
        standard = rotation(-torch.atan2(sin, cos))
    return _Moments(parsed, views, standard)


class _SearchReferences(Canonicalizer):
    references: Tensor

    def __init__(self, references: Tensor, neighbours: int, search: Search) -> None:
        super().__init__()
        self.register_buffer("references", references)
        self.neighbours, self.search = min(neighbours, len(references)), search

    def forward(self, images: Tensor) -> Pose:
        batch, others = (from_batch(part.detach().float(), channels=True) for part in (images, self.references))
        found = nearest(batch, self.neighbours, others=others, search=self.search)
        elements = inverse(torch.from_numpy(found.poses)).to(images)  # (n, k, 3, 3)
        scores = -torch.from_numpy(found.distances).to(images)
        unmoved = -torch.cdist(images.flatten(1).float(), self.references.to(images).flatten(1).float()).amin(1)
        return pose_from_scores(scores, elements, unmoved.to(images), are_different(elements))


def search(references: ArrayLike | Tensor, *, neighbours: int = 5, **settings: Unpack[SearchSettings]) -> Canonicalizer:
    """Canonicalize by the orbit search: the pose that brings an image nearest to one of the upright references.

    Works without training for every group that the search knows: se2, similarity, affine, perspective.

    Parameters
    ----------
    references : (m, h, w) or (m, h, w, c) array, or (m, c, h, w) tensor
        Upright images, or prototypes of them such as means of classes; some hundred do well.
    neighbours : int, default 5
        References whose poses are compared, for the margin and the alternatives.
    **settings : optional
        Settings of the search: group ("se2" by default), max_angle, max_shift, max_scale, contrast and others;
        :class:`unpose.align.Search` describes them.

    Returns
    -------
    Canonicalizer

    Examples
    --------
    >>> upright = torch.zeros(1, 1, 16, 16); upright[..., 4:12, 6:9] = 1; upright[..., 10:12, 6:12] = 1
    >>> pose = search(upright, group="so2")(upright.rot90(1, (2, 3)))
    >>> round(float(torch.atan2(pose.element[0, 0, 1], pose.element[0, 0, 0]).rad2deg()))
    -90
    """
    return _SearchReferences(as_images(references).float(), neighbours, Search(**settings))


class _Energy(Canonicalizer):
    scale: Tensor
    reference: Tensor  # training features (m, d), or a direction (d,) of the feature space

    def __init__(
        self, model: nn.Module, group: FiniteGroup, neighbours: int, size: int | None, border: str
    ) -> None:  # fmt: skip
        super().__init__()
        self.model, self.group, self.neighbours, self.size, self.border = model, group, neighbours, size, border
        self.views = [View.at(pose) for pose in group.elements]
        self.training = model.training

    def features(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (order, n, d): the features of every view."""
        images = no_larger(images, self.size)
        return torch.stack([self.model(view.of(images, self.border)).flatten(1) for view in self.views])

    def scores(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, order): how upright the features of each view look."""
        features = self.features(images) / self.scale
        if self.reference.ndim == 1:
            return (features @ self.reference).T
        distances = torch.cdist(features, self.reference.expand(len(features), -1, -1))  # (order, n, m)
        return -distances.topk(self.neighbours, dim=2, largest=False).values.mean(2).T

    def forward(self, images: Tensor) -> Pose:
        scores, elements = self.scores(images), self.group.elements.to(images)
        different = ~torch.eye(len(elements), dtype=torch.bool, device=scores.device)
        return pose_from_scores(scores, elements, scores[:, 0], different)


def energy(
    features: Any,
    training_images: ArrayLike | Tensor,
    group: str | Group = "c8",
    *,
    score: str = "contrast",
    neighbours: int = 5,
    size: int | None = None,
    border: str = "zero",
) -> Canonicalizer:
    """Canonicalize by a model's own features: the view whose features look most like those of upright images.

    Needs no gradient and no labels; it costs one call of the features per element. Distances and contrasts of features
    find poses where the model's confidence does not.

    Parameters
    ----------
    features : object
        What :func:`as_model` takes; it returns a feature vector (n, d), better from before the last layer.
    training_images : (m, h, w) or (m, h, w, c) array, or (m, c, h, w) tensor
        Upright images, some hundreds; not necessarily of the classes that the model knows.
    group : str or Group, default "c8"
        A finite group.
    score : {"contrast", "distance"}, default "contrast"
        "contrast" is the linear function of the features that separates upright images best from their own turned
        views (ridge regression on the differences). "distance" is minus the mean distance to the nearest training
        features.
    neighbours : int, default 5
        Number of nearest training features of "distance".
    size : int, optional
        Scale images to this side for the features: 8 views at a third of the side cost less than one full call. The
        model must take images of that size.
    border : {"zero", "reflect", "replicate"}, default "zero"
        What lies outside the image.

    Returns
    -------
    Canonicalizer

    Examples
    --------
    >>> upright = torch.rand(20, 1, 9, 9) * torch.linspace(0, 1, 9)  # brighter to the right
    >>> pose = energy(lambda images: images.flatten(1), upright, "c4")(upright.rot90(1, (2, 3)))
    >>> pose.element[0].round().tolist()
    [[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    parsed = parse(group)
    if not isinstance(parsed, FiniteGroup) or parsed.order < 2:
        raise ValueError(f"energy compares the elements of a finite group such as c8, got {parsed}")
    if score not in ("contrast", "distance"):
        raise ValueError(f"score must be 'contrast' or 'distance', got {score!r}")
    images = as_images(training_images)
    if neighbours > len(images):
        raise ValueError(f"neighbours must not exceed the {len(images)} training images, got {neighbours}")
    model = as_model(features)
    finder = _Energy(model, parsed, neighbours, size, check_border(border))
    with evaluation(model):
        found = torch.cat([finder.features(part) for part in images.split(64)], dim=1)  # (order, m, d)
    spread = found.flatten(0, 1).std(0)
    scale = spread.clamp(min=1e-3 * float(spread.max()) + 1e-12)
    finder.register_buffer("scale", scale)
    finder.register_buffer("reference", found[0] / scale if score == "distance" else _contrast(found / scale))
    return finder


def _contrast(features: Tensor) -> Tensor:
    """The direction (d,) that separates the first of several views (k, m, d) of each image from its others."""
    differences = (features[:1] - features[1:]).flatten(0, 1).double()  # ((k - 1) * m, d)
    second = differences.T @ differences / len(differences)
    ridge = _RIDGE * second.diagonal().mean().clamp(min=1e-12)
    eye = torch.eye(len(second), dtype=second.dtype, device=second.device)
    return torch.linalg.solve(second + ridge * eye, differences.mean(0)).to(features.dtype)


class _Iterated(Canonicalizer):
    def __init__(self, steps: tuple[Canonicalizer, ...], rounds: int, border: str) -> None:
        super().__init__()
        self.steps, self.rounds, self.border = nn.ModuleList(steps), rounds, border

    def forward(self, images: Tensor) -> Pose:
        first: Pose = self.steps[0](images)
        element, gain = first.element, first.gain
        for step in (list(self.steps) * self.rounds)[1:]:
            # Poses are composed, and the original is resampled once.
            current: Pose = step(resampled(images, element, self.border))
            element, gain = current.element @ element, gain + current.gain
        return replace(first, element=element, gain=gain)


def iterate(*canonicalizers: Canonicalizer, rounds: int = 1, border: str = "zero") -> Canonicalizer:
    """Apply canonicalizers one after the other, each to the image as the ones before it have brought it.

    Poses are composed and the original image is resampled once. Several rounds of one canonicalizer refine its pose;
    different ones share the work, such as a rotation found by ``learned`` and the rest found by ``regress``.

    Parameters
    ----------
    *canonicalizers : Canonicalizer
        In the order in which they are applied.
    rounds : int, default 1
        How often all of them are applied.
    border : {"zero", "reflect", "replicate"}, default "zero"
        What lies outside the image.

    Returns
    -------
    Canonicalizer
        Its value, margin and alternatives are those of the first estimate; gains add up.

    Examples
    --------
    >>> bar = torch.zeros(1, 1, 17, 17); bar[..., 7:10, 3:12] = 1
    >>> twice = iterate(moments("se2"), rounds=2)(bar)
    >>> bool((moments("se2")(bar).element - twice.element).abs().max() < 0.1)
    True
    """
    if not canonicalizers or rounds < 1:
        raise ValueError(f"iterate needs at least one canonicalizer and one round, got {len(canonicalizers)}, {rounds}")
    return _Iterated(canonicalizers, rounds, check_border(border))


def as_images(images: ArrayLike | Tensor) -> Tensor:
    """A tensor (n, c, h, w) as it is, or an array (n, h, w) or (n, h, w, c) as one; float64 arrays become float32."""
    if isinstance(images, Tensor) and images.ndim == 4:
        return images
    return as_batch(np.asarray(images) if not isinstance(images, Tensor) else images, dtype=torch.float32)
