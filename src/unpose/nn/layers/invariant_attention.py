"""Invariant Attention as a layer, and an embedding of patches as tokens that do not depend on their pose."""

import math
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import check_positive, parse_point_group
from unpose.nn.functional.orbit_attention import (
    OrbitAttentionResult,
    group_operators,
    orbit_attention,
    orbit_mask,
    window_candidates,
)
from unpose.nn.layers.constants import ConstantTables
from unpose.nn.ops.autocast import is_autocast


class _PatchLayer(ConstantTables):
    """The shared part of both layers: the elements as operators on patches, and the mask of what they keep."""

    operators: Tensor
    mask: Tensor
    group: FiniteGroup
    patch_size: int
    shift: float = 0.0

    def constant_tables(self) -> dict[str, Tensor]:
        operators = group_operators(self.group, self.patch_size, self.shift)  # (poses, p * p, p * p)
        return {"operators": operators, "mask": orbit_mask(self.group, self.patch_size)}


class InvariantAttentionBlock(_PatchLayer):
    """Attention among patches up to pose: each patch is replaced by its invariant mean.

    (b, rows, columns, channels, p, p) -> (b, rows, columns, out_channels, p, p). Each mean has the pose of the patch
    that it replaces: rotating one patch rotates its own mean and leaves all others unchanged.

    The mean of patch j consists of its own part ``W_jj v_j`` and that of the other patches, and each head has a value
    map for each: ``out_j = sum_heads A W_jj v_j + B (mu_j - W_jj v_j)``. Equal maps give the invariant mean (2.5). Two
    maps can tell a patch that has copies from one that has none, although both equal their mean.

    Parameters
    ----------
    group : str or FiniteGroup
        Rotations, with or without mirrors, among which poses are searched; more rotations give finer poses.
    channels : int
        Channels of the patches, which may be pixels or features.
    patch_size : int
        Side p of a patch in pixels.
    out_channels : int, default channels
        Channels of the output.
    heads : int, default 1
        Number of heads; each has its own bandwidth and value maps.
    neighbours : int, optional
        Number of patches that each patch attends to, itself included; all of them by default.
    window : int, optional
        Odd side, in patches, of the square around each patch in which it attends; the whole grid by default.
    bandwidth : float, default 0.05
        Initial bandwidth: the root mean square difference, in units of the patches, at which the kernel has fallen to
        ``exp(-1/2)``. The heads start a factor of two apart, centred on this value.
    smoothing : float, default 1.0
        Initial standard deviation, in pixels, of the Gaussian with which patches are smoothed before comparison.
    shift : float, default 0.0
        Also search poses shifted by this many pixels in eight directions; ninefold cost of the search.

    Notes
    -----
    See :func:`unpose.nn.orbit_attention` for the weights and poses. The value maps act on the channels of each pixel,
    so they commute with rotations and are applied once, after the mean. With three rotations or more, only the
    inscribed disc of a patch is used, which stays inside the patch at every angle.

    Examples
    --------
    >>> block = InvariantAttentionBlock("c8", channels=2, patch_size=7, heads=3, neighbours=4)
    >>> block(torch.rand(1, 3, 5, 2, 7, 7)).shape
    torch.Size([1, 3, 5, 2, 7, 7])
    """

    def __init__(
        self,
        group: str | FiniteGroup,
        channels: int,
        patch_size: int,
        *,
        out_channels: int | None = None,
        heads: int = 1,
        neighbours: int | None = None,
        window: int | None = None,
        bandwidth: float = 0.05,
        smoothing: float = 1.0,
        shift: float = 0.0,
    ) -> None:
        super().__init__()
        out_channels = channels if out_channels is None else out_channels
        check_positive(channels=channels, patch_size=patch_size, out_channels=out_channels, heads=heads)
        check_positive(neighbours=1 if neighbours is None else neighbours)
        if not 0 <= shift < math.inf:
            raise ValueError(f"shift must be a number of pixels, zero or more, got {shift}")
        if window is not None and (window < 1 or window % 2 == 0):
            raise ValueError(f"window must be odd, so that a patch is in its middle, got {window}")
        for name, width in (("bandwidth", bandwidth), ("smoothing", smoothing)):
            if not 0 < width < math.inf:
                raise ValueError(f"{name} must be a positive number, got {width}")
        self.group = parse_point_group(group)
        self.channels, self.patch_size, self.neighbours, self.window = channels, patch_size, neighbours, window
        self.shift = shift
        # Logarithms keep the widths positive and make optimizer steps relative.
        octaves = torch.arange(heads) - (heads - 1) / 2
        self.log_bandwidth = nn.Parameter(math.log(bandwidth) + math.log(2) * octaves)
        self.log_smoothing = nn.Parameter(torch.tensor(math.log(smoothing)))
        self.value = nn.Linear(2 * heads * channels, out_channels, bias=False)
        self.compute_tables()

    def attend(self, patches: Tensor) -> OrbitAttentionResult:
        """Return weights, poses and means before the value maps; patches are numbered row by row."""
        _check_patches(patches, self.channels, self.patch_size)
        rows, columns = patches.shape[1:3]
        window = self.window
        # Half precision cannot represent the small differences between copies of a patch.
        with torch.autocast(patches.device.type, enabled=False) if is_autocast(patches) else nullcontext():
            return orbit_attention(
                self._masked(patches),
                self.group,
                self.log_bandwidth.exp(),
                self.log_smoothing.exp(),
                operators=self.operators,
                shift=self.shift,
                neighbours=self.neighbours,
                candidates=None if window is None else window_candidates(rows, columns, window, patches.device),
            )

    def forward(self, patches: Tensor) -> Tensor:
        """(b, rows, columns, channels, p, p) -> (b, rows, columns, out_channels, p, p)"""
        attended = self.attend(patches)
        # Neighbour 0 of every patch is the patch itself.
        own = torch.einsum("bnh,bncyx->bnhcyx", attended.weights[:, :, 0], self._masked(patches))
        parts = torch.cat([own, attended.means - own], dim=2).flatten(2, 3)  # (b, n, 2 * heads * channels, p, p)
        values = self.value(parts.movedim(2, -1)).movedim(-1, 2)  # (b, n, out_channels, p, p)
        return values.unflatten(1, patches.shape[1:3])

    def _masked(self, patches: Tensor) -> Tensor:
        """(b, rows, columns, c, p, p) -> (b, n, c, p, p), zero outside the mask."""
        return (patches.to(self.mask.dtype) * self.mask).flatten(1, 2)

    def extra_repr(self) -> str:
        return f"{self.group}, patch_size={self.patch_size}, neighbours={self.neighbours}, window={self.window}"


class OrbitEmbedding(_PatchLayer):
    """Patch embedding that does not depend on the pose of a patch: the maximum response of learnt filters over poses.

    (b, rows, columns, channels, p, p) -> (b, rows * columns, width). The token is ``max_g <weight, g patch> + bias``,
    the kernel (2.2) with an inner product in place of the Gaussian. With the group ``c1`` it is the linear patch
    embedding of a vision transformer; the number of parameters is the same for every group.

    Parameters
    ----------
    group : str or FiniteGroup
        The poses: rotations, with or without mirrors.
    channels : int
        Channels of the patches.
    patch_size : int
        Side p of a patch in pixels.
    width : int
        Channels of a token.

    Examples
    --------
    >>> OrbitEmbedding("c8", channels=2, patch_size=7, width=11)(torch.rand(1, 3, 5, 2, 7, 7)).shape
    torch.Size([1, 15, 11])
    """

    def __init__(self, group: str | FiniteGroup, channels: int, patch_size: int, width: int) -> None:
        super().__init__()
        self.group = parse_point_group(group)
        self.channels, self.patch_size = channels, patch_size
        self.linear = nn.Linear(channels * patch_size**2, width)
        self.compute_tables()

    def forward(self, patches: Tensor) -> Tensor:
        _check_patches(patches, self.channels, self.patch_size)
        flat = (patches * self.mask).flatten(1, 2).flatten(2)  # (b, n, c * p * p)
        weight = self.linear.weight.unflatten(1, (self.channels, -1))  # (width, c, p * p)
        # <w, A x> = <A^T w, x>: transform the filters, which are fewer than the patches.
        filters = torch.einsum("wct,ats->awcs", weight, self.operators)  # (order, width, c, p * p)
        responses = (flat @ filters.flatten(2).flatten(0, 1).mT).unflatten(
            -1, (self.group.order, -1)
        )  # (b, n, order, width)
        return responses.amax(2) + self.linear.bias


def _check_patches(patches: Tensor, channels: int, size: int) -> None:
    """Raise a ``ValueError`` unless the patches are floating point and (b, rows, columns, channels, size, size)."""
    if patches.ndim != 6 or patches.shape[3:] != (channels, size, size):
        raise ValueError(
            f"patches must be (batch, rows, columns, {channels}, {size}, {size}), got shape {tuple(patches.shape)}"
        )
    if not patches.is_floating_point():
        raise ValueError(f"patches must be floating point, got {patches.dtype}; divide integers by their full scale")
