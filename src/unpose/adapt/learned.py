"""Canonicalizers that are trained: an equivariant scorer of rotations, and a regression of any pose.

The scorer is a group convolution network. Its features on the group, averaged over the pixels, give each element h of
a finite group a probability p_h; for a continuous group also a small correction d_h and a concentration k_h. Together
they are a posterior of the pose, a mixture of von Mises distributions,

    p(angle) = sum_h p_h VM(angle; angle_h + d_h, k_h).

Because the network is equivariant, a rotated image has the rotated posterior: this holds exactly for quarter turns, and
to interpolation for the other elements.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, softplus

from unpose.adapt.canonicalizers import Canonicalizer, are_different, pose_from_scores
from unpose.adapt.poses import Pose
from unpose.adapt.views import disc, erased, no_larger, resampled
from unpose.groups import FiniteGroup, Group, LieGroup, cyclic, dihedral, inverse, parse, reflection, rotation
from unpose.nn import PointwiseLinear, group_cnn

_LEAST_CONCENTRATION = 8.0
"""A component of the posterior is at least as narrow as one of eight directions."""


class Learned(Canonicalizer):
    """An equivariant scorer of rotations and mirrors, one pass of a small network; made by :func:`learned`.

    Parameters
    ----------
    group : FiniteGroup
        The elements that are scored.
    continuous : bool
        Whether each element has a correction of its angle.
    in_channels : int
        Channels of the images.
    size : int or None
        Side to which larger images are scaled for the scorer.
    width : int
        Channels of the network.
    stages : tuple of int
        Number of convolutions between which maps are halved.
    dropout : float
        Dropout probability after every convolution; above 0, a square of every training image is erased, too.
    views : int
        Number of views of each image that the network is applied to, 1 or 2.

    Examples
    --------
    >>> scorer = learned("so2", in_channels=1)
    >>> pose = scorer(torch.rand(2, 1, 28, 28))
    >>> pose.element.shape, pose.alternatives.shape
    (torch.Size([2, 3, 3]), torch.Size([2, 3, 3, 3]))
    """

    def __init__(
        self, group: FiniteGroup, continuous: bool, in_channels: int, size: int | None, width: int,
        stages: tuple[int, ...], dropout: float, views: int,
    ) -> None:  # fmt: skip
        super().__init__()
        self.group, self.continuous, self.size, self.views, self.dropout = group, continuous, size, views, dropout
        self.in_channels, self.width, self.stages = in_channels, width, stages
        known = group if views == 1 else cyclic(group.order // 2)
        network = group_cnn(known, in_channels, 1, size or 32, width=width, stages=stages, dropout=dropout)
        self.features = network.features
        self.mix = nn.Sequential(PointwiseLinear(2 * width, 2 * width), nn.SiLU())
        self.head = PointwiseLinear(2 * width, 3 if continuous else 1)
        linear = group.elements[:, :2, :2]
        # The second column of a rotation is (sin, cos), and a mirror before it changes only the first.
        self.angles = torch.atan2(linear[:, 0, 1], linear[:, 1, 1]).tolist()
        self.signs = torch.linalg.det(linear).round().tolist()

    def extra_repr(self) -> str:
        return f"{self.group}, continuous={self.continuous}, views={self.views}"

    def forward(self, images: Tensor) -> Pose:
        """(n, c, h, w) -> Pose of n"""
        log_weights, angles, concentrations = self.posterior(images)
        signs = self._constant(self.signs, images)
        upright = self._elements(angles)  # (n, order, 3, 3)
        scores = self.log_density(log_weights, angles, concentrations, angles, signs)
        zero, plus = torch.zeros_like(angles[:, :1]), torch.ones_like(signs[:1])
        unmoved = self.log_density(log_weights, angles, concentrations, zero, plus)[:, 0]
        return pose_from_scores(scores, upright, unmoved, are_different(upright))

    def posterior(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(n, c, h, w) -> log weights, angles and concentrations of the components of the posterior: (n, order) each.

        Angles are those by which the upright image was rotated, after it was mirrored where ``signs`` is -1.
        """
        if images.shape[1] != self.in_channels:
            raise ValueError(f"the canonicalizer takes images of {self.in_channels} channels, got {images.shape[1]}")
        out = self.head(self.mix(self.pooled(images))).float()  # (n, numbers, order)
        log_weights = out[:, 0].log_softmax(1)
        angles = self._constant(self.angles, log_weights).expand_as(log_weights)
        if not self.continuous:
            return log_weights, angles, torch.zeros_like(log_weights)
        rotations = self.group.order // (2 if -1.0 in self.signs else 1)
        correction = 1.5 * math.pi / rotations * torch.tanh(out[:, 1])
        concentrations = _LEAST_CONCENTRATION + 20 * softplus(out[:, 2])
        # After a mirror, a rotation of the upright image appears reversed.
        return log_weights, angles + self._constant(self.signs, log_weights) * correction, concentrations

    def pooled(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, 2 * width, order): mean and maximum over the pixels of the features of each element."""
        prepared = self._prepared(images)
        if self.training and self.dropout:
            prepared = erased(prepared)
        if self.views == 2:
            # The elements between those of the network are its own for the image turned back by one step.
            back = rotation(torch.tensor(-2 * math.pi / self.group.order)).to(prepared)
            prepared = torch.cat([prepared, resampled(prepared, back)])
        maps = self.features(prepared)  # (views * n, width, order / views, h, w)
        found = torch.cat([maps.mean((-2, -1)), maps.amax((-2, -1))], dim=1)
        return found if self.views == 1 else torch.stack(found.chunk(2), dim=-1).flatten(-2)

    def log_density(
        self, log_weights: Tensor, angles: Tensor, concentrations: Tensor, at: Tensor, signs: Tensor
    ) -> Tensor:
        """The log posterior at k angles (n, k) with signs (k,) or (n, k): (n, k), of the components (n, order)."""
        same = signs[..., None] == self._constant(self.signs, at)  # (..., k, order)
        offset = at[:, :, None] - angles[:, None]  # (n, k, order)
        if not self.continuous:
            near = same & (offset.cos() > math.cos(math.pi / (self.group.order + 1)))
            return log_weights[:, None].masked_fill(~near, -1e4).logsumexp(2)
        k = concentrations[:, None]
        # log I0(k) = k - log(2 pi k) / 2 + 1 / (8 k) + ..., good to 0.001 for k of at least 8
        component = k * (offset.cos() - 1) + 0.5 * (2 * math.pi * k).log() - 1 / (8 * k)
        return (log_weights[:, None] + component).masked_fill(~same, -1e4).logsumexp(2)

    def _prepared(self, images: Tensor) -> Tensor:
        """Images at the size of the scorer, without the corners that a rotation would move out of the image."""
        images = no_larger(images, self.size)
        return images * disc((images.shape[-2], images.shape[-1]), images)

    def _elements(self, angles: Tensor) -> Tensor:
        """The poses upright_from_input of inputs rotated by angles (n, order), after a mirror where signs are -1."""
        if not self.continuous:
            return self.group.elements[self.group.inverse].to(angles).expand(angles.shape[0], -1, 3, 3)
        mirrored = self._constant(self.signs, angles) < 0
        turned = rotation(angles)
        flip = reflection(angles.dtype, angles.device)
        return inverse(torch.where(mirrored[:, None, None], turned @ flip, turned))

    def _constant(self, values: Sequence[float], like: Tensor) -> Tensor:
        return torch.tensor(values, dtype=like.dtype, device=like.device)


def learned(
    group: str | Group = "so2",
    in_channels: int = 1,
    *,
    directions: int = 8,
    size: int | None = 64,
    width: int = 8,
    stages: Sequence[int] = (2, 2, 2),
    dropout: float = 0.0,
    views: int = 1,
) -> Learned:
    """Create an untrained canonicalizer that scores all rotations in one pass of a small equivariant network.

    :func:`fit_canonicalizer` trains it.

    Parameters
    ----------
    group : str or Group, default "so2"
        A finite group such as "c8" or "d4", whose elements are scored, or "so2" or "so2+mirror", for which the angle
        is continuous.
    in_channels : int, default 1
        Channels of the images.
    directions : int, default 8
        Rotations of the network for a continuous group.
    size : int, optional
        Larger images are scaled to this side for the scorer; 64 by default, None leaves them.
    width : int, default 8
        Channels of the network, each for every element.
    stages : sequence of int, default (2, 2, 2)
        Number of convolutions between which maps are halved.
    dropout : float, default 0.0
        Dropout probability after every convolution, for photographs. Above 0, training also erases a square of half
        the side of every image.
    views : {1, 2}, default 1
        With 2, for cyclic groups, the network knows every second rotation and is applied to the image and to the image
        turned by one step. For c8 this is a network of c4, whose kernels of 3 x 3 pixels are turned exactly.

    Returns
    -------
    Learned

    Examples
    --------
    >>> from unpose.nn import count_parameters
    >>> count_parameters(learned("c4", in_channels=3, width=4))
    3117
    """
    parsed = parse(group)
    if isinstance(parsed, LieGroup):
        if parsed.kind != "so2":
            raise ValueError(
                f"a learned scorer knows rotations (so2, so2+mirror) and finite groups, got {parsed}; iterate it with "
                "regress for shifts, scales and shears"
            )
        finite = dihedral(directions) if parsed.mirrored else cyclic(directions)
    elif parsed.is_group:
        finite = parsed
    else:
        raise ValueError(f"a learned scorer needs a group, and {parsed} is not closed under products")
    if views != 1 and (views != 2 or finite.order % 2 or str(finite) != f"c{finite.order}"):
        raise ValueError(f"views must be 1, or 2 for a cyclic group of even order such as c8, got {views} for {finite}")
    continuous = isinstance(parsed, LieGroup)
    return Learned(finite, continuous, in_channels, size, width, tuple(stages), dropout, views)


class Regress(Canonicalizer):
    """A spatial transformer: a small network that reads a pose off the image; made by :func:`regress`.

    Parameters
    ----------
    group : LieGroup
        Poses that it can return.
    in_channels : int
        Channels of the images.
    size : int
        Side to which images are scaled for the network.
    width : int
        Channels of the first layer.

    Examples
    --------
    >>> regress("similarity", in_channels=3)(torch.rand(2, 3, 32, 32)).element.shape
    torch.Size([2, 3, 3])
    """

    def __init__(self, group: LieGroup, in_channels: int, size: int, width: int) -> None:
        super().__init__()
        self.group, self.size = group, size
        self.in_channels, self.width = in_channels, width
        self.features = nn.Sequential(
            nn.Conv2d(in_channels, width, 5, padding=2), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(2 * width, 4 * width, 3, padding=1), nn.BatchNorm2d(4 * width), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(64 * width, 8 * width), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(8 * width, group.dim)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def extra_repr(self) -> str:
        return str(self.group)

    def coordinates(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, dim): coordinates in the Lie algebra, in units of the radius of the image."""
        if images.shape[1] != self.in_channels:
            raise ValueError(f"the canonicalizer takes images of {self.in_channels} channels, got {images.shape[1]}")
        scaled = images
        if images.shape[-1] != self.size or images.shape[-2] != self.size:
            scaled = interpolate(images, (self.size, self.size), mode="bilinear", antialias=True)
        return self.head(self.features(scaled)).float()

    def pose_of(self, coordinates: Tensor, side: int) -> Tensor:
        """(n, dim) -> (n, 3, 3): the poses upright_from_input, for images whose smaller side is given."""
        radius = side / 2
        return self.group.exp(coordinates * (radius / self.group.units(radius).to(coordinates)))

    def forward(self, images: Tensor) -> Pose:
        """(n, c, h, w) -> Pose of n; the gain is the length of the coordinates"""
        coordinates = self.coordinates(images)
        element = self.pose_of(coordinates, min(images.shape[-2:])).to(images.dtype)
        moved = coordinates.norm(dim=1).to(images.dtype)
        return Pose(element, -moved, torch.full_like(moved, torch.inf), moved, element[:, None])


def regress(group: str | Group = "affine", in_channels: int = 1, *, size: int = 32, width: int = 16) -> Regress:
    """Create an untrained spatial transformer, which reads the pose off an image by plain regression.

    It starts at the identity, and its poses cannot leave the group. There is no guarantee of invariance: use it for
    what the equivariant canonicalizers do not cover, such as shear, and for small poses.

    Parameters
    ----------
    group : str or Group, default "affine"
        A continuous group without mirrors.
    in_channels : int, default 1
        Channels of the images.
    size : int, default 32
        Images are scaled to this side for the network.
    width : int, default 16
        Channels of the first layer.

    Returns
    -------
    Regress

    Examples
    --------
    >>> torch.equal(regress("se2")(torch.rand(1, 1, 28, 28)).element[0], torch.eye(3))
    True
    """
    parsed = parse(group)
    if not isinstance(parsed, LieGroup) or parsed.mirrored or parsed.ndim != 2:
        raise ValueError(f"regress needs a continuous group of the plane without mirrors, got {parsed}")
    return Regress(parsed, in_channels, size, width)
