"""The one core of group self-attention; lifting and group layers, local and global, are shells around it."""

import torch
from torch import Tensor

from unpose.nn.functional.checks import check_dropout
from unpose.nn.ops.attention import (
    attend_fused,
    attend_mapped,
    attend_projected,
    obstacle,
    takes_maps,
    takes_parts,
)
from unpose.nn.ops.dispatch import chosen
from unpose.nn.ops.pointwise import pointwise
from unpose.nn.ops.reference.attention import attend, attend_double, unprojected


def group_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position: Tensor,
    *,
    bias: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attention over pixels and group elements with a relative encoding.

    The output at pixel i and element h attends to every key (j, k) in its window,

    ``out(i, h) = sum_jk softmax_jk(<q(i, h), key(j, k) + P(h^-1 (x_j - x_i), h^-1 k)> / sqrt(d)) value(j, k)``,

    equations 14 (one key element) and 16. Keys outside of the image take no part: they are masked, not zero.

    Parameters
    ----------
    query : (batch, heads, outputs or 1, height, width, d)
        One for each output element, or one shared by all: a map on the plane that is lifted.
    key : (batch, heads, keys, height, width, d)
        One for each element, or ``keys`` = 1 for a map on the plane.
    value : (batch, heads, keys, height, width, any)
    position : (heads or 1, outputs, keys, window_y, window_x, d)
        The encoding, written out: entry ``[:, h, k, y, x]`` is P for output h, key k and the key's offset
        ``(x - window_x // 2, y - window_y // 2)`` from the query. The windows are odd and at most ``2 size - 1``, which
        reaches every pixel from every other: global attention. Which relative element a pair (h, k) has is settled in
        the table (:func:`unpose.nn.position_table`); nothing below this function knows the group.

        With one more axis, (heads or 1, outputs, queries, keys, window_y, window_x, d), the result is the paper's
        double sum (equations 15 and 16): ``out(i, h)`` is the sum over h~ of the attention from q(i, h~) with
        ``P(h^-1 (x_j - x_i), h^-1 h~, h^-1 k)``. The published relative element ``h^-1 (h~^-1 k)`` is not invariant;
        this one is.
    bias : (heads or 1, outputs, keys, window_y, window_x), optional
        Added to the scores; minus infinity leaves a key out. Each query must keep at least one key.
    dropout : probability with which an attention weight is dropped.

    Returns
    -------
    (batch, heads, outputs, height, width, any)

    Notes
    -----
    Time and scores grow with ``outputs * keys * window_y * window_x`` for each pixel and head; the paper's sum has the
    number of elements as a further factor.

    Two implementations take exactly these tensors with a table of six axes: :func:`unpose.nn.ops.reference.attention.attend`, the
    reference, and :func:`unpose.nn.ops.attention.attend_fused`, which keeps no scores; :func:`unpose.nn.implementation`
    chooses. With dropout each draws in its own way, reproducibly from torch's seed.

    Examples
    --------
    >>> maps = torch.randn(2, 3, 4, 5, 7, 6)
    >>> group_attention(maps, maps, maps, torch.randn(1, 4, 4, 3, 3, 6)).shape
    torch.Size([2, 3, 4, 5, 7, 6])
    """
    check_dropout(dropout)
    if position.ndim == 7:
        if bias is not None and (bias.ndim != 5 or bias.shape[1] != position.shape[1]):
            raise ValueError(f"bias must be (heads or 1, outputs, keys, window_y, window_x), got {tuple(bias.shape)}")
        parts = [
            (position[:, h], None if bias is None else bias[:, h, None].expand(-1, position.shape[2], -1, -1, -1))
            for h in range(position.shape[1])
        ]
        if not _is_fused(query, key, value, *parts[0]):
            _check(query, key, value, *parts[0])
            return attend_double(query, key, value, position, bias, dropout)
        sums = (group_attention(query, key, value, own, bias=extra, dropout=dropout).sum(2) for own, extra in parts)
        return torch.stack(list(sums), dim=2)
    _check(query, key, value, position, bias)
    method = attend_fused if _is_fused(query, key, value, position, bias) else attend
    return method(query, key, value, position, bias, dropout)


def mapped_attention(
    maps: Tensor,
    weight: Tensor,
    offset: Tensor,
    heads: int,
    position: Tensor,
    *,
    element: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """:func:`projected_attention` of a linear map of the channels.

    Parameters
    ----------
    maps : (batch, channels, elements, height, width)
    weight, offset : (3 * heads * d, channels) and (3 * heads * d,)
    position, element, bias, dropout
        As for :func:`projected_attention`.

    Returns
    -------
    (batch, heads, outputs, height, width, d)

    Examples
    --------
    >>> table = torch.randn(1, 4, 4, 3, 3, 2)
    >>> mapped_attention(torch.randn(1, 5, 4, 6, 7), torch.randn(18, 5), torch.zeros(18), 3, table).shape
    torch.Size([1, 3, 4, 6, 7, 2])
    """
    check_dropout(dropout)
    channels, (keys, height, width) = len(weight) // (3 * heads), maps.shape[2:]
    is_taken = position.ndim == 6 and bias is None and takes_maps(maps, weight, offset)
    if is_taken and (element is None or takes_parts(maps, channels)):
        _check_table((keys, keys), heads, channels, (height, width), position, element)
        return attend_mapped(maps, weight, offset, heads, position, element, dropout)
    projected = pointwise(maps, weight, offset).unflatten(1, (3, heads, -1))  # (b, 3, n, d, keys, h, w)
    return projected_attention(projected, position, element=element, bias=bias, dropout=dropout)


def projected_attention(
    projected: Tensor,
    position: Tensor,
    *,
    element: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """:func:`group_attention` of query, key and value in one tensor, and so their gradient: no copy joins the three.

    Parameters
    ----------
    projected : (batch, 3, heads, d, elements, height, width)
    position, bias, dropout
        As for :func:`group_attention`.
    element : (heads or 1, outputs, keys, e), optional
        The last channels of the table, which are the same for the whole window; ``position`` has the others, the same
        for all keys, (heads or 1, outputs, 1, window_y, window_x, d - e). That saves work where loops are fused.

    Returns
    -------
    (batch, heads, outputs, height, width, d)

    Examples
    --------
    >>> projected_attention(torch.randn(2, 3, 1, 6, 4, 5, 7), torch.randn(1, 4, 4, 3, 3, 6)).shape
    torch.Size([2, 1, 4, 5, 7, 6])
    """
    check_dropout(dropout)
    maps = unprojected(projected)
    if element is not None:
        _, _, heads, channels, keys, height, width = projected.shape
        _check_table((keys, keys), heads, channels, (height, width), position, element)
        if bias is None and takes_parts(projected, channels) and _is_fused(*maps, position, element):
            return attend_projected(projected, position, element, None, dropout)
        position = joint_table(position, element)
    if position.ndim == 6 and _is_fused(*maps, position, bias):
        _check(*maps, position, bias)
        return attend_projected(projected, position, None, bias, dropout)
    return group_attention(*maps, position, bias=bias, dropout=dropout)


def joint_table(position: Tensor, element: Tensor) -> Tensor:
    """(n, outputs, 1, window_y, window_x, c) and (n, outputs, keys, e) -> (n, outputs, keys, *window, c + e)."""
    window, keys = position.shape[3:5], element.shape[2]
    vectors = element[:, :, :, None, None].expand(-1, -1, -1, *window, -1)
    return torch.cat([position.expand(-1, -1, keys, -1, -1, -1), vectors], dim=-1)


def _is_fused(query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None) -> bool:
    if chosen() == "plain":
        return False
    reason = obstacle(query, key, value, position, bias)
    if chosen() == "auto":
        return reason is None and query.dtype != torch.float64
    if reason is not None:
        raise ValueError(f"fused group attention cannot run here: {reason}; use implementation('auto') or 'plain'")
    return True


def estimate_memory(query: Tensor, key: Tensor, value: Tensor, position: Tensor, *, threads: int | None = None) -> int:
    """Bytes that a forward and backward pass of fused group attention holds at its peak on the CPU.

    Inputs, result, all gradients and working memory are counted. It grows with pixels and with elements, not with pairs
    of elements or with the window: only the position table does.

    Parameters
    ----------
    query, key, value, position
        As for :func:`group_attention`, with a table of six axes. Only shapes and types are read: tensors on the
        ``meta`` device, which have no memory, will do.
    threads : of the pass; by default those that torch uses now

    Examples
    --------
    >>> maps = torch.empty(1, 9, 8, 256, 256, 10, device="meta")
    >>> table = torch.empty(1, 8, 8, 5, 5, 10, device="meta")
    >>> estimate_memory(maps, maps, maps, table, threads=2) < 2 * 2**30
    True
    """
    from unpose.nn.ops.cpu.attention import peak_bytes  # late: numba takes its time to import

    _check(query, key, value, position, None)
    return peak_bytes(query, key, value, position, threads or torch.get_num_threads())


def _check(query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None) -> None:
    for name, tensor in (("query", query), ("key", key), ("value", value), ("position", position)):
        if tensor.ndim != 6:
            axes = "(heads, outputs, keys, window_y, window_x, channels)" if name == "position" else _AXES
            raise ValueError(f"{name} must be {axes}, got shape {tuple(tensor.shape)}")
    batch, heads, queries, height, width, channels = query.shape
    if key.shape[:2] != (batch, heads) or key.shape[3:] != (height, width, channels):
        raise ValueError(f"query and key must agree in all but elements, got {_shapes(query, key)}")
    if value.shape[:5] != key.shape[:5]:
        raise ValueError(f"key and value must agree in all but channels, got {_shapes(key, value)}")
    _check_table((queries, key.shape[2]), heads, channels, (height, width), position, None)
    if bias is not None and (bias.ndim != 5 or bias.shape[1:] != position.shape[1:5] or len(bias) not in (1, heads)):
        raise ValueError(f"bias must be (heads or 1, *{tuple(position.shape[1:5])}), got shape {tuple(bias.shape)}")


def _check_table(
    elements: tuple[int, int],
    heads: int,
    channels: int,
    size: tuple[int, int],
    position: Tensor,
    element: Tensor | None,
) -> None:
    """Whether a table, in one part or two, is for so many query and key elements, heads and channels, and this size."""
    (queries, keys), outputs, rest = elements, position.shape[1], 0
    table_keys = position.shape[2]
    if element is not None:
        table_keys, rest = element.shape[2], element.shape[3]
        if element.shape[:2] != position.shape[:2] or position.shape[2] != 1:
            raise ValueError(
                f"a table in two parts must be (heads, outputs, 1, window_y, window_x, channels) and (heads, outputs, "
                f"keys, channels), got {_shapes(position, element)}"
            )
    if queries not in (1, outputs) or keys != table_keys:
        raise ValueError(
            f"the position table is for {outputs} output and {table_keys} key elements, but there are {queries} query "
            f"and {keys} key elements: were they made for the same group?"
        )
    if len(position) not in (1, heads) or position.shape[5] + rest != channels:
        raise ValueError(
            f"the position table must have 1 or {heads} heads and {channels} channels like the query, got "
            f"{len(position)} and {position.shape[5] + rest}"
        )
    check_window((position.shape[3], position.shape[4]), size)


def check_window(window: tuple[int, int], size: tuple[int, int] | None = None) -> None:
    """Raise a ``ValueError`` unless a (height, width) window has a middle and no more than reaches across the image."""
    if any(extent < 1 or extent % 2 == 0 for extent in window):
        raise ValueError(
            f"a window needs odd height and width, so that the query is in its middle, got {window[0]} x {window[1]}"
        )
    if size is not None and any(extent > 2 * full - 1 for extent, full in zip(window, size, strict=True)):
        raise ValueError(
            f"a window of {window[0]} x {window[1]} is larger than an image of {size[0]} x {size[1]} can fill: at most "
            f"{2 * size[0] - 1} x {2 * size[1] - 1}, which is global attention"
        )


_AXES = "(batch, heads, elements, height, width, channels)"


def _shapes(a: Tensor, b: Tensor) -> str:
    return f"{tuple(a.shape)} and {tuple(b.shape)}"
