"""Try what can make a given model invariant on a set of images, and say what is worth its cost."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from unpose.adapt.canonicalize import canonicalize, gate_threshold
from unpose.adapt.canonicalizers import as_images
from unpose.adapt.fitting import check_labels, fit_canonicalizer
from unpose.adapt.learned import learned
from unpose.adapt.symmetrize import symmetrize
from unpose.adapt.views import View
from unpose.audit import ImageModel, as_model, check_model, evaluation
from unpose.discover import AUTO, discover_group
from unpose.groups import FiniteGroup, Group, parse

LEAST_FOR_TRAINING = 60
"""Images from which on a canonicalizer is trained: half of them train it and set its gate, half measure it."""
_GATE_EVERY = 4
"""Of the images that do not measure, every so many-th sets the gate: a scorer is surer of images it was trained on."""
_CLOSE = 1.0
"""Points within which a cheaper model is preferred."""
_FAR = 5.0
"""Points below the upright images from which on training with rotated images is suggested."""


@dataclass(frozen=True)
class Trial:
    """One way to adapt a model, measured.

    Parameters
    ----------
    name : str
        What was tried; "plain" is the model as it is.
    model : torch.nn.Module
        The wrapped model.
    upright, turned : float
        Per cent of right answers, upright and as the mean over the other elements of the group. Without labels, answers
        that agree with the plain model's answers to the upright images.
    passes : float
        Calls of the model for each image.

    Examples
    --------
    >>> Trial("plain", nn.Identity(), 90.0, 50.0, 1.0).gain(Trial("mean", nn.Identity(), 89.0, 80.0, 4.0))
    29.0
    """

    name: str
    model: nn.Module
    upright: float
    turned: float
    passes: float

    @property
    def loses_turned(self) -> bool:
        """Whether turned images are more than a point worse than upright ones."""
        return self.upright - self.turned > _CLOSE

    def gain(self, other: "Trial") -> float:
        """What another trial gains on turned images, less what it loses on upright ones, in points."""
        return other.turned - self.turned - max(0.0, self.upright - other.upright)


class Trials(list[Trial]):
    """The trials of :func:`try_adaptations`, the plain model first: a list that notebooks show as a table.

    Parameters
    ----------
    iterable : iterable of Trial, default ()
        Entries of the list.

    Examples
    --------
    >>> trials = Trials([Trial("plain", nn.Identity(), 90.0, 50.0, 1.0)])
    >>> len(trials), "<td" in trials._repr_html_()
    (1, True)
    """

    def _repr_html_(self) -> str:
        from unpose.report import table_html

        columns: dict[str, list[Any]] = {
            "tried": [trial.name for trial in self],
            "upright, per cent": [trial.upright for trial in self],
            "turned, per cent": [trial.turned for trial in self],
            "calls of the model": [trial.passes for trial in self],
        }
        return table_html(columns, bars=["upright, per cent", "turned, per cent"])


def try_adaptations(
    model: Any,
    images: ArrayLike | Tensor,
    labels: ArrayLike | Tensor | None = None,
    group: str | Group = "c8",
    *,
    border: str = "reflect",
    steps: int = 600,
    random_state: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Trials:
    """Measure a model on upright and turned images, as it is and in the wrappers that apply.

    Parameters
    ----------
    model : object
        What :func:`as_model` takes, a classifier.
    images : (n, h, w) or (n, h, w, c) array, or (n, c, h, w) tensor
        Upright images. From 60 on, a canonicalizer is trained on every second of them (of which every fourth is kept
        back to set its gate), and the others measure, unless the model is as good on turned images as on upright ones.
    labels : (n,) integers, optional
        Their classes, numbered from 0 as the model's scores; by default the plain model's answers to the upright
        images count as right.
    group : str or Group, default "c8"
        A finite group, or "auto": the largest that images and labels obey, of at least 64 images
        (:func:`unpose.discover.discover_group`). If none but the identity is found, a ``ValueError`` says why.
    border : {"zero", "reflect", "replicate"}, default "reflect"
        What lies outside the image.
    steps : int, default 600
        Training steps of the canonicalizer; 0 trains none.
    random_state : int, default 0
        Seed.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.

    Returns
    -------
    Trials
        A list of :class:`Trial`; the first is the plain model.

    Examples
    --------
    >>> images = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> [trial.name for trial in try_adaptations(lambda x: x[:, 0, 0], images, group="c4")]
    ['plain', 'mean over c4']
    """
    wrapped, batch = as_model(model), as_images(images).float()
    if group == AUTO:
        found = discover_group(batch.movedim(1, -1).cpu().numpy(), labels, random_state=random_state)  # (n, h, w, c)
        group = found.finite_group
        if group == "c1":
            raise ValueError(f"group 'auto' found no turn or mirror that these images obey:\n{found}")
    parsed = parse(group)
    if not isinstance(parsed, FiniteGroup) or not parsed.is_group:
        raise ValueError(f"adaptations are tried for a finite group such as c4, c8 or d4, got {parsed}")
    answers = check_model(wrapped, batch[: min(8, len(batch))])
    if answers.ndim != 2 or answers.shape[1] < 2:
        raise ValueError(f"the model must return scores (n, classes), got shape {tuple(answers.shape)}")
    classes = _answers(wrapped, batch).argmax(1) if labels is None else torch.as_tensor(labels).long()
    if len(classes) != len(batch):
        raise ValueError(f"images and labels must be equal in number, got {len(batch)} and {len(classes)}")
    check_labels(classes, answers.shape[1])
    tested = _Views(batch, classes, parsed, border, progress)
    plain = tested.measure("plain", wrapped, 1)
    trains = steps > 0 and len(batch) >= LEAST_FOR_TRAINING and plain.loses_turned
    if trains:  # on the other half of the images
        tested = _Views(batch[1::2], classes[1::2], parsed, border, progress)
        plain = tested.measure("plain", wrapped, 1)
    trials = Trials([plain])
    mean = symmetrize(wrapped, parsed, border=border)
    trials.append(tested.measure(f"mean over {parsed}", mean, mean.passes))
    if trains:
        channels, side = batch.shape[1], min(batch.shape[-2:])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(random_state)
            fresh = learned(parsed, channels, size=min(32, side), dropout=0.1)
        rows = torch.arange(0, len(batch), 2)
        gates = torch.arange(len(rows)) % _GATE_EVERY == _GATE_EVERY - 1
        scorer = fit_canonicalizer(
            wrapped, batch[rows[~gates]], classes[rows[~gates]], canonicalizer=fresh, steps=steps, batch_size=64,
            border=border, random_state=random_state, progress=progress,
        )  # fmt: skip
        gate = gate_threshold(scorer, batch[rows[gates]])
        trials.append(tested.measure("learned", canonicalize(wrapped, scorer, border=border), 1))
        trials.append(tested.measure("learned, gate", canonicalize(wrapped, scorer, gate, border=border), 1))
        two = canonicalize(wrapped, scorer, views=2, border=border)
        trials.append(tested.measure("learned, 2 views", two, 2))
    return trials


def recommend(trials: list[Trial]) -> tuple[Trial, str]:
    """Choose a trial: the largest net gain, or a cheaper one within a point of it, such as the plain model.

    Parameters
    ----------
    trials : list of Trial
        The first is the plain model.

    Returns
    -------
    Trial
        The recommended one.
    str
        Why.

    Examples
    --------
    >>> plain = Trial("plain", nn.Identity(), 90.0, 50.0, 1.0)
    >>> recommend([plain, Trial("mean", nn.Identity(), 40.0, 60.0, 4.0)])[0].name
    'plain'
    >>> print(recommend([plain, Trial("learned", nn.Identity(), 89.0, 88.0, 1.0)])[1])
    'learned' has 88.0 % on turned images (plain: 50.0 %) and 89.0 % on upright ones (plain: 90.0 %).
    """
    plain = trials[0]
    best = max(plain.gain(trial) for trial in trials)
    close = [trial for trial in trials if plain.gain(trial) >= best - _CLOSE]
    chosen = min(close, key=lambda trial: (trial is not plain, trial.passes, -plain.gain(trial)))
    if chosen is plain and not plain.loses_turned:
        return plain, "The model needs no adapting: it is about as good on turned images as on upright ones."
    if chosen is plain:
        return plain, (
            "Nothing that was tried gains clearly more on turned images than it loses on upright ones; training with "
            "rotated images would be better."
        )
    why = (
        f"'{chosen.name}' has {chosen.turned:.1f} % on turned images (plain: {plain.turned:.1f} %) and "
        f"{chosen.upright:.1f} % on upright ones (plain: {plain.upright:.1f} %)."
    )
    if plain.upright - chosen.turned > _FAR:
        why += (
            f" Turned images stay {plain.upright - chosen.turned:.1f} points below upright ones: try again with more "
            "images, or train the model with rotated ones."
        )
    return chosen, why


class _Views:
    """Upright images and all their turned views, on which models are measured."""

    def __init__(
        self, images: Tensor, classes: Tensor, group: FiniteGroup, border: str,
        progress: Callable[[str, int, int], None] | None,
    ) -> None:  # fmt: skip
        self._images, self._classes, self._border, self._progress = images, classes, border, progress
        self._views = [View.at(pose) for pose in group.elements]

    def measure(self, name: str, model: nn.Module, passes: float) -> Trial:
        shares = []
        for i, view in enumerate(self._views):
            right = _answers(model, view.of(self._images, self._border)).argmax(1) == self._classes
            shares.append(100 * float(right.float().mean()))
            if self._progress is not None:
                self._progress(f"measure {name}", i + 1, len(self._views))
        turned = shares[1:] or shares
        return Trial(name, model, shares[0], sum(turned) / len(turned), passes)


def _answers(model: ImageModel | nn.Module, images: Tensor) -> Tensor:
    with evaluation(model):
        return torch.cat([model(part) for part in images.split(64)])
