"""Train a canonicalizer on images of one's own; no labels are needed.

The images are taken to be in the orientation that the model was trained for. Copies of them are moved by random
elements of the group, and the canonicalizer learns to tell by which: this is the prior towards the training
orientation. With a model, the scorer also learns at which poses that model gives the right answer, so that it spends
nothing on images whose pose does not matter.
"""

import hashlib
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from unpose.adapt.canonicalizers import as_images, moments
from unpose.adapt.learned import Learned, Regress, learned
from unpose.adapt.views import View, check_border, resampled
from unpose.audit import as_model, check_model, evaluation
from unpose.groups import FiniteGroup, Group, LieGroup, parse_continuous, reflection, rotation, transform, translation
from unpose.train.state import State, load_state_if_any, save_state

Progress = Callable[[str, int, int], None]
_UNMOVED = 0.25
"""Share of training images that are only mirrored or turned by quarters: inputs without traces of interpolation."""
_ROUNDS = 3
"""Times that images of unknown pose are aligned again with the canonicalizer learnt so far."""
_SAVES = 20
"""Times that the state of a training is saved, evenly spread."""
_FINGERPRINTED = 1000
"""About so many images identify the training images in a saved state."""


def fit_canonicalizer(
    model: Any,
    images: ArrayLike | Tensor,
    labels: ArrayLike | Tensor | None = None,
    *,
    group: str | Group = "so2",
    canonicalizer: Learned | Regress | None = None,
    distort: str | Group | None = None,
    mirrors: bool = False,
    upright: bool = True,
    steps: int = 1000,
    batch_size: int = 128,
    learning_rate: float = 4e-3,
    border: str = "zero",
    device: str | torch.device = "cpu",
    random_state: int = 0,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Learned | Regress:
    """Train a canonicalizer on images, for a given model or for any.

    Parameters
    ----------
    model : object or None
        What :func:`as_model` takes, a classifier. A scorer of a finite group then also learns at which poses this model
        is right. It is only called, never changed.
    images : (n, h, w) or (n, h, w, c) array, or (n, c, h, w) tensor
        Training images, in the orientation of the images that the model was trained on.
    labels : (n,) integers, optional
        The classes of the images; by default what the model answers to them.
    group : str or Group, default "so2"
        For :func:`learned`, if no canonicalizer is given.
    canonicalizer : Learned or Regress, optional
        The canonicalizer to train, which is changed; by default a new ``learned(group, channels)``.
    distort : str or Group, optional
        A continuous group, such as "affine", whose random elements distort the images of a scorer of rotations, so
        that it finds rotations of distorted images too.
    mirrors : bool, default False
        Also show mirrored copies of the images as upright ones: right for photographs, wrong for letters.
    upright : bool, default True
        Whether the images are upright. If not, they are first aligned by their moments, and twice more with what was
        learnt from that.
    steps : int, default 1000
        Training steps.
    batch_size : int, default 128
        Images per step.
    learning_rate : float, default 4e-3
        Largest learning rate of AdamW; it rises linearly over a tenth of the steps and falls as a cosine.
    border : {"zero", "reflect", "replicate"}, default "zero"
        What lies outside the image.
    device : str or torch.device, default "cpu"
        Where to train. The canonicalizer stays there.
    random_state : int, default 0
        Seed of the batches, the poses and, for a new canonicalizer, of its weights.
    checkpoint : path-like, optional
        A file in which the state is saved twenty times during the training, and from which an interrupted training
        with the same arguments continues. On the same CPU and number of threads the result then equals that of an
        uninterrupted training bit for bit. The file stays; a finished one returns its canonicalizer at once.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.

    Returns
    -------
    Learned or Regress
        The trained canonicalizer, in evaluation mode.

    Examples
    --------
    >>> bars = torch.zeros(16, 1, 16, 16); bars[..., 3:13, 7:9] = 1; bars[..., 3:5, 7:12] = 1
    >>> _ = torch.manual_seed(0)
    >>> small = learned("c4", 1, width=3, stages=(1, 1))
    >>> scorer = fit_canonicalizer(None, bars, canonicalizer=small, steps=15, batch_size=16, learning_rate=0.02)
    >>> pose = scorer(bars[:1].rot90(1, (2, 3)))
    >>> pose.element[0, 0].int().tolist()  # turns it back
    [0, -1, 0]
    """
    batch = as_images(images).to(device, torch.float32)
    if steps < 1 or batch_size < 1 or len(batch) < 2:
        raise ValueError(f"at least 2 images and 1 step are needed, got {len(batch)} images and {steps} steps")
    check_border(border)
    if canonicalizer is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(random_state))
            canonicalizer = learned(group, batch.shape[1], width=8)
    canonicalizer.to(device).train()
    task = (
        _RegressionTask(canonicalizer, border)
        if isinstance(canonicalizer, Regress)
        else _ScoringTask(canonicalizer, distort, mirrors, border)
    )
    rounds = 1 if upright else _ROUNDS
    training = _Training(canonicalizer, task, max(1, steps // rounds), batch_size, learning_rate, random_state)
    # Poses that images were aligned with belong to the state: they come from weights that have changed since.
    extra = {} if upright else {"poses": torch.eye(3).repeat(len(batch), 1, 1).to(batch)}
    state = State(cast(Any, canonicalizer), training.optimizer(), None, extra=extra)
    identity = {
        "settings": f"{type(canonicalizer).__name__}({canonicalizer.extra_repr()}), {rounds}, {steps}, {batch_size}, "
        f"{learning_rate}, {distort}, {mirrors}, {border}, {random_state}",
        "data": _fingerprint(batch, None if labels is None else torch.as_tensor(labels)),
    }
    path = None if checkpoint is None else Path(checkpoint)
    if path is not None:
        load_state_if_any(path, state, identity)
    with torch.random.fork_rng(devices=[batch.device] if batch.device.type == "cuda" else []):
        while state.step < (total := rounds * training.steps):
            if state.step % training.steps == 0 and not upright:
                _align(batch, canonicalizer if state.step else None, state.extra["poses"])
                state.optimizer = training.optimizer()
            aligned = batch if upright else _resampled_in_parts(batch, state.extra["poses"], border)
            table = _answers_by_pose(model, aligned, labels, canonicalizer, border)
            canonicalizer.train()
            for _ in range(training.steps - state.step % training.steps):
                training.step(state, aligned, table)
                if path is not None and (state.step == total or state.step % max(1, total // _SAVES) == 0):
                    save_state(path, state, identity)
                if progress is not None:
                    progress("canonicalizer", state.step, total)
    return canonicalizer.eval()


@dataclass(frozen=True)
class _Training:
    """What does not change from step to step. Random numbers are functions of the seed and of the step's number."""

    canonicalizer: Learned | Regress
    task: "_ScoringTask | _RegressionTask"
    steps: int  # of one round
    batch_size: int
    learning_rate: float
    seed: int

    def optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.canonicalizer.parameters(), lr=self.learning_rate, weight_decay=0.05)

    def step(self, state: State, images: Tensor, table: Tensor | None) -> None:
        """One step of the optimizer."""
        seed = int(np.random.SeedSequence([self.seed, state.step]).generate_state(1, np.uint64)[0] >> np.uint64(1))
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)  # for dropout
        done = (state.step % self.steps + 1) / self.steps
        rate = self.learning_rate * min(done / 0.1, 0.5 * (1 + math.cos(math.pi * max(0.0, done - 0.1) / 0.9)))
        for part in state.optimizer.param_groups:
            part["lr"] = max(rate, 1e-3 * self.learning_rate)
        chosen = torch.randint(len(images), (min(self.batch_size, 4 * len(images)),), generator=generator)
        chosen = chosen.to(images.device)
        loss = self.task.loss(images[chosen], None if table is None else table[chosen], generator)
        if not torch.isfinite(loss):
            raise ValueError(f"the training of the canonicalizer diverged at step {state.step}; lower learning_rate")
        state.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        state.optimizer.step()
        state.step += 1


def check_labels(labels: Tensor, count: int) -> None:
    """Refuse labels (n,) that do not number the ``count`` scores of a model from 0."""
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= count:
        raise ValueError(
            f"labels must be numbers of the model's {count} scores, from 0 to {count - 1}, got {low} to {high}"
            + ("; subtract 1 from labels that are counted from 1" if low == 1 and high == count else "")
        )


def _fingerprint(images: Tensor, labels: Tensor | None) -> str:
    """Hash all labels and up to about a thousand images, so that a changed set is noticed."""
    digest = hashlib.sha256(repr(tuple(images.shape)).encode())
    digest.update(images[:: max(1, len(images) // _FINGERPRINTED)].cpu().contiguous().numpy().tobytes())
    if labels is not None:
        digest.update(labels.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


class _ScoringTask:
    """Rotated and mirrored copies of images, and the loss of a scorer on them."""

    def __init__(self, scorer: Learned, distort: str | Group | None, mirrors: bool, border: str) -> None:
        self.scorer, self.mirrors, self.border = scorer, mirrors, border
        self.distort = None if distort is None else parse_continuous(distort)

    def loss(self, images: Tensor, table: Tensor | None, generator: torch.Generator) -> Tensor:
        angles, signs = self._draw(len(images), generator)
        poses = rotation(angles) @ _whole_pixel_shifts(len(images), min(images.shape[-2:]) // 12, generator)
        if self.distort is not None:
            poses = poses @ _distortions(self.distort, len(images), min(images.shape[-2:]), generator)
        poses = torch.where(signs[:, None, None] < 0, poses @ reflection(poses.dtype), poses)
        if self.mirrors:
            flipped = torch.rand(len(images), generator=generator) < 0.5
            poses = torch.where(flipped[:, None, None], poses @ reflection(poses.dtype), poses)
        moved = _relit(resampled(images, poses.to(images), self.border), generator)
        angles, signs = angles.to(images), signs.to(images)
        with _half_precision(images):
            log_weights, centres, concentrations = self.scorer.posterior(moved)
        prior = -self.scorer.log_density(log_weights, centres, concentrations, angles[:, None], signs[:, None]).mean()
        if table is None:
            return prior
        # Element h of the scorer shows the model the view h^-1 g; the table has its answers by this element.
        relative = self._relative(angles, signs)  # (n, order)
        right = table.gather(1, relative).clamp(min=1e-6).log()
        return 0.5 * prior - 0.5 * (log_weights + right).logsumexp(1).mean()

    def _draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Angles (n,) and signs (n,) of random poses."""
        choice = torch.randint(self.scorer.group.order, (n,), generator=generator)
        angles, signs = torch.tensor(self.scorer.angles)[choice], torch.tensor(self.scorer.signs)[choice]
        if not self.scorer.continuous:
            return angles, signs
        free = (2 * torch.rand(n, generator=generator) - 1) * math.pi
        quarters = torch.randint(4, (n,), generator=generator) * (math.pi / 2)
        return torch.where(torch.rand(n, generator=generator) < _UNMOVED, quarters, free), signs

    def _relative(self, angles: Tensor, signs: Tensor) -> Tensor:
        """Index (n, order) of h^-1 g in the group, for the poses g of the images and every element h."""
        group = self.scorer.group
        own_angles, own_signs = (torch.tensor(part).to(angles) for part in (self.scorer.angles, self.scorer.signs))
        near = (angles[:, None] - own_angles).cos().masked_fill(signs[:, None] != own_signs, -2)
        g = near.argmax(1).cpu()
        return group.product[group.inverse][:, g].T.to(angles.device)


class _RegressionTask:
    """Copies of images moved by up to 20 degrees, and how far a regression fails to bring their points back."""

    def __init__(self, regression: Regress, border: str) -> None:
        self.regression, self.border = regression, border

    def loss(self, images: Tensor, table: Tensor | None, generator: torch.Generator) -> Tensor:
        side = min(images.shape[-2:])
        poses = self.regression.group.random(
            len(images), generator=generator, max_shift=side / 10, max_angle=0.35, max_scale=1.25, max_stretch=1.3
        ).to(images)
        moved = resampled(images, poses, self.border)
        corner = side / 4
        points = images.new_tensor([[x, y] for x in (-corner, 0.0, corner) for y in (-corner, 0.0, corner)])
        with _half_precision(images):
            coordinates = self.regression.coordinates(moved)
        back = transform(self.regression.pose_of(coordinates, side) @ poses, points.expand(len(images), -1, -1))
        return (back - points).square().mean() / corner**2


def _whole_pixel_shifts(n: int, reach: int, generator: torch.Generator) -> Tensor:
    """Random shifts (n, 3, 3), against learning training images by heart; whole pixels need no interpolation."""
    return translation(torch.randint(-reach, reach + 1, (n, 2), generator=generator).float())


def _relit(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images with contrast and brightness changed at random, by up to a fifth."""
    gain, offset = (0.4 * torch.rand(2, len(images), generator=generator) - 0.2)[:, :, None, None, None].to(images)
    return images * (1 + gain) + 0.5 * offset


def _half_precision(images: Tensor) -> torch.autocast:
    """bfloat16 for the network on a GPU; poses and resampling stay in float32."""
    return torch.autocast(images.device.type, torch.bfloat16, enabled=images.device.type == "cuda")


def _distortions(group: LieGroup, n: int, side: int, generator: torch.Generator) -> Tensor:
    """Random elements of a group without rotation, (n, 3, 3): they distort an image before it is rotated."""
    return group.random(n, generator=generator, max_angle=0.0, max_shift=side / 12, max_scale=1.25, max_stretch=1.3)


def _align(images: Tensor, canonicalizer: Learned | Regress | None, poses: Tensor) -> None:
    """Write the poses (n, 3, 3) that align images, by what was learnt so far or, at first, by their moments."""
    finder = moments("so2") if canonicalizer is None else canonicalizer
    with evaluation(finder):
        for part, found in zip(images.split(256), poses.split(256), strict=True):
            found.copy_(finder(part).element)


def _resampled_in_parts(images: Tensor, poses: Tensor, border: str) -> Tensor:
    parts = zip(images.split(256), poses.split(256), strict=True)
    return torch.cat([resampled(part, own, border) for part, own in parts])


def _answers_by_pose(
    model: Any, images: Tensor, labels: ArrayLike | Tensor | None, canonicalizer: Learned | Regress, border: str
) -> Tensor | None:
    """Probability that a model gives to the right class of each image, by element: (n, order), or None."""
    if model is None or isinstance(canonicalizer, Regress):
        return None
    wrapped = as_model(model)
    check_model(wrapped, images[:8])
    group: FiniteGroup = canonicalizer.group
    classes = None if labels is None else torch.as_tensor(labels).to(images.device)
    found = []
    with evaluation(wrapped):
        for start in range(0, len(images), 256):
            part = images[start : start + 256]
            answers = [wrapped(View.at(pose).of(part, border)) for pose in group.elements]
            if answers[0].ndim != 2:
                return None  # not a classifier: the prior alone
            if classes is not None:
                check_labels(classes, answers[0].shape[1])
            chances = [a if wrapped.gives == "probabilities" else a.float().softmax(1) for a in answers]
            own = chances[0].argmax(1) if classes is None else classes[start : start + 256]
            found.append(torch.stack([chance.gather(1, own[:, None].long())[:, 0] for chance in chances], dim=1))
    return torch.cat(found).float()
