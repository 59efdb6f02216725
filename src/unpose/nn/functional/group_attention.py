"""Group self-attention: the one function behind the lifting and group layers, local and global.

The output at pixel i and group element h attends to every key, at pixel j and element k, in the window around i:

``out(i, h) = sum_jk softmax_jk(<q(i, h), key(j, k) + P(h^-1 (x_j - x_i), h^-1 k)> / sqrt(d)) value(j, k)``

Equation 14 (lifting: the input is an image, so there is one key element) and equation 16 (input on the group). In plain
pseudo-code, for one image and one head, with the position table ``P`` of :func:`unpose.nn.position_table`::

    for h in output_elements:
        for i in pixels:
            keys = [(j, k) for k in key_elements for j in pixels if j - i in window]   # never outside the image
            scores = [dot(query[h, i], key[k, j] + P[h, k, j - i]) / sqrt(d) + bias[h, k, j - i] for j, k in keys]
            weights = dropout(softmax(scores))
            out[h, i] = sum(weight * value[k, j] for weight, (j, k) in zip(weights, keys))

Where the code is:

- this file: shape checks and the choice of implementation. :func:`group_attention` takes separate query, key and value;
  :func:`projected_attention` takes them in one tensor, as a layer projects them, and falls back on the first.
- ``unpose.nn.ops.reference.attention``: the reference in plain PyTorch operations.
- ``unpose.nn.ops.attention``: the fused kernels, which never write the scores to memory.
- ``unpose.nn.layers.attention``: the layers, which add weights, an encoding and dropout.
"""

import torch
from torch import Tensor

from unpose.nn.functional.checks import check_dropout, check_window
from unpose.nn.ops.attention import attend_fused, attend_projected
from unpose.nn.ops.dispatch import drawn, operator, use_kernels
from unpose.nn.ops.reference.attention import attend, attend_double, split_projected


def group_attention(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, *, bias: Tensor | None = None, dropout: float = 0.0
) -> Tensor:
    """Attend over pixels and group elements with a relative position encoding.

    The output at pixel i and element h attends to every key (j, k) in its window,

    ``out(i, h) = sum_jk softmax_jk(<q(i, h), key(j, k) + P(h^-1 (x_j - x_i), h^-1 k)> / sqrt(d)) value(j, k)``,

    equations 14 (one key element) and 16. Keys outside the image are masked, not zero.

    Parameters
    ----------
    query : (batch, heads, outputs or 1, height, width, d) tensor
        One query for each output element, or one shared by all of them: an image that is lifted to the group.
    key : (batch, heads, keys, height, width, d) tensor
        One key for each group element, or ``keys`` = 1 for an image.
    value : (batch, heads, keys, height, width, v) tensor
        The values, with any number of channels v.
    position : (heads or 1, outputs, keys, window_y, window_x, d) tensor
        Entry ``[:, h, k, y, x]`` is P for output h, key k and the offset ``(x - window_x // 2, y - window_y // 2)`` of
        the key from the query. The window is odd and at most ``2 size - 1``, which is global attention. The table
        already holds the relative element of each pair (h, k), see :func:`unpose.nn.position_table`; this function
        does not know the group.

        With one more axis, (heads or 1, outputs, queries, keys, window_y, window_x, d), the result is the paper's
        double sum (equations 15 and 16): ``out(i, h)`` is the sum over h~ of the attention from q(i, h~) with entry
        ``[:, h, h~, k]``: ``P(h^-1 (x_j - x_i), h^-1 h~, h^-1 k)`` in a layer of mode ``"paper"``.
    bias : (heads or 1, outputs, keys, window_y, window_x) tensor, optional
        Added to the scores; minus infinity removes a key. Every query must keep at least one key.
    dropout : float, default 0.0
        Probability with which an attention weight is dropped.

    Returns
    -------
    (batch, heads, outputs, height, width, v) tensor

    Notes
    -----
    Time grows with ``outputs * keys * window_y * window_x`` per pixel and head; the double sum multiplies this by the
    number of elements.

    Two implementations compute the same function: the reference in PyTorch operations
    (``unpose.nn.ops.reference.attention``) and fused kernels that keep no scores (``unpose.nn.ops.attention``);
    :func:`unpose.nn.implementation` chooses. With dropout they draw different random numbers, each reproducibly from
    torch's seed.

    Examples
    --------
    >>> maps = torch.randn(2, 3, 4, 5, 7, 6)
    >>> group_attention(maps, maps, maps, torch.randn(1, 4, 4, 3, 3, 6)).shape
    torch.Size([2, 3, 4, 5, 7, 6])
    """
    check_dropout(dropout)
    if position.ndim == 7:
        return _double_sum(query, key, value, position, bias, dropout)
    _check_shapes(query, key, value, position, bias)
    attend_once = attend_fused if use_kernels("group_attention", query, key, value, position, bias) else attend
    return attend_once(query, key, value, position, bias, dropout)


def _double_sum(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None, dropout: float
) -> Tensor:
    """Sum the attention of all query elements h~ for each output h; ``position`` has seven axes."""
    outputs, queries = position.shape[1:3]
    if bias is not None and (bias.ndim != 5 or bias.shape[1] != outputs):
        raise ValueError(f"bias must be (heads or 1, outputs, keys, window_y, window_x), got {tuple(bias.shape)}")
    tables = [
        (position[:, h], None if bias is None else bias[:, h, None].expand(-1, queries, -1, -1, -1))
        for h in range(outputs)
    ]  # one table and bias of six and five axes for each output
    if not use_kernels("group_attention", query, key, value, *tables[0]):
        _check_shapes(query, key, value, *tables[0])
        return attend_double(query, key, value, position, bias, dropout)
    sums = [
        group_attention(query, key, value, table, bias=extra, dropout=dropout).sum(2)  # (b, heads, h, w, v)
        for table, extra in tables
    ]
    return torch.stack(sums, dim=2)


def _double_sum_in_parts(
    projected: Tensor, position: Tensor, element: Tensor, bias: Tensor | None, dropout: float
) -> Tensor:
    """Compute the double sum with a position table in two parts; ``element`` has five axes."""
    outputs, queries = element.shape[1:3]
    channels = projected.shape[3]
    is_split = bias is None and use_kernels("split_table_attention", projected, position, element, channels=channels)
    if not is_split:
        joint = torch.stack([joint_table(position[:, h, None], element[:, h]) for h in range(outputs)], dim=1)
        return group_attention(*split_projected(projected), joint, bias=bias, dropout=dropout)
    sums = [
        projected_attention(
            projected, position[:, h, None].expand(-1, queries, -1, -1, -1, -1), element=element[:, h], dropout=dropout
        ).sum(2)
        for h in range(outputs)
    ]  # (b, heads, h, w, d) each
    return torch.stack(sums, dim=2)


@operator(example=lambda: (drawn(2, 3, 1, 4, 2, 3, 5), drawn(1, 2, 2, 1, 3, 4)))
def projected_attention(
    projected: Tensor,
    position: Tensor,
    *,
    element: Tensor | None = None,
    bias: Tensor | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Compute :func:`group_attention` of a query, key and value that lie in one tensor, as a layer projects them.

    Their gradient is one tensor too, so no copy joins the three.

    Parameters
    ----------
    projected : (batch, 3, heads, d, elements, height, width) tensor
        Query, key and value.
    position, bias, dropout
        As for :func:`group_attention`.
    element : (heads or 1, outputs, keys, e) tensor, optional
        The last e channels of the position table, if they are the same for the whole window. ``position`` then has
        the other channels, the same for all keys: (heads or 1, outputs, 1, window_y, window_x, d - e). The fused
        kernels have less work with the two parts than with the joint table. For the double sum it is (heads or 1,
        outputs, queries, keys, e).

    Returns
    -------
    (batch, heads, outputs, height, width, d) tensor

    Examples
    --------
    >>> projected_attention(torch.randn(2, 3, 1, 6, 4, 5, 7), torch.randn(1, 4, 4, 3, 3, 6)).shape
    torch.Size([2, 1, 4, 5, 7, 6])
    """
    check_dropout(dropout)
    query_key_value = split_projected(projected)
    if element is not None and element.ndim == 5:
        return _double_sum_in_parts(projected, position, element, bias, dropout)
    if element is not None:
        _, _, heads, channels, keys, height, width = projected.shape
        _check_table((keys, keys), heads, channels, (height, width), position, element)
        if bias is None and use_kernels("split_table_attention", projected, position, element, channels=channels):
            return attend_projected(projected, position, element, None, dropout)
        position = joint_table(position, element)
    if position.ndim == 6 and use_kernels("group_attention", *query_key_value, position, bias):
        _check_shapes(*query_key_value, position, bias)
        return attend_projected(projected, position, None, bias, dropout)
    return group_attention(*query_key_value, position, bias=bias, dropout=dropout)


def joint_table(position: Tensor, element: Tensor) -> Tensor:
    """Join the two parts of a position table.

    (n, outputs or 1, 1, window_y, window_x, c) and (n, outputs, keys, e) -> (n, outputs, keys, *window, c + e)
    """
    window, (outputs, keys) = position.shape[3:5], element.shape[1:3]
    vectors = element[:, :, :, None, None].expand(-1, -1, -1, *window, -1)  # (n, outputs, keys, *window, e)
    return torch.cat([position.expand(-1, outputs, keys, -1, -1, -1), vectors], dim=-1)


def estimate_memory(query: Tensor, key: Tensor, value: Tensor, position: Tensor, *, threads: int | None = None) -> int:
    """Estimate the peak memory, in bytes, of a forward and backward pass of fused group attention on the CPU.

    Inputs, result, all gradients and working memory are counted. The figure grows with the number of pixels and of
    elements, not with pairs of elements or with the window; only the position table does.

    Parameters
    ----------
    query, key, value, position : tensors
        As for :func:`group_attention`, with a position table of six axes. Only shapes and types are read: tensors on
        the ``meta`` device, which use no memory, are enough.
    threads : int, default torch.get_num_threads()
        Threads of the pass.

    Returns
    -------
    int

    Examples
    --------
    >>> maps = torch.empty(1, 9, 8, 256, 256, 10, device="meta")
    >>> table = torch.empty(1, 8, 8, 5, 5, 10, device="meta")
    >>> estimate_memory(maps, maps, maps, table, threads=2) < 2 * 2**30
    True
    """
    from unpose.nn.ops.cpu.attention import peak_bytes  # late: importing numba takes time

    _check_shapes(query, key, value, position, None)
    return peak_bytes(query, key, value, position, threads or torch.get_num_threads())


def _check_shapes(query: Tensor, key: Tensor, value: Tensor, position: Tensor, bias: Tensor | None) -> None:
    """Raise a ``ValueError`` unless the shapes fit each other; ``position`` has six axes."""
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
    """Raise a ``ValueError`` unless a table, in one part or two, fits ``elements`` (queries, keys) and the maps."""
    (queries, keys), outputs, table_keys, table_channels = elements, *position.shape[1:3], position.shape[5]
    if element is not None:
        table_keys, table_channels = element.shape[2], table_channels + element.shape[3]
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
    if len(position) not in (1, heads) or table_channels != channels:
        raise ValueError(
            f"the position table must have 1 or {heads} heads and {channels} channels like the query, got "
            f"{len(position)} and {table_channels}"
        )
    check_window((position.shape[3], position.shape[4]), size)


_AXES = "(batch, heads, elements, height, width, channels)"


def _shapes(a: Tensor, b: Tensor) -> str:
    return f"{tuple(a.shape)} and {tuple(b.shape)}"
