"""Put a canonicalizer in front of a model: bring each image to its canonical pose, and answer for that."""

import math
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from unpose.adapt.canonicalizers import Canonicalizer, as_images
from unpose.adapt.poses import Pose, restore_maps
from unpose.adapt.symmetrize import DENSE, check_not_probabilities
from unpose.adapt.views import check_border, resampled
from unpose.audit import ImageModel, ModelCall, as_model, evaluation
from unpose.compiled import is_traced_or_transformed
from unpose.nn import Network

_KEPT = 0.98
"""Share of upright images that a gate set from examples leaves alone."""


class Canonicalized(nn.Module):
    """A model with a canonicalizer in front of it; made by :func:`canonicalize`.

    Parameters
    ----------
    model : ImageModel
        The model.
    canonicalizer : Canonicalizer
        Finds the poses.
    gate : float or None
        Gain above which an image is moved; None moves every image.
    views : int
        Number of poses that are averaged over where the margin is small.
    doubt : float or None
        Margin below which several poses are used; None uses them for every image.
    restores : str or None
        Kind of dense answers, which are carried back.
    border : str
        What lies outside the image.

    Examples
    --------
    >>> from unpose.adapt import moments
    >>> model = canonicalize(lambda images: images.amax((2, 3)), moments("so2"))
    >>> answer, pose = model.with_pose(torch.rand(2, 3, 8, 8))
    >>> answer.shape, pose.element.shape
    (torch.Size([2, 3]), torch.Size([2, 3, 3]))
    """

    def __init__(
        self,
        model: ImageModel,
        canonicalizer: Canonicalizer,
        gate: float | None,
        views: int,
        doubt: float | None,
        restores: str | None,
        border: str,
    ) -> None:
        super().__init__()
        self.model, self.canonicalizer = model, canonicalizer
        self.gate, self.views, self.doubt, self.restores, self.border = gate, views, doubt, restores, border
        self.training = model.training

    def extra_repr(self) -> str:
        return f"gate={self.gate}, views={self.views}, doubt={self.doubt}, border={self.border!r}"

    def forward(self, images: Any) -> Any:
        """(n, c, h, w) tensor -> tensor, or (n, h, w) or (n, h, w, c) array -> array"""
        return self.with_pose(images)[0]

    def pose(self, images: ArrayLike | Tensor) -> Pose:
        """The poses at which the model is called: the identity where the gate leaves an image alone."""
        batch = as_images(images)
        found: Pose = self.canonicalizer(batch)
        return found if self.gate is None else found.gated(self.gate)

    def with_pose(self, images: Any) -> tuple[Any, Pose]:
        """The answers together with the poses they were given at; dense answers are already carried back."""
        batch, call = self.model.on(images)
        pose = self.pose(batch)
        answer = self._answer(batch, pose, call)
        return answer if isinstance(images, Tensor) else answer.detach().cpu().numpy(), pose

    @property
    def passes(self) -> int:
        """Largest number of calls of the model for an image, without the canonicalizer's own."""
        return self.views

    def views_of(self, images: Tensor) -> list[Tensor]:
        """The canonical images (n, c, h, w) that the model is called with, one batch for each of the best poses."""
        pose = self.pose(images)
        return [self._upright(images, pose.best_of(k)) for k in range(self.views)]

    def combine(self, answers: Tensor) -> Tensor:
        """The mean of the answers to all views: (views, n, ...) -> (n, ...)

        Logits are averaged as probabilities, and keep their mean level: where views agree, that is the answer itself.
        """
        if self.views == 1:
            return answers[0]
        if self.model.gives == "probabilities" or self.restores is not None:
            return answers.mean(0)
        if not is_traced_or_transformed():
            check_not_probabilities(answers, "leave views at 1")
        return answers.log_softmax(2).logsumexp(0) - math.log(self.views) + answers.logsumexp(2, keepdim=True).mean(0)

    def _answer(self, images: Tensor, pose: Pose, call: ModelCall) -> Tensor:
        best = self._answer_at(images, pose.element, call)
        if self.views == 1:
            return best
        if self.doubt is None:
            others = [self._answer_at(images, pose.best_of(k), call) for k in range(1, self.views)]
            return self.combine(torch.stack([best, *others]))
        if is_traced_or_transformed():
            raise ValueError("the number of doubtful images is not known while torch traces: export with doubt=None")
        moved = torch.ones_like(pose.gain, dtype=torch.bool) if self.gate is None else pose.gain > self.gate
        doubtful = ((pose.margin < self.doubt) & moved).nonzero()[:, 0]
        if len(doubtful) == 0:
            return best
        others = [self._answer_at(images[doubtful], pose.best_of(k)[doubtful], call) for k in range(1, self.views)]
        return best.index_copy(0, doubtful, self.combine(torch.stack([best[doubtful], *others])))

    def _answer_at(self, images: Tensor, elements: Tensor, call: ModelCall) -> Tensor:
        answer = call(self._upright(images, elements))
        if self.restores is None:
            return answer
        return torch.where(_stays(elements), answer, restore_maps(answer, elements, self.restores, images))

    def _upright(self, images: Tensor, elements: Tensor) -> Tensor:
        # Images that stay are taken as they are, so that their answers are bit-equal to those of the model.
        return torch.where(_stays(elements), images, resampled(images, elements, self.border))


def canonicalize(
    model: Any,
    canonicalizer: Canonicalizer,
    gate: float | ArrayLike | Tensor | None = None,
    *,
    views: int = 1,
    doubt: float | None = None,
    restores: str | None = None,
    border: str = "zero",
) -> Canonicalized:
    """Put a canonicalizer in front of any model, so that moved inputs get the answer of the upright one.

    Parameters
    ----------
    model : object
        What :func:`as_model` takes: a torch module, the path of an ONNX file, an estimator or a function.
    canonicalizer : Canonicalizer
        :func:`moments`, :func:`search`, :func:`energy`, :func:`coordinates`, a trained :func:`learned` or
        :func:`regress`, or :func:`iterate` around them.
    gate : float or images, optional
        Leave an input as it is unless the gain in score is above this number. Images are taken as examples of upright
        inputs, 98 % of which the gate shall leave alone. By default every input is moved.
    views : int, default 1
        Average the answers over this many of the best poses, at one more call each. Answers are then maps, with
        ``restores``, or scores of classes (n, classes), of which the probabilities are averaged; what is returned are
        again logits on the scale of the model's own.
    doubt : float, optional
        Use several views only for inputs whose margin is below this number. Such a model cannot be exported.
    restores : {"image", "mask", "vectors"}, optional
        The answers are maps (n, c, h, w), which are carried back to the frame of the input.
    border : {"zero", "reflect", "replicate"}, default "zero"
        What lies outside the image; for photographs "reflect" avoids black corners.

    Returns
    -------
    Canonicalized
        A torch module that is called as the model is. ``with_pose(images)`` also returns the poses.

    Notes
    -----
    Canonical poses jump: no canonicalizer of rotations is continuous. The margin of a pose says how near the jump is.

    Examples
    --------
    >>> from unpose.adapt import search
    >>> upright = torch.zeros(1, 1, 16, 16); upright[..., 4:12, 6:9] = 1; upright[..., 10:12, 6:12] = 1
    >>> model = lambda images: images.mean(2).flatten(1)
    >>> adapted = canonicalize(model, search(upright, group="so2"), gate=0.5)
    >>> torch.equal(adapted(upright), model(upright))
    True
    >>> bool((adapted(upright.rot90(1, (2, 3))) - model(upright)).abs().max() < 0.01)
    True
    """
    if not isinstance(canonicalizer, Canonicalizer):
        raise ValueError(f"a canonicalizer such as moments('se2') is needed, got {type(canonicalizer).__name__}")
    if restores not in (None, *DENSE):
        raise ValueError(f"restores must be one of {', '.join(map(repr, DENSE))}, or left out, got {restores!r}")
    if not 1 <= views <= 4:
        raise ValueError(f"views must be from 1 to 4, got {views}")
    if doubt is not None and views == 1:
        raise ValueError("doubt says which inputs get several views: set views to 2 or more")
    wrapped = as_model(model)
    kind = wrapped.model.description.get("head", "classes") if isinstance(wrapped.model, Network) else "classes"
    if views > 1 and restores is None and kind != "classes":
        raise ValueError("several views are averaged as scores of classes, which this network does not give: views=1")
    threshold = gate if gate is None or isinstance(gate, int | float) else gate_threshold(canonicalizer, gate)
    return Canonicalized(wrapped, canonicalizer, threshold, views, doubt, restores, check_border(border))


def _stays(elements: Tensor) -> Tensor:
    """Which poses (n, 3, 3) are the identity: (n, 1, 1, 1) bool."""
    return (elements == torch.eye(3, dtype=elements.dtype, device=elements.device)).all(2).all(1)[:, None, None, None]


def gate_threshold(canonicalizer: Canonicalizer, upright: ArrayLike | Tensor, kept: float = _KEPT) -> float:
    """The gain that a share of upright images stays below: what ``canonicalize(..., gate=...)`` takes.

    Parameters
    ----------
    canonicalizer : Canonicalizer
        Finds the poses.
    upright : (n, h, w) or (n, h, w, c) array, or (n, c, h, w) tensor
        Upright images that the canonicalizer was not trained on.
    kept : float, default 0.98
        Share of them that the gate leaves alone.

    Returns
    -------
    float

    Examples
    --------
    >>> from unpose.adapt import moments
    >>> gate_threshold(moments("so2"), torch.rand(9, 1, 8, 8)) >= 0
    True
    """
    if not 0 < kept <= 1:
        raise ValueError(f"kept must be a share above 0 and at most 1, got {kept}")
    images = as_images(upright)
    with evaluation(canonicalizer):
        gains = torch.cat([canonicalizer(part).gain for part in images.split(256)])
    return float(gains.double().quantile(kept))
