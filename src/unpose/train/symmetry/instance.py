"""Augmentation with a range of poses for each image, as wide as its class allows.

After Miao et al., "Learning Instance-Specific Augmentations by Capturing Local Invariances" (ICML 2023).
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from unpose.groups import FiniteGroup
from unpose.train.objective import Forward
from unpose.train.processes import Processes, sum_gradients
from unpose.train.symmetry.base import Bounds, Candidate, LearnedSymmetry, Losses, at_poses

_SIDE = 14
"""Images are averaged to this many pixels on each side before their range is predicted."""
_RATE = 1e-3
"""Learning rate of the range network (Adam)."""
_DUAL_RATE = 0.02
"""Step of the dual ascent on the entropy constraint."""
_MEMORY = 0.99
"""Decay of the running means by class."""
_SMALLEST = 1e-3
_PULL = 0.01
"""Weight of the squared logits, which keeps those of full ranges finite."""


class InstanceAugment(LearnedSymmetry):
    """Train on images at random poses within a range that a small network predicts for each image.

    Parameters
    ----------
    group : str
        Name of a continuous group without mirror, such as ``"so2"``.
    in_channels : int, default 1
        Channels of the images.
    n_classes : int, default 10
        Number of classes, for the ranges by class.
    spread : float, default 0.5
        Geometric mean of the ranges over the images, as a share of the bounds, that the entropy constraint asks for.
    bounds : Bounds, optional
        The widest ranges.

    Notes
    -----
    Each coordinate of the Lie algebra is uniform within plus or minus its range ``r``. The derivative of the mean loss
    with respect to ``log r`` is the loss at the ends of the range less the mean loss. Both are losses of forward
    passes, so that no gradient of the resampling, which is noisy, is needed. Without a constraint ranges would shrink
    to zero: the mean logarithm of the ranges, their entropy up to a constant, must reach ``log(spread)``. Its
    multiplier is found by dual ascent, and is the loss by which the ends of every range exceed its mean. So ranges are
    wide where moving an image does not change its class, and narrow where it does. Images are learned as they are, too;
    all poses are evaluated in one batch, and a step costs ``2 + dim`` times a plain one.

    Examples
    --------
    >>> InstanceAugment("so2").ranges(torch.rand(3, 1, 9, 9)).shape
    torch.Size([3, 1])
    """

    limits: Tensor
    multiplier: Tensor
    sums: Tensor
    class_sums: Tensor
    moments: Tensor
    steps: Tensor

    def __init__(
        self, group: str, in_channels: int = 1, n_classes: int = 10, spread: float = 0.5, bounds: Bounds | None = None
    ) -> None:
        super().__init__()
        self.candidate = Candidate(group, bounds or Bounds())
        if isinstance(self.candidate.group, FiniteGroup):
            raise ValueError(f"ranges are learned for continuous groups such as so2, got {group!r}")
        self.group = self.candidate.group
        if not 0 < spread < 1:
            raise ValueError(f"spread must be above 0 and below 1, got {spread}")
        self.target = math.log(spread)
        last = nn.Linear(64, self.group.dim)
        nn.init.zeros_(last.weight)
        nn.init.constant_(last.bias, math.log(spread / (1 - spread)))  # all images begin with the range asked for
        # A step that widens or narrows all ranges alike must not switch the hidden units off: ranges would stay equal.
        self.network = nn.Sequential(
            nn.Conv2d(in_channels, 16, 3, padding=1), nn.GELU(), nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GELU(),
            nn.Flatten(), nn.Linear(32 * 7 * 7, 64), nn.LayerNorm(64), nn.GELU(), last,
        )  # fmt: skip
        size = sum(parameter.numel() for parameter in self.network.parameters())
        self.register_buffer("limits", torch.tensor(self.candidate.limits))
        self.register_buffer("multiplier", torch.tensor(0.1))
        self.register_buffer("sums", torch.zeros(2))  # log ranges; number of images
        self.register_buffer("class_sums", torch.zeros(n_classes, 1 + self.group.dim))  # number of images; ranges
        self.register_buffer("moments", torch.zeros(2, size))  # of Adam
        self.register_buffer("steps", torch.zeros(()))

    def ranges(self, images: Tensor) -> Tensor:
        """Return the range of each Lie coordinate, (b, dim), for images (b, c, h, w): radians, pixels, log of scale."""
        return torch.sigmoid(self._logits(images)) * self.limits

    def _logits(self, images: Tensor) -> Tensor:
        """Logits of the ranges as shares of the limits, (b, dim)."""
        logits: Tensor = self.network(adaptive_avg_pool2d(images, _SIDE))
        return logits

    def forward(self, network: Forward, images: Tensor, labels: Tensor, losses: Losses) -> tuple[Tensor, Tensor]:
        """Return the outputs for the images, (b, classes), and the Lagrangian, summed over the images."""
        self.zero_grad(set_to_none=True)
        logits = self._logits(images)  # (b, dim)
        shares = torch.sigmoid(logits.detach())
        ranges = shares * self.limits
        places = [2 * torch.rand_like(shares) - 1]  # inside the ranges, from -1 to 1
        for k in range(self.group.dim):  # the same with one coordinate at an end of its range
            end = places[0].clone()
            end[:, k] = torch.where(torch.rand_like(end[:, k]) < 0.5, -1.0, 1.0)
            places.append(end)
        posed = [at_poses(images, self.group.exp(place * ranges)) for place in places]
        outputs = network(torch.cat([images, *posed]))
        plain, inside, *ends = losses(outputs, labels.repeat(1 + len(posed))).split(len(images))  # (b,) each
        slope = (torch.stack(ends, dim=1) - inside[:, None]).detach()  # (b, dim)
        with torch.no_grad():
            self.sums.copy_(
                torch.stack([shares.clamp_min(_SMALLEST).log().mean(1).sum(), torch.full_like(plain[0], len(images))])
            )
            ones = torch.ones_like(shares[:, :1])
            self.class_sums.mul_(_MEMORY).index_add_(0, labels, torch.cat([ones, ranges], dim=1))
        # The derivatives with respect to the logarithms of the ranges are applied to the logits: those of the logits
        # vanish where a range is full, from where it could not come back.
        descent = (slope - self.multiplier) * logits + _PULL * logits.square()
        return outputs[: len(images)], (plain + inside).sum() + descent.sum()

    @torch.no_grad()
    def adjust(self, processes: Processes | None = None) -> None:
        """Take a step of Adam on the range network, and of dual ascent on the entropy constraint."""
        sum_gradients(self.network, processes or Processes())
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.network.parameters()]
        gradient = torch.cat([each.flatten() for each in gradients])
        self.steps.add_(1)
        self.moments[0].lerp_(gradient, 0.1)
        self.moments[1].lerp_(gradient.square(), 0.001)
        mean, square = self.moments[0] / (1 - 0.9**self.steps), self.moments[1] / (1 - 0.999**self.steps)
        step = _RATE * mean / (square.sqrt() + 1e-8)
        sizes = [parameter.numel() for parameter in self.network.parameters()]
        for parameter, change in zip(self.network.parameters(), step.split(sizes), strict=True):
            parameter.sub_(change.view_as(parameter))
        summed = (processes or Processes()).sum(self.sums.clone())
        self.multiplier.add_(_DUAL_RATE * (self.target - summed[0] / summed[1])).clamp_(0.0, 10.0)

    def strengths(self) -> dict[str, Any]:
        """Return the mean range of each class, by coordinate: degrees, pixels, factors."""
        means = self.class_sums[:, 1:] / self.class_sums[:, :1].clamp_min(1e-6)  # (classes, dim)
        found = {}
        for each, values in zip(self.group.coordinates, means.T.tolist(), strict=True):
            plain = {"turn": math.degrees, "log scale": math.exp}.get(each.name, float)
            found["scale" if each.name == "log scale" else each.name] = [round(plain(value), 3) for value in values]
        return {"method": "instance", "ranges_by_class": found, "multiplier": round(float(self.multiplier), 4)}
