"""Images that differ as much as possible while one unit of a network responds to them alike (Cadena et al. 2018)."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unpose.audit.calls import checked_output, evaluation
from unpose.audit.results import Plain


@dataclass(frozen=True)
class InvariantSet(Plain):
    """The result of :func:`invariant_set`.

    Parameters
    ----------
    images : (n, c, h, w) array
        Images of norm 1 to which the unit responds alike.
    responses : (n,) array
        Responses to them, relative to the largest that was found.
    spread : float
        Mean distance of two of the images.
    restarts : float
        The control: mean distance of as many images that were only made to excite the unit, from random starts.
    linear : float
        The largest spread that a linear unit, which has no invariance, allows at the same level.
    best : float
        The largest response that was found.

    Examples
    --------
    >>> found = invariant_set(lambda x: x[:, 0, 2, 2], (1, 5, 5), n=4, steps=50)
    >>> bool(found.spread < found.linear)
    True
    """

    images: NDArray[np.float32]
    responses: NDArray[np.float64]
    spread: float
    restarts: float
    linear: float
    best: float

    def _repr_html_(self) -> str:
        """The images with their responses, for notebooks."""
        from unpose.report import pictures_html, text_html

        images = self.images.transpose(0, 2, 3, 1)  # (n, c, h, w) -> (n, h, w, c)
        return text_html(str(self)) + pictures_html(images, [f"{response:.0%}" for response in self.responses])

    def __str__(self) -> str:
        return (
            f"{len(self.images)} images with at least {self.responses.min():.0%} of the largest response "
            f"{self.best:.3g}: mean distance {self.spread:.2f} (restarts {self.restarts:.2f}, "
            f"linear unit {self.linear:.2f})"
        )


def invariant_set(
    unit: Callable[[Tensor], Tensor],
    shape: tuple[int, int, int],
    *,
    n: int = 8,
    level: float = 0.9,
    steps: int = 300,
    random_state: int = 0,
) -> InvariantSet:
    """Search images of norm 1 that excite a unit alike and differ as much as possible.

    Parameters
    ----------
    unit : callable
        Function from images (n, c, h, w) to responses (n,) that torch can differentiate.
    shape : (c, h, w)
        Shape of an image.
    n : int, default 8
        Number of images.
    level : float, default 0.9
        Responses stay above this share of the largest.
    steps : int, default 300
        Steps of gradient ascent, once for the response and once for the distances.
    random_state : int, default 0
        Seed of the starts.

    Returns
    -------
    InvariantSet

    Notes
    -----
    First the response is maximised from n random starts, then the mean distance of the images while the response is
    held above the level by a penalty. In the end, images below the level are moved back towards the best image.

    Examples
    --------
    >>> found = invariant_set(lambda x: x.square().sum((1, 2, 3)), (1, 5, 5), n=4, steps=50)
    >>> bool(found.spread > 1.4 > found.linear)
    True
    """
    if n < 2 or not 0 < level < 1:
        raise ValueError(f"an invariant set needs at least 2 images and a level between 0 and 1, got {n} and {level}")
    generator = torch.Generator().manual_seed(int(random_state))
    start = torch.randn(n, *shape, generator=generator)

    def response(images: Tensor) -> Tensor:
        responses = checked_output(unit(images), n, "the unit")
        if responses.shape != (n,):
            raise ValueError(f"the unit must return one response per image, ({n},), got {tuple(responses.shape)}")
        return responses

    with evaluation(unit):
        excited = _ascend(response, start, steps)
        best = float(response(excited).max())
        if not best > 0:
            raise ValueError(f"the unit responds to no image of norm 1 (largest response {best:.3g}); try more steps")

        def objective(images: Tensor) -> Tensor:
            missing = (level + 0.02 - response(images) / best).clamp(min=0)
            return _pairwise(images) / n - 30 * missing.square() - 3 * missing

        spread_out = _ascend(objective, excited, steps)
        responses = response(spread_out) / best
        strongest = excited[response(excited).argmax()]
        for _ in range(20):  # halve the distance to the best image until the response is above the level
            low = responses < level
            if not low.any():
                break
            spread_out = torch.where(low[:, None, None, None], _normed(spread_out + strongest), spread_out)
            responses = response(spread_out) / best
        return InvariantSet(
            images=spread_out.numpy(),
            responses=responses.double().numpy(),
            spread=float(_pairwise(spread_out).mean() / (n - 1)),
            restarts=float(_pairwise(excited).mean() / (n - 1)),
            linear=math.sqrt(2 * n / (n - 1)) * math.sin(math.acos(level)),
            best=best,
        )


def _ascend(objective: Callable[[Tensor], Tensor], start: Tensor, steps: int) -> Tensor:
    """Maximise the sum of objectives (n,) over images of norm 1, by steps of fixed and then shrinking length."""
    images, momentum = _normed(start), torch.zeros_like(start)
    for step in range(steps):
        with torch.enable_grad():
            leaf = images.clone().requires_grad_()
            gradient = torch.autograd.grad(objective(_normed(leaf)).sum(), leaf)[0]
        momentum = 0.8 * momentum + 0.2 * gradient
        length = 0.2 * min(1.0, 2 * (1 - step / steps))
        images = _normed(images + length * _normed(momentum))
    return images


def _normed(images: Tensor) -> Tensor:
    return images / images.flatten(1).norm(dim=1)[:, None, None, None].clamp(min=1e-12)


def _pairwise(images: Tensor) -> Tensor:
    """Sum (n,) of the distances of each image to the others, smooth where two are equal."""
    flat = images.flatten(1)
    squares = (flat[:, None] - flat).square().sum(-1)
    return (squares + 1e-8).sqrt().sum(1) - 1e-4
