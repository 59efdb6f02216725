"""Lifting and group self-attention as layers: projections and a position table around one function.

Both layers compute, for every head,

``out(i, h) = sum_jk softmax_jk(<q(i, h), key(j, k) + P(h^-1 (x_j - x_i), h^-1 k)> / sqrt(d)) value(j, k)``

with :func:`unpose.nn.group_attention`, whose file has the shapes, the pseudo-code and the way to the reference and the
kernels. What a layer does::

    projected = linear(maps)                      # (b, 3, heads, d, keys, h, w): query, key, value
    P = position_table(encoding, window)          # (heads or 1, order, keys, window, window, d)
    out = group_attention(*projected, P)          # (b, heads, order, h, w, d)
    return linear(out)                            # (b, out_channels, order, h, w)

The input of :class:`LiftingSelfAttention` is an image, so it has one key element (equation 14); the input of
:class:`GroupSelfAttention` is a map on the group (equation 16).
"""

from typing import Any

import torch
from torch import Tensor, nn

from unpose.groups import FiniteGroup
from unpose.nn.functional.checks import check_dropout, check_feature_maps, check_positive, check_window, parse_finite
from unpose.nn.functional.group_attention import projected_attention
from unpose.nn.functional.positions import (
    dilation_bias,
    inverse_elements,
    position_table,
    preserves_area,
    relative_elements,
    relative_positions,
    widest_window,
)
from unpose.nn.layers.constants import ConstantTables
from unpose.nn.layers.encodings import HarmonicEncoding, SeparableEncoding, make_encoding
from unpose.nn.ops.autocast import product_type
from unpose.nn.ops.encoding import separable_table, use_separable_table
from unpose.nn.ops.pointwise import pointwise

ATTENTION_MODES = ("relative", "paper", "printed")
"""The versions of group self-attention, see :class:`GroupSelfAttention`."""


class _SelfAttention(ConstantTables):
    """The shared part of both layers: everything except which group elements the input has.

    ``mode`` is ``"lifting"``, or that of :class:`GroupSelfAttention`, which sets it before this constructor reads it.
    The table ``inverses`` is (order, 2, 2); ``relations`` is (order, keys), or (order, queries, keys) for the double
    sums, and holds the index of the relative element of each pair or triple.
    """

    mode = "lifting"
    inverses: Tensor
    relations: Tensor
    basis: Tensor  # (order, *window, functions), with a harmonic encoding and a window

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
        super().__init__()
        group = parse_finite(group)
        check_positive(in_channels=in_channels, out_channels=out_channels, heads=heads, head_channels=head_channels)
        if reach is not None and not reach > 0:
            raise ValueError(f"reach must be a distance above 0 pixels, got {reach}")
        if window is not None:
            check_window((window, window))
        elif reach is None:
            raise ValueError("global attention (window=None) needs reach, the distance in pixels its encoding spans")
        self.group, self.in_channels, self.heads, self.window = group, in_channels, heads, window
        check_dropout(attention_dropout)
        self.attention_dropout = attention_dropout
        self._dilates = not preserves_area(group)
        self._table_window = None if window is None else (widest_window(group, window),) * 2
        n_relations = _relative_elements(group, self.mode)[1]
        self.encoding = make_encoding(encoding, head_channels, n_relations, heads, reach or max((window or 1) // 2, 1))
        self.project = nn.Linear(in_channels, 3 * heads * head_channels)
        self.merge = nn.Linear(heads * head_channels, out_channels)
        self.value_dropout = nn.Dropout(value_dropout)
        self.compute_tables()

    def constant_tables(self) -> dict[str, Tensor]:
        relations, _ = _relative_elements(self.group, self.mode)
        tables = {"inverses": inverse_elements(self.group).contiguous(), "relations": relations}
        if self._table_window is not None and isinstance(self.encoding, HarmonicEncoding):
            # Its many small operations are the same in every step, and ``torch.compile`` would compile each.
            tables["basis"] = self.encoding.basis(relative_positions(tables["inverses"], self._table_window))
        if self._dilates and self._table_window is not None:
            tables["bias"] = dilation_bias(self.group, self.window, self._table_window, relations.shape[-1])
        return tables

    def extra_repr(self) -> str:
        return f"group={self.group}, in_channels={self.in_channels}, heads={self.heads}, window={self.window}"

    def _attend(self, maps: Tensor) -> Tensor:
        """(b, in_channels, keys, h, w) -> (b, out_channels, order, h, w)"""
        height, width = maps.shape[-2:]
        dtype = product_type(maps)
        window = self._table_window or (2 * height - 1, 2 * width - 1)
        position, element = self._position_table(window, dtype)
        bias = None
        if self._dilates:
            known = getattr(self, "bias", None)  # a table, unless it depends on the size of the image
            bias = dilation_bias(self.group, self.window, window, maps.shape[2]) if known is None else known
            bias = bias[None].to(maps.device, dtype)
        projected = pointwise(maps, self.project.weight, self.project.bias).unflatten(1, (3, self.heads, -1))
        dropout = self.attention_dropout if self.training else 0.0
        attended = projected_attention(projected, position, element=element, bias=bias, dropout=dropout)
        # projected (b, 3, heads, d, keys, h, w), attended (b, heads, order, h, w, d)
        joined = attended.permute(0, 1, 5, 2, 3, 4).flatten(1, 2)  # (b, heads * d, order, h, w)
        return self.value_dropout(pointwise(joined, self.merge.weight, self.merge.bias))

    def _position_table(self, window: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Return the position table, (heads or 1, order, ..., keys, *window, d), or its two parts.

        A separable encoding gives two parts, see :func:`unpose.nn.functional.group_attention.projected_attention`.
        """
        encoding = self.encoding
        if isinstance(encoding, SeparableEncoding):
            weights = list(encoding.parameters())
            if use_separable_table(weights, self.inverses, self.relations):
                eps: Any = encoding.along_x[1].eps
                return separable_table(
                    weights, self.inverses, self.relations, window, reach=encoding.reach, eps=eps, dtype=dtype
                )
        # In the precision of the weights, whatever casts the module went through: the same weights, the same bits.
        inverses = self.inverses.to(self.project.weight.dtype)
        if isinstance(encoding, HarmonicEncoding) and self._table_window is not None:
            basis = self.basis.to(inverses.dtype)
            return position_table(lambda _: encoding.combine(basis), inverses, self.relations, window).to(dtype), None
        if not isinstance(encoding, SeparableEncoding) or encoding.element is None:
            return position_table(encoding, inverses, self.relations, window).to(dtype), None
        # The channels of x and y depend on the output element and the offset alone.
        own = torch.zeros(len(inverses), 1, dtype=torch.long, device=inverses.device)
        position = position_table(encoding.encode_positions, inverses, own, window)
        return position.to(dtype), encoding.element(self.relations)[None].to(dtype)


class LiftingSelfAttention(_SelfAttention):
    """Self-attention from images to maps on a group (equation 14): (b, in, h, w) -> (b, out, order, h, w).

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"p4"``, or ``dilations(...)`` (equation 20).
    in_channels, out_channels : int
        Channels of the input and output maps.
    heads : int
        Number of heads.
    head_channels : int
        Channels of the query, key and value of each head.
    window : int or None
        Odd side of the square window in pixels; None attends to the whole image.
    reach : float, optional
        Distance in pixels that the encoding spans. Default: the radius of the window. Required for ``window=None``.
    encoding : {"separable", "harmonic"}, default "separable"
        :class:`unpose.nn.SeparableEncoding`, the paper's, or :class:`unpose.nn.HarmonicEncoding`, which is steerable
        and has its own weights for each head.
    attention_dropout : float, default 0.0
        Dropout probability of the attention weights.
    value_dropout : float, default 0.0
        Dropout probability of the output.

    Notes
    -----
    The weights do not depend on the image size: one layer takes images of any size, odd, even or not square, as long as
    the window is at most ``2 side - 1``.

    Examples
    --------
    >>> LiftingSelfAttention("p4", 1, 8, heads=2, head_channels=4, window=5)(torch.rand(1, 1, 9, 13)).shape
    torch.Size([1, 8, 4, 9, 13])
    """

    def forward(self, images: Tensor) -> Tensor:
        check_feature_maps(images, self.in_channels, None)
        return self._attend(images[:, :, None])


class GroupSelfAttention(_SelfAttention):
    """Self-attention between maps on a group (equation 16): (b, in, order, h, w) -> (b, out, order, h, w).

    Equation 16 sums the attention of the queries of all elements h~. There are three versions, which differ in the
    query q and the position term P of ``<q, key(j, k) + P> / sqrt(d)``:

    ============== ========= ================================================ ======= ===========
    mode           query     position term                                    terms   equivariant
    ============== ========= ================================================ ======= ===========
    ``"relative"`` q(i, h)   P(h^-1 (x_j - x_i), h^-1 k)                      order^2 yes
    ``"paper"``    q(i, h~)  P(h^-1 (x_j - x_i), h^-1 h~, h^-1 k), sum of h~  order^3 yes
    ``"printed"``  q(i, h~)  P(h^-1 (x_j - x_i), h^-1 h~^-1 k), sum of h~     order^3 no
    ============== ========= ================================================ ======= ===========

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"p4"``, or ``dilations(...)`` (equation 21).
    in_channels, out_channels : int
        Channels of the input and output maps.
    heads : int
        Number of heads.
    head_channels : int
        Channels of the query, key and value of each head.
    window : int or None
        Odd side of the square window in pixels; None attends to the whole image.
    reach : float, optional
        Distance in pixels that the encoding spans. Default: the radius of the window. Required for ``window=None``.
    encoding : {"separable", "harmonic"}, default "separable"
        :class:`unpose.nn.SeparableEncoding`, the paper's, or :class:`unpose.nn.HarmonicEncoding`, which is steerable
        and has its own weights for each head.
    attention_dropout : float, default 0.0
        Dropout probability of the attention weights.
    value_dropout : float, default 0.0
        Dropout probability of the output.
    mode : {"relative", "paper", "printed"}, default "relative"
        ``"relative"``: the output at (i, h) attends with its own query. ``"paper"``: the paper's sum over the queries
        of all elements, with relative elements that are invariant. ``"printed"``: equation 16 exactly as printed, for
        comparison; its relative element is not invariant, so the layer is not equivariant.

    Notes
    -----
    Transforming the input by g replaces h, h~ and k by g h, g h~ and g k. This leaves ``h^-1 h~`` and ``h^-1 k``
    unchanged, but turns ``h^-1 h~^-1 k`` into ``h^-1 g^-1 h~^-1 k``: see the notes on the paper in the documentation.
    ``"paper"`` has order^2 embeddings of relative elements where the others have order.

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
        if mode not in ATTENTION_MODES:
            raise ValueError(f"mode must be one of {', '.join(ATTENTION_MODES)}, got {mode!r}")
        if mode == "printed" and not group.is_group:
            raise ValueError(f"mode 'printed' needs a group that is closed, such as c4 or d4, got {group}")
        self.mode = mode
        super().__init__(
            group,
            in_channels,
            out_channels,
            heads=heads,
            head_channels=head_channels,
            window=window,
            reach=reach,
            encoding=encoding,
            attention_dropout=attention_dropout,
            value_dropout=value_dropout,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode}"

    def forward(self, maps: Tensor) -> Tensor:
        check_feature_maps(maps, self.in_channels, self.group)
        return self._attend(maps)


def _relative_elements(group: FiniteGroup, mode: str) -> tuple[Tensor, int | None]:
    """Return the index of the relative element of each pair, or triple, and how many there are; None without any."""
    if mode == "lifting":
        return torch.zeros(group.order, 1, dtype=torch.long, device="cpu"), None
    relations, count = relative_elements(group)  # (order, order)
    if mode == "relative":
        return relations, count
    if mode == "printed":  # h^-1 (h~^-1 k), as in equation 16
        return relations[:, group.product[group.inverse]], count  # (order, order, order): h, h~, k
    return relations[:, :, None] * count + relations[:, None, :], count**2  # (order, order, order): h, h~, k
