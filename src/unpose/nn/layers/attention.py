"""Lifting and group self-attention as layers: projections, a position table, and the core."""

import torch
from torch import Tensor, nn

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import check_counts, check_dropout, check_maps
from unpose.nn.functional.group_attention import check_window, mapped_attention
from unpose.nn.functional.positions import (
    dilated_neighbourhood,
    inverse_elements,
    is_unimodular,
    parse_finite,
    position_table,
    relative_elements,
    widest_window,
)
from unpose.nn.layers.encodings import SeparableEncoding, make_encoding
from unpose.nn.ops.autocast import product_type
from unpose.nn.ops.encoding import has_table, separable_table
from unpose.nn.ops.pointwise import pointwise


class _SelfAttention(nn.Module):
    """What the two layers share: everything but which elements the input has."""

    inverses: Tensor
    relations: Tensor

    def __init__(
        self,
        group: FiniteGroup,
        in_channels: int,
        out_channels: int,
        *,
        relations: Tensor,
        kinds: int | None,
        heads: int,
        head_channels: int,
        window: int | None,
        reach: float | None,
        encoding: str,
        attention_dropout: float,
        value_dropout: float,
    ) -> None:
        super().__init__()
        check_counts(in_channels=in_channels, out_channels=out_channels, heads=heads, head_channels=head_channels)
        if reach is not None and not reach > 0:
            raise ValueError(f"reach must be a distance above 0 pixels, got {reach}")
        if window is not None:
            check_window((window, window))
        elif reach is None:
            raise ValueError("global attention (window=None) needs reach, the distance in pixels its encoding spans")
        self.group, self.in_channels, self.heads, self.window = group, in_channels, heads, window
        check_dropout(attention_dropout)
        self.attention_dropout = attention_dropout
        self._dilates = not is_unimodular(group)
        self._table = None if window is None else (widest_window(group, window),) * 2
        self.encoding = make_encoding(encoding, head_channels, kinds, heads, reach or max((window or 1) // 2, 1))
        self.project = nn.Linear(in_channels, 3 * heads * head_channels)
        self.merge = nn.Linear(heads * head_channels, out_channels)
        self.value_dropout = nn.Dropout(value_dropout)
        # Constants of the group: they follow the module's device and are no part of what it has learnt.
        self.register_buffer("inverses", inverse_elements(group).contiguous(), persistent=False)
        self.register_buffer("relations", relations, persistent=False)

    def extra_repr(self) -> str:
        return f"group={self.group}, in_channels={self.in_channels}, heads={self.heads}, window={self.window}"

    def _attend(self, maps: Tensor) -> Tensor:
        """(b, channels, keys, h, w) -> (b, channels, order, h, w)"""
        height, width = maps.shape[-2:]
        kind = product_type(maps)
        window = self._table or (2 * height - 1, 2 * width - 1)
        position, element = self._position(window, kind)
        bias = None
        if self._dilates:
            bias = dilated_neighbourhood(self.group, self.window, window, maps.shape[2])[None].to(maps.device, kind)
        found = mapped_attention(
            maps,
            self.project.weight,
            self.project.bias,
            self.heads,
            position,
            element=element,
            bias=bias,
            dropout=self.attention_dropout if self.training else 0.0,
        )  # (b, n, order, h, w, d)
        joined = found.permute(0, 1, 5, 2, 3, 4).flatten(1, 2)  # (b, n d, order, h, w)
        return self.value_dropout(pointwise(joined, self.merge.weight, self.merge.bias))

    def _position(self, window: tuple[int, int], kind: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """The encoding written out, (n or 1, order, ..., keys, *window, d) in the type ``kind``; or in two parts."""
        if isinstance(self.encoding, SeparableEncoding) and has_table(self.encoding, self.inverses, self.relations):
            return separable_table(self.encoding, self.inverses, self.relations, window, kind)
        # In the weights' precision whatever the module was cast to on its way here: the same weights, the same bits.
        inverses = self.inverses.to(self.project.weight.dtype)
        encoding = self.encoding
        if not isinstance(encoding, SeparableEncoding) or encoding.element is None or self.relations.ndim > 2:
            return position_table(encoding, inverses, self.relations, window).to(kind), None
        position = position_table(encoding.places, inverses, torch.zeros_like(self.relations[:, :1]), window)
        return position.to(kind), encoding.element(self.relations)[None].to(kind)


class LiftingSelfAttention(_SelfAttention):
    """Self-attention from the plane to the group (equation 14): (b, in, h, w) -> (b, out, order, h, w).

    Parameters
    ----------
    group : name or FiniteGroup
        Point group, or ``dilations(...)`` (equation 20).
    in_channels, out_channels : of the maps
    heads, head_channels : number of heads and channels of each head's queries, keys and values
    window : odd side of the square window; None attends to the whole image
    reach : distance in pixels that the encoding spans; the window's radius by default, needed where there is none
    encoding : ``"separable"`` (the paper's) or ``"harmonic"`` (steerable, one for each head)
    attention_dropout, value_dropout : probabilities, of attention weights and of the layer's results

    Notes
    -----
    Parameters do not depend on the image size: images of any size, odd, even or not square, go through one layer, as
    long as the window is at most 2 side - 1.

    Examples
    --------
    >>> LiftingSelfAttention("p4", 1, 8, heads=2, head_channels=4, window=5)(torch.rand(1, 1, 9, 13)).shape
    torch.Size([1, 8, 4, 9, 13])
    """

    def __init__(
        self,
        group: str | FiniteGroup,
        in_channels: int,
        out_channels: int,
        *,
        heads: int,
        head_channels: int,
        window: int | None,
        reach: float | None = None,
        encoding: str = "separable",
        attention_dropout: float = 0.0,
        value_dropout: float = 0.0,
    ) -> None:
        group = parse_finite(group)
        super().__init__(
            group,
            in_channels,
            out_channels,
            relations=torch.zeros(group.order, 1, dtype=torch.long),
            kinds=None,
            heads=heads,
            head_channels=head_channels,
            window=window,
            reach=reach,
            encoding=encoding,
            attention_dropout=attention_dropout,
            value_dropout=value_dropout,
        )

    def forward(self, images: Tensor) -> Tensor:
        check_maps(images, self.in_channels, None)
        return self._attend(images[:, :, None])


class GroupSelfAttention(_SelfAttention):
    """Self-attention on the group (equation 16): (b, in, order, h, w) -> (b, out, order, h, w).

    Parameters are those of :class:`LiftingSelfAttention`, and

    mode : {"relative", "paper"}
        ``"relative"``: the output at (i, h) asks with its own query, order^2 pairs of elements. ``"paper"``: the
        paper's sum over the queries of all elements, order^3, with the invariant relative elements
        ``(h^-1 h~, h^-1 k)``.

    Examples
    --------
    >>> layer = GroupSelfAttention("p4m", 3, 5, heads=2, head_channels=4, window=None, reach=6)
    >>> layer(torch.rand(1, 3, 8, 7, 6)).shape
    torch.Size([1, 5, 8, 7, 6])
    """

    def __init__(
        self,
        group: str | FiniteGroup,
        in_channels: int,
        out_channels: int,
        *,
        heads: int,
        head_channels: int,
        window: int | None,
        reach: float | None = None,
        encoding: str = "separable",
        attention_dropout: float = 0.0,
        value_dropout: float = 0.0,
        mode: str = "relative",
    ) -> None:
        group = parse_finite(group)
        relations, kinds = relative_elements(group)  # (order, order)
        if mode == "paper":
            relations = relations[:, :, None] * kinds + relations[:, None, :]  # (order, order, order): h, h~, k
            kinds = kinds**2
        elif mode != "relative":
            raise ValueError(f"mode must be 'relative' or 'paper', got {mode!r}")
        super().__init__(
            group,
            in_channels,
            out_channels,
            relations=relations,
            kinds=kinds,
            heads=heads,
            head_channels=head_channels,
            window=window,
            reach=reach,
            encoding=encoding,
            attention_dropout=attention_dropout,
            value_dropout=value_dropout,
        )
        self.mode = mode

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode}"

    def forward(self, maps: Tensor) -> Tensor:
        check_maps(maps, self.in_channels, self.group)
        return self._attend(maps)
