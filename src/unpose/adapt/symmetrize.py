"""Make a model invariant by averaging its answers over the orbit of each image."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from unpose.adapt.frames import moment_frames
from unpose.adapt.poses import check_dense, restore_maps
from unpose.adapt.views import View, check_border, resampled
from unpose.audit import ImageModel, ModelCall, as_model
from unpose.compiled import is_traced_or_transformed
from unpose.groups import FiniteGroup, Group, LieGroup, inverse, parse

OVER = ("probabilities", "logits", "features")
DENSE = ("image", "mask", "vectors")
Combine = Callable[[Tensor], Tensor]


class Symmetrized(nn.Module):
    """A model averaged over a group; made by :func:`symmetrize`.

    Parameters
    ----------
    model : ImageModel
        The model.
    group : Group
        Finite, or continuous with frames from moments.
    over : str or callable
        What is averaged.
    elements : tuple of int
        Elements of a finite group that are averaged over.
    views : int
        Directions in a frame.
    draws : int or None
        Number of poses drawn from each frame; None for all of them.
    restores : str or None
        Kind of dense answers, which are carried back before they are averaged.
    border : str
        What lies outside the image.
    seed : int
        Seed of the draws.

    Examples
    --------
    >>> model = symmetrize(lambda images: images[:, :, 0].amax(2), "c4", over="logits")
    >>> images = torch.rand(2, 3, 8, 8)
    >>> torch.allclose(model(images), model(images.rot90(1, (2, 3))))
    True
    """

    def __init__(
        self,
        model: ImageModel,
        group: Group,
        over: str | Combine,
        elements: tuple[int, ...],
        views: int,
        draws: int | None,
        restores: str | None,
        border: str,
        seed: int,
    ) -> None:
        super().__init__()
        self.model, self.group, self.over, self.elements = model, group, over, elements
        self.views, self.draws, self.restores, self.border, self.seed = views, draws, restores, border, seed
        poses = group.elements[list(elements)] if isinstance(group, FiniteGroup) else torch.empty(0, 3, 3)
        self._there, self._back = [View.at(pose) for pose in poses], [View.at(pose) for pose in inverse(poses)]
        self.training = model.training

    def extra_repr(self) -> str:
        return f"group={self.group}, over={self.over!r}, passes={self.passes}"

    @property
    def passes(self) -> int:
        """Calls of the model for each image."""
        if isinstance(self.group, FiniteGroup):
            return len(self.elements)
        directions = self.views if self.group.turns else 1
        return min(self.draws or directions, directions) * (1 + self.group.mirrored)

    def forward(self, images: Any) -> Any:
        """(n, c, h, w) tensor -> tensor, or (n, h, w) or (n, h, w, c) array -> array"""
        batch, call = self.model.on(images)
        answer = self._average(batch, call)
        return answer if isinstance(images, Tensor) else answer.detach().cpu().numpy()

    def _average(self, images: Tensor, call: ModelCall) -> Tensor:
        if isinstance(self.group, FiniteGroup):
            return self.combine(torch.stack([self._answer_to(images, i, call) for i in range(len(self._there))]))
        frames, weights = moment_frames(images, self.group, self.views)  # (n, k, 3, 3), (n, k)
        if self.draws is not None:
            frames, weights = self._draw(frames, weights)
        answers = [self._answer(images, frames[:, k], call) for k in range(frames.shape[1])]
        return self.combine(torch.stack(answers), weights.T)

    def _answer_to(self, images: Tensor, index: int, call: ModelCall) -> Tensor:
        """The model's answer to the images moved by one element, carried back if it is dense."""
        there = self._there[index]
        answer = call(there.of(images, self.border))
        if self.restores is None:
            return answer
        if there.quarter_turns is None:
            return restore_maps(answer, there.pose(images).expand(images.shape[0], 3, 3), self.restores, images)
        check_dense(answer)
        back = self._back[index]  # permutes pixels
        if self.restores == "vectors":
            answer = torch.einsum("ij,njhw->nihw", back.pose(answer)[:2, :2], answer)
        return back.of(answer)

    def _answer(self, images: Tensor, poses: Tensor, call: ModelCall) -> Tensor:
        """The model's answer to one view of every image, at poses (n, 3, 3)."""
        answer = call(resampled(images, poses, self.border))
        return answer if self.restores is None else restore_maps(answer, poses, self.restores, images)

    def views_of(self, images: Tensor) -> list[Tensor]:
        """The views of images (n, c, h, w) that the model is called with, for a finite group."""
        return [there.of(images, self.border) for there in self._there]

    def combine(self, answers: Tensor, weights: Tensor | None = None) -> Tensor:
        """The mean of the answers to all views: (k, n, ...) and weights (k, n), or none, -> (n, ...)"""
        if callable(self.over):
            return self.over(answers)
        if weights is None:
            weights = answers.new_full(answers.shape[:2], 1 / answers.shape[0])
        weights = weights.to(answers.dtype).reshape(*weights.shape, *(1,) * (answers.ndim - 2))
        if self.over == "features":
            answers = answers / answers.flatten(2).norm(dim=2).clamp(min=1e-12).reshape(weights.shape)
        if self.over != "probabilities" or self.model.gives == "probabilities":
            return (weights * answers).sum(0)
        if not is_traced_or_transformed():
            check_not_probabilities(answers, "average them as they are with over='logits'")
        return (answers.log_softmax(2) + weights.log()).logsumexp(0)

    def _draw(self, frames: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Draw poses from each frame by their weights; both halves of a mirrored frame at the same angles."""
        halves = 2 if isinstance(self.group, LieGroup) and self.group.mirrored else 1
        k = frames.shape[1] // halves
        # A generator of its own for every call: the same images always get the same answer.
        generator = torch.Generator(device=weights.device).manual_seed(self.seed)
        drawn = torch.multinomial(weights[:, :k], min(self.draws or k, k), generator=generator)  # (n, draws)
        index = torch.cat([drawn + half * k for half in range(halves)], dim=1)
        kept = weights.gather(1, index)
        return frames[torch.arange(len(frames))[:, None], index], kept / kept.sum(1, keepdim=True)


def symmetrize(
    model: Any,
    group: str | Group,
    over: str | Combine = "probabilities",
    elements: Sequence[int] | None = None,
    frames: str | None = None,
    *,
    views: int = 8,
    draws: int | None = None,
    restores: str | None = None,
    border: str = "zero",
    random_state: int = 0,
) -> Symmetrized:
    """Make any model invariant to a group by averaging its answers over transformed copies of each image.

    Parameters
    ----------
    model : object
        What :func:`as_model` takes: a torch module, the path of an ONNX file, an estimator or a function.
    group : str or Group
        A finite group such as "c8" or "d4"; with ``frames="moments"`` translation, so2, se2 or similarity, each also
        with "+mirror".
    over : {"probabilities", "logits", "features"} or callable, default "probabilities"
        "probabilities" averages the softmax of the answers and returns its logarithm, which is again a logit (a model
        that gives probabilities is averaged as it is). "logits" averages answers as they are. "features" averages
        them at unit length. A function takes the answers to all views (k, n, ...) and returns (n, ...).
    elements : sequence of int, optional
        Elements of a finite group to average over; by default all of them. The average over fewer is not invariant.
    frames : {"moments"}, optional
        Average over a frame of poses that follows each image: see :mod:`unpose.adapt.frames`.
    views : int, default 8
        Directions in a frame.
    draws : int, optional
        Draw this many poses of each frame instead of using all: cheaper, and invariant only on average.
    restores : {"image", "mask", "vectors"}, optional
        The answers are maps (n, c, h, w), which are carried back to the frame of the input before they are averaged:
        the result is equivariant instead of invariant.
    border : {"zero", "reflect", "replicate"}, default "zero"
        What lies outside the image; for photographs "reflect" avoids black corners.
    random_state : int, default 0
        Seed of the draws.

    Returns
    -------
    Symmetrized
        A torch module that is called as the model is: with a tensor (n, c, h, w), or an array (n, h, w[, c]).

    Notes
    -----
    The average over a finite group is invariant to float precision for quarter turns and mirrors, which permute pixels.
    Elements in between interpolate: the remaining error is that of interpolation, which
    :func:`unpose.audit.equivariance_error` measures. The cost is one call per element.

    Examples
    --------
    >>> from unpose.audit import equivariance_error, smooth_noise
    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    >>> invariant = symmetrize(net, "d4")
    >>> equivariance_error(invariant, smooth_noise(3, 1, (8, 8)), "d4").holds()
    True
    """
    parsed = parse(group)
    if isinstance(over, str) and over not in OVER:
        raise ValueError(f"over must be one of {', '.join(map(repr, OVER))} or a function, got {over!r}")
    if restores not in (None, *DENSE):
        raise ValueError(f"restores must be one of {', '.join(map(repr, DENSE))}, or left out, got {restores!r}")
    if frames not in (None, "moments"):
        raise ValueError(f"frames must be 'moments', or left out for a finite group, got {frames!r}")
    if (draws is not None and draws < 1) or views < 1:
        raise ValueError(f"views and draws must be at least 1, got {views} and {draws}")
    chosen: tuple[int, ...] = ()
    if isinstance(parsed, FiniteGroup):
        if frames is not None or draws is not None:
            raise ValueError(
                f"{parsed} is finite and averaged over its elements; frames and draws are for so2, se2, ..."
            )
        if not parsed.is_group:
            raise ValueError(
                f"{parsed} is not closed under products, so an average over it is not invariant; use canonicalize"
            )
        chosen = tuple(range(parsed.order)) if elements is None else tuple(int(index) for index in elements)
        if not chosen or min(chosen) < 0 or max(chosen) >= parsed.order:
            raise ValueError(f"elements must be indices below {parsed.order}, got {list(chosen)}")
    elif frames is None:
        raise ValueError(f"{parsed} has infinitely many elements: use frames='moments', or a finite group such as c8")
    elif elements is not None:
        raise ValueError("elements are those of a finite group; a frame chooses its own")
    return Symmetrized(
        as_model(model), parsed, over, chosen, views, draws, restores, check_border(border), int(random_state)
    )


def most_certain(answers: Tensor) -> Tensor:
    """Of the answers to all views (k, n, classes), take the one of the most certain view: for ``over``.

    A baseline: the certainty of a model says little about the pose of its input.

    Parameters
    ----------
    answers : (k, n, classes) tensor
        Logits or probabilities.

    Returns
    -------
    (n, classes) tensor

    Examples
    --------
    >>> most_certain(torch.tensor([[[1.0, 0.0]], [[0.0, 5.0]]]))
    tensor([[0., 5.]])
    """
    best = answers.softmax(2).amax(2).argmax(0)  # (n,)
    return answers[best, torch.arange(answers.shape[1], device=answers.device)]


def check_not_probabilities(answers: Tensor, otherwise: str) -> None:
    """Refuse an average over views of answers (k, n, classes) as logits where they are none; ``otherwise`` advises."""
    if answers.ndim < 3:
        raise ValueError(
            f"an average of probabilities needs answers (n, classes), got {tuple(answers.shape[1:])}; {otherwise}"
        )
    sums = answers.sum(2)
    if answers.shape[2] > 1 and (answers >= 0).all() and ((sums - 1).abs() < 1e-4).all():
        raise ValueError(
            f"the model already returns probabilities; say so with as_model(model, gives='probabilities'), "
            f"or {otherwise}"
        )
