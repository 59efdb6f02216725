"""Invariant Attention as a layer of a network, and the embedding that turns patches into tokens without a pose."""

import math

import torch
from torch import Tensor, nn

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import check_counts
from unpose.nn.functional.orbit_attention import (
    Attended,
    orbit_attention,
    turning_operators,
    turning_window,
    window_candidates,
)
from unpose.nn.networks.base import parse_point_group


class InvariantAttentionBlock(nn.Module):
    """Patches attend to each other up to pose and are replaced by their invariant means.

    (b, rows, columns, channels, p, p) -> (b, rows, columns, out_channels, p, p), each in the pose of the patch it
    replaces: a patch that is turned gets its mean turned, and no other patch notices.

    The mean of patch j has two shares, its own ``W_jj v_j`` and that of the others, and each head has a value map for
    either: ``out_j = sum_heads A W_jj v_j + B (mu_j - W_jj v_j)``. Equal maps give the invariant mean (2.5). Apart they
    tell a patch among copies of itself from one without kin: both are equal to their mean.

    Parameters
    ----------
    group : turns, with or without mirror, among which poses are searched; more turns, finer poses
    channels : of the patches, which may be pixels or features
    patch_size : their side p
    out_channels : ``channels`` unless given
    heads : each has its own bandwidth and its own value map
    neighbours : patches each patch attends to, itself included; None for all
    window : side of the square of patches, around each patch, in which it looks for them; None for the whole grid
    bandwidth : where training starts: the root mean square difference, in units of the patches, at which the kernel has
        fallen to ``exp(-1/2)``. Heads start a factor of two apart, around this one.
    smoothing : where training starts: standard deviation, in pixels, of the Gaussian through which patches are compared

    Notes
    -----
    See :func:`unpose.nn.orbit_attention` for the weights and poses. Value maps act on the channels of each pixel, so
    they commute with turns and are applied once, after the mean. With three turns or more only the disc inside a patch
    counts, which stays in the frame at every angle.

    Examples
    --------
    >>> block = InvariantAttentionBlock("c8", channels=2, patch_size=7, heads=3, neighbours=4)
    >>> block(torch.rand(1, 3, 5, 2, 7, 7)).shape
    torch.Size([1, 3, 5, 2, 7, 7])
    """

    operators: Tensor
    frame: Tensor

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
    ) -> None:
        super().__init__()
        out_channels = channels if out_channels is None else out_channels
        check_counts(channels=channels, patch_size=patch_size, out_channels=out_channels, heads=heads)
        check_counts(neighbours=1 if neighbours is None else neighbours)
        if window is not None and (window < 1 or window % 2 == 0):
            raise ValueError(f"window must be odd, so that a patch is in its middle, got {window}")
        for name, width in (("bandwidth", bandwidth), ("smoothing", smoothing)):
            if not 0 < width < math.inf:
                raise ValueError(f"{name} must be a positive number, got {width}")
        self.group = parse_point_group(group)
        self.channels, self.patch_size, self.neighbours, self.window = channels, patch_size, neighbours, window
        # Logarithms: widths stay positive, and a step of the optimizer is a step in proportion.
        apart = torch.arange(heads) - (heads - 1) / 2
        self.log_bandwidth = nn.Parameter(math.log(bandwidth) + math.log(2) * apart)
        self.log_smoothing = nn.Parameter(torch.tensor(math.log(smoothing)))
        self.value = nn.Linear(2 * heads * channels, out_channels, bias=False)
        _keep_constants(self, self.group, patch_size)

    def attend(self, patches: Tensor) -> Attended:
        """Who attends to whom, in what pose, and the means before the value maps; patches are counted row by row."""
        _check_patches(patches, self.channels, self.patch_size)
        rows, columns = patches.shape[1:3]
        window = self.window
        # Copies differ by little, and half precision has no digits left for small differences of large sums.
        with torch.autocast(patches.device.type, enabled=False):
            return orbit_attention(
                self._framed(patches),
                self.group,
                self.log_bandwidth.exp(),
                self.log_smoothing.exp(),
                operators=self.operators,
                neighbours=self.neighbours,
                candidates=None if window is None else window_candidates(rows, columns, window).to(patches.device),
            )

    def forward(self, patches: Tensor) -> Tensor:
        attended = self.attend(patches)
        # A patch comes first among those it attends to.
        own = torch.einsum("bnh,bncyx->bnhcyx", attended.weights[:, :, 0], self._framed(patches))
        shares = torch.cat([own, attended.means - own], dim=2).flatten(2, 3)  # (b, n, 2 * heads * channels, p, p)
        values = self.value(shares.movedim(2, -1)).movedim(-1, 2)  # (b, n, out_channels, p, p)
        return values.unflatten(1, patches.shape[1:3])

    def _framed(self, patches: Tensor) -> Tensor:
        """(b, rows, columns, c, p, p) -> (b, n, c, p, p), zero outside of what stays in the frame."""
        return (patches.to(self.frame.dtype) * self.frame).flatten(1, 2)

    def extra_repr(self) -> str:
        return f"{self.group}, patch_size={self.patch_size}, neighbours={self.neighbours}, window={self.window}"


class OrbitEmbedding(nn.Module):
    """Tokens that do not depend on pose: the largest answer of learnt patches over the orbit.

    (b, rows, columns, channels, p, p) -> (b, rows * columns, width). The token is ``max_g <weight, g patch> + bias``,
    the kernel (2.2) with an inner product in place of the Gaussian. With the group ``c1`` it is the linear patch
    embedding of a vision transformer, and it has as many parameters with any other.

    Examples
    --------
    >>> OrbitEmbedding("c8", channels=2, patch_size=7, width=11)(torch.rand(1, 3, 5, 2, 7, 7)).shape
    torch.Size([1, 15, 11])
    """

    operators: Tensor
    frame: Tensor

    def __init__(self, group: str | FiniteGroup, channels: int, patch_size: int, width: int) -> None:
        super().__init__()
        self.group = parse_point_group(group)
        self.channels, self.patch_size = channels, patch_size
        self.linear = nn.Linear(channels * patch_size**2, width)
        _keep_constants(self, self.group, patch_size)

    def forward(self, patches: Tensor) -> Tensor:
        _check_patches(patches, self.channels, self.patch_size)
        flat = (patches * self.frame).flatten(1, 2).flatten(2)  # (b, n, c * p * p)
        weight = self.linear.weight.unflatten(1, (self.channels, -1))  # (width, c, p * p)
        # <w, A x> = <A^T w, x>: there are fewer weights to turn than patches.
        turned = torch.einsum("wct,ats->awcs", weight, self.operators).flatten(2).flatten(0, 1)
        answers = (flat @ turned.mT).unflatten(-1, (self.group.order, -1))  # (b, n, order, width)
        return answers.amax(2) + self.linear.bias


def _keep_constants(module: nn.Module, group: FiniteGroup, patch_size: int) -> None:
    """Constants of the group: they follow the module's device and type and are no part of what it has learnt."""
    dtype = torch.get_default_dtype()
    module.register_buffer("operators", turning_operators(group, patch_size).to(dtype), persistent=False)
    module.register_buffer("frame", turning_window(group, patch_size).to(dtype), persistent=False)


def _check_patches(patches: Tensor, channels: int, size: int) -> None:
    if patches.ndim != 6 or patches.shape[3:] != (channels, size, size):
        raise ValueError(
            f"patches must be (batch, rows, columns, {channels}, {size}, {size}), got shape {tuple(patches.shape)}"
        )
    if not patches.is_floating_point():
        raise ValueError(f"patches must be floating point, got {patches.dtype}; divide integers by their full scale")
