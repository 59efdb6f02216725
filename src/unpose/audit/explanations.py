"""Whether the explanation of a moved image is the moved explanation of the image (Crabbe and van der Schaar 2023)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from unpose.audit.actions import Kind, act, round_trip, valid_mask
from unpose.audit.calls import checked_output, evaluation
from unpose.audit.elements import Element
from unpose.audit.measurement import checked_numbers
from unpose.audit.orbit import over_orbit
from unpose.audit.results import Plain
from unpose.groups import Group, parse

METHODS = ("gradients", "integrated gradients", "occlusion")
_STEPS = 16
"""Points on the path of integrated gradients."""

_IMAGE = Kind(image=True)


@dataclass(frozen=True)
class ExplanationReport(Plain):
    """The result of :func:`explanation_agreement`; ``print`` it to see the table.

    Parameters
    ----------
    group, method : str
        Names of the group and of the explanation.
    elements : tuple of k str
        Names of the elements; entry 0 is the identity.
    exact : (k,) array of bool
        Whether the element permutes pixels without interpolation.
    scores : (k,) array
        Mean cosine of the explanation of the moved image and the moved explanation of the image.
    floors : (k,) array
        The same cosine when images and explanations are moved and moved back: what interpolation leaves of it.
    by_image : (k, n) array
        The cosine of each image.
    control : str
        Name of a transformation outside the group.
    control_score : float
        Its mean cosine.
    between_images : float
        Mean cosine of the explanations of different images. An explanation that is nearly the same for every image
        scores high whenever it is symmetric, which says nothing about the model.

    Examples
    --------
    >>> images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> explanation_agreement(lambda x: x**2, images, "c4").score
    1.0
    """

    group: str
    method: str
    elements: tuple[str, ...]
    exact: NDArray[np.bool_]
    scores: NDArray[np.float64]
    floors: NDArray[np.float64]
    by_image: NDArray[np.float64]
    control: str
    control_score: float
    between_images: float

    @property
    def score(self) -> float:
        """The mean score of all elements but the identity."""
        return float(self.scores[1:].mean()) if len(self.scores) > 1 else float(self.scores[0])

    def __str__(self) -> str:
        title = f"{self.method} under {self.group}"
        width = max(len("control: " + self.control), len(title), len("between images"), *map(len, self.elements))
        lines = [f"{title:{width}} {'agreement':>10} {'floor':>7}"]
        for i, name in enumerate(self.elements):
            floor = "  exact" if self.exact[i] else f"{self.floors[i]:7.3f}"
            lines.append(f"{name:{width}} {self.scores[i]:10.3f} {floor}")
        lines.append(f"{'control: ' + self.control:{width}} {self.control_score:10.3f}")
        lines.append(f"{'between images':{width}} {self.between_images:10.3f}")
        if self.between_images > 0.9:
            lines.append("note: explanations of different images are nearly equal, so high scores mean little")
        return "\n".join(lines)


def explanation_agreement(
    explainer: Callable[[Tensor], Any],
    images: Tensor,
    group: str | Group,
    *,
    method: str = "given",
    n_elements: int = 16,
    random_state: int = 0,
) -> ExplanationReport:
    """Compare the explanations of moved images with the moved explanations of the images, by cosine.

    Parameters
    ----------
    explainer : callable
        Function from images (n, c, h, w) to their explanations, maps (n, h, w) or (n, c, h, w) of the size of the
        images, such as one made by :func:`explain`. It must go on explaining the class that the model gave the unmoved
        image: where the answer changes, another class would be explained.
    images : (n, c, h, w) tensor
        At least two different images, float32 or float64.
    group : str or Group
        Every element of a finite group is used. For a continuous group, ``n_elements`` random elements and its exact
        ones.
    method : str, default "given"
        Name of the explanation, for the report.
    n_elements : int, default 16
        Number of random elements of a continuous group.
    random_state : int, default 0
        Seed of the random elements.

    Returns
    -------
    ExplanationReport

    Notes
    -----
    As in :func:`equivariance_error`, images fade to zero inside a disc before they are moved by an element that needs
    interpolation, and explanations are compared inside that disc.

    Examples
    --------
    >>> images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> by_position = lambda x: x.abs() * torch.arange(8)
    >>> bool(explanation_agreement(by_position, images, "c4").score < 0.8)
    True
    """
    group = parse(group)

    def maps_of(inputs: Tensor, _: str) -> Tensor:
        maps = checked_numbers(explainer(inputs.clone()), len(inputs))
        if maps.shape[-2:] != inputs.shape[-2:] or maps.ndim not in (3, 4):
            raise ValueError(
                f"explanations must be maps (n, h, w) or (n, c, h, w) of the size of the images {tuple(inputs.shape)}, "
                f"got shape {tuple(maps.shape)}"
            )
        return maps if maps.ndim == 4 else maps[:, None]

    *rows, control = [
        (element, maps, *_agreement(element, maps, moved, returned))
        for element, maps, moved, returned in over_orbit(maps_of, images, group, n_elements, random_state)
    ]
    upright = rows[0][1]  # the first element is the identity
    return ExplanationReport(
        group=group.name,
        method=method,
        elements=tuple(element.name for element, *_ in rows),
        exact=np.array([element.is_exact for element, *_ in rows]),
        scores=np.array([cosines.mean() for *_, cosines, _ in rows]),
        floors=np.array([floor for *_, floor in rows]),
        by_image=np.stack([cosines for *_, cosines, _ in rows]),
        control=control[0].name,
        control_score=float(control[2].mean()),
        between_images=float(_cosines(upright, upright.roll(1, 0)).mean()),
    )


def _agreement(element: Element, maps: Tensor, moved: Tensor, returned: Tensor) -> tuple[NDArray, float]:
    """Cosines (n,) of explanations of moved images with moved explanations (n, c, h, w), and their floor."""
    frame = (maps.shape[-2], maps.shape[-1])
    mask = valid_mask(maps, element, _IMAGE, frame)
    cosines = _cosines(mask * moved, mask * act(maps, element, _IMAGE, frame)).numpy()
    if element.is_exact:
        return cosines, 1.0
    # The input is resampled on one side of the comparison, the explanation on the other.
    by_input = _cosines(mask * returned, mask * maps)
    by_output = _cosines(mask * round_trip(maps, element, frame), mask * maps)
    return cosines, float((by_input * by_output).mean())


def explain(
    model: Callable[[Tensor], Tensor], images: Tensor, method: str = "gradients", *, patch: int | None = None
) -> Callable[[Tensor], Tensor]:
    """Make a function that explains, for each image, the class that a model gives it now.

    Parameters
    ----------
    model : callable
        Function from images (n, c, h, w) to class scores (n, classes). Gradients need one that torch can differentiate.
    images : (n, c, h, w) tensor
        The images whose answers are explained; the function then takes them, moved or not, in the same order.
    method : {"gradients", "integrated gradients", "occlusion"}, default "gradients"
        Derivative of the score by the pixels; the same, averaged from a black image on and times the pixels; or the
        loss of score when a square around the pixel is set to the image's mean.
    patch : int, optional
        Side of the square of occlusion in pixels, by default an eighth of the smaller side. Squares are centred on a
        grid that quarter turns and mirrors of a square image map onto itself.

    Returns
    -------
    callable
        From images (n, c, h, w) to maps (n, c, h, w) or, for occlusion, (n, h, w).

    Examples
    --------
    >>> images = torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> model = lambda x: torch.stack([x.square().sum((1, 2, 3)), -x.sum((1, 2, 3))], dim=1)
    >>> torch.allclose(explain(model, images)(images), 2 * images)
    True
    """
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    with evaluation(model):
        scores = checked_output(model(images.clone()), len(images))
    if scores.ndim != 2 or scores.shape[1] < 2:
        raise ValueError(f"explanations need class scores (n, classes), got outputs of shape {tuple(scores.shape)}")
    targets = scores.argmax(1, keepdim=True)

    def score(inputs: Tensor) -> Tensor:
        """Scores (n,) of the explained classes."""
        return checked_output(model(inputs), len(targets)).gather(1, targets)[:, 0]

    def gradient(inputs: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = inputs.detach().clone().requires_grad_()
            return torch.autograd.grad(score(leaf * 1).sum(), leaf)[0]

    def explanation(inputs: Tensor) -> Tensor:
        with evaluation(model):
            if method == "gradients":
                return gradient(inputs)
            if method == "integrated gradients":
                path = ((step + 0.5) / _STEPS for step in range(_STEPS))
                return inputs * torch.stack([gradient(share * inputs) for share in path]).mean(0)
            return _occlusion(score, inputs, patch)

    return explanation


def _occlusion(score: Callable[[Tensor], Tensor], images: Tensor, patch: int | None) -> Tensor:
    """Loss of score (n, h, w) when a square is replaced by the mean of the image, averaged over squares at a pixel."""
    height, width = images.shape[-2:]
    side = max(2, min(height, width) // 8) if patch is None else patch
    if not 1 <= side <= min(height, width):
        raise ValueError(f"patch must be from 1 to {min(height, width)} pixels, got {side}")
    whole, mean = score(images.clone()), images.mean((-2, -1), keepdim=True)
    total = images.new_zeros(len(images), height, width)
    count = images.new_zeros(height, width)
    for top in _starts(height, side):
        for left in _starts(width, side):
            window = (..., slice(top, top + side), slice(left, left + side))
            hidden = images.clone()
            hidden[window] = mean
            total[window] += (whole - score(hidden))[:, None, None]
            count[window] += 1
    return total / count


def _starts(size: int, side: int) -> list[int]:
    """First pixels of squares that cover an axis, at steps of about half a square, symmetric about the middle."""
    last = size - side
    count = -(-2 * last // side)
    starts = {round(last * i / count) for i in range(count // 2 + 1)} if count else {0}
    return sorted(starts | {last - start for start in starts})


def _cosines(a: Tensor, b: Tensor) -> Tensor:
    """Cosines (n,) of maps (n, c, h, w); 1 if both are zero, 0 if one is."""
    a, b = a.flatten(1).double(), b.flatten(1).double()
    both_zero = (a.norm(dim=1) == 0) & (b.norm(dim=1) == 0)
    return torch.where(both_zero, 1.0, nn.functional.cosine_similarity(a, b))
