"""Layers on point clouds that commute with rotations, mirrors, shifts and permutations, in the plane and in space.

Features stay the same and points move along when a cloud is moved. Both hold by construction: layers see points only
through scalar products of differences, and move them along differences.
"""

import torch
from torch import Tensor, nn

from unpose.points.clouds import centred, check_cloud, gather, mlp, pool, surroundings


class EGNNLayer(nn.Module):
    """One layer of an E(n)-equivariant graph network (Satorras, Hoogeboom and Welling, 2021, equations 3 to 6).

    Messages depend on squared distances and on the features of both points; points move along differences to their
    neighbours, by amounts that depend on the messages.

    Parameters
    ----------
    width : int
        Channels of the features, in and out.
    neighbours : int, optional
        Nearest neighbours that send messages; all other points by default. Their weight falls to zero at the distance
        of the next one, so that equal distances, as on a grid of voxels, need no choice.

    Examples
    --------
    >>> features, points = EGNNLayer(8)(torch.rand(2, 5, 8), torch.rand(2, 5, 3), torch.ones(2, 5, dtype=torch.bool))
    >>> features.shape, points.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 5, 3]))
    """

    def __init__(self, width: int, neighbours: int | None = None) -> None:
        super().__init__()
        self.k = neighbours
        # The first linear map of the messages is applied to each point once, and not to each pair.
        self.from_self, self.from_other = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.from_distance = nn.Linear(2, width, bias=False)
        self.message = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.gate = nn.Linear(width, 1)
        self.move = mlp(width, width, 1)
        self.update = mlp(2 * width, width, width)

    def forward(self, features: Tensor, points: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(b, n, width), (b, n, d), (b, n) -> (b, n, width), (b, n, d)"""
        index, difference, window = surroundings(points, mask, self.k)
        square = difference.square().sum(-1, keepdim=True)  # (b, n, k, 1)
        # The logarithm keeps small distances apart, which decide about local form.
        distance = self.from_distance(torch.cat([square, (square + 1e-3).log()], dim=-1))
        message = self.message(
            self.from_self(features)[:, :, None] + gather(self.from_other(features), index) + distance
        )
        message = message * self.gate(message).sigmoid()  # (b, n, k, width)
        share = window / window.sum(2, keepdim=True).clamp(min=1e-6)  # (b, n, k)
        # Bounded steps: dividing by 1 + distance keeps far points from throwing each other out of the cloud.
        step = -difference / (1 + (square + 1e-8).sqrt()) * self.move(message)
        points = points + torch.einsum("bnk,bnkd->bnd", share, step)
        both = torch.cat([features, torch.einsum("bnk,bnkc->bnc", share, message)], dim=-1)
        features = features + self.update(both)
        return torch.where(mask[..., None], features, torch.zeros_like(features)), points


class GAAttention(nn.Module):
    """Attention weighted by geometric products of differences (Spellings, 2021).

    Around each point, the geometric product of the vectors u, v to two others has the scalar part ``u . v`` and the
    bivector part ``u ^ v``. Their sizes are invariant to rotations and mirrors. With ``rank=2`` values and scores
    depend on one other point, with ``rank=3`` on pairs of other points.

    Parameters
    ----------
    width : int
        Channels of the features, in and out.
    rank : {2, 3}, default 2
        Points in each product; 3 costs n k^2 for k neighbours.
    neighbours : int, optional
        Nearest neighbours that are attended to, as in :class:`EGNNLayer`; all other points by default.

    Examples
    --------
    >>> features, points = GAAttention(8)(torch.rand(2, 5, 8), torch.rand(2, 5, 3), torch.ones(2, 5, dtype=torch.bool))
    >>> features.shape, points.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 5, 3]))
    """

    def __init__(self, width: int, rank: int = 2, neighbours: int | None = None) -> None:
        super().__init__()
        if rank not in (2, 3):
            raise ValueError(f"rank must be 2 or 3, got {rank}")
        self.rank, self.k = rank, neighbours
        self.from_self, self.from_other = nn.Linear(width, width), nn.Linear(width, (rank - 1) * width, bias=False)
        self.from_product = nn.Linear(1 if rank == 2 else 4, width, bias=False)
        self.value = nn.Sequential(nn.SiLU(), nn.Linear(width, width))
        self.score = mlp(width, width, 1)
        self.vector = mlp(width, width, 1)

    def forward(self, features: Tensor, points: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(b, n, width), (b, n, d), (b, n) -> (b, n, width), (b, n, d)"""
        index, vectors, window = surroundings(points, mask, self.k)
        length = vectors.square().sum(-1)  # (b, n, k)
        others = gather(self.from_other(features), index)  # (b, n, k, (rank - 1) width)
        if self.rank == 2:
            products = length[..., None]
        else:
            k = length.shape[2]
            first, second = others.chunk(2, dim=-1)
            others = (first[:, :, :, None] + second[:, :, None]).flatten(2, 3)  # (b, n, k * k, width)
            dot = torch.einsum("bnjd,bnkd->bnjk", vectors, vectors)
            lengths = length[:, :, :, None].expand_as(dot), length[:, :, None].expand_as(dot)
            wedge = (lengths[0] * lengths[1] - dot.square()).clamp(min=0)  # |u ^ v|^2 by Lagrange's identity
            products = torch.stack([dot, wedge, *lengths], dim=-1).flatten(2, 3)
            vectors = (vectors[:, :, :, None] + vectors[:, :, None]).flatten(2, 3)
            different = ~torch.eye(k, dtype=torch.bool, device=points.device)
            window = (window[:, :, :, None] * window[:, :, None] * different).flatten(2, 3)
        value = self.value(self.from_self(features)[:, :, None] + others + self.from_product(products))
        score = (self.score(value)[..., 0] + window.clamp(min=1e-30).log()).masked_fill(window == 0, -1e30)
        weight = score.softmax(2) * (window > 0)  # a point without others attends to nothing
        moved = torch.einsum("bnk,bnkd->bnd", weight * self.vector(value)[..., 0].tanh(), vectors)
        features = features + torch.einsum("bnk,bnkc->bnc", weight, value)
        return torch.where(mask[..., None], features, torch.zeros_like(features)), points + moved


class CloudNetwork(nn.Module):
    """Equivariant layers on a cloud and a pooled, invariant answer; made by :func:`egnn` and :func:`ga_attention`.

    Parameters
    ----------
    layers : list of nn.Module
        Each maps ``(features, points, mask)`` to new features and points.
    in_features, width, n_out : int
        Invariant numbers given with each point, channels, outputs of the pooled answer.
    unit : float, optional
        Length that layers see as 1; by default the root mean square radius of each cloud.

    Examples
    --------
    >>> CloudNetwork([EGNNLayer(4)], 0, 4, 2)(torch.rand(1, 6, 3)).shape
    torch.Size([1, 2])
    """

    def __init__(
        self, layers: list[nn.Module], in_features: int, width: int, n_out: int, unit: float | None = None
    ) -> None:
        super().__init__()
        if unit is not None and not unit > 0:
            raise ValueError(f"unit must be a positive length, got {unit}")
        self.in_features, self.unit = in_features, unit
        self.embed = nn.Linear(in_features + 1, width)
        self.layers = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(2 * width)
        self.answer = mlp(2 * width, width, n_out)

    def layer_outputs(
        self, points: Tensor, mask: Tensor | None = None, features: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Invariant features (b, n, width) and equivariant points (b, n, d) before pooling."""
        mask = check_cloud(points, mask, features)
        given = 0 if features is None else features.shape[2]
        if given != self.in_features:
            raise ValueError(f"this network takes {self.in_features} features with each point, got {given}")
        local, centre, size = centred(points, mask)
        unit = size if self.unit is None else torch.full_like(size, self.unit)
        local = local / unit
        radius = local.norm(dim=-1, keepdim=True)  # (b, n, 1)
        inputs = radius if features is None else torch.cat([radius, features.to(points)], dim=-1)
        hidden = self.embed(torch.where(mask[..., None], inputs, torch.zeros_like(inputs)))
        for layer in self.layers:
            hidden, local = layer(hidden, local, mask)
        return hidden, torch.where(mask[..., None], local * unit + centre, torch.zeros_like(local))

    def forward(self, points: Tensor, mask: Tensor | None = None, features: Tensor | None = None) -> Tensor:
        """(b, n, d) -> (b, n_out), the same for every rotation, mirror image, shift and order of the points."""
        hidden, _ = self.layer_outputs(points, mask, features)
        both = torch.cat([pool(hidden, mask, "mean"), pool(hidden, mask, "max")], dim=-1)
        return self.answer(self.norm(both))


def egnn(
    n_out: int, *, in_features: int = 0, width: int = 32, depth: int = 3, neighbours: int | None = 16,
    unit: float | None = None,
) -> CloudNetwork:  # fmt: skip
    """An E(n)-equivariant graph network with an invariant answer, for the plane and for space.

    Parameters
    ----------
    n_out : int
        Outputs, for example classes.
    in_features : int, default 0
        Invariant numbers given with each point, such as its colour.
    width : int, default 32
        Channels.
    depth : int, default 3
        Layers.
    neighbours : int or None, default 16
        Nearest neighbours that send messages to a point; None for all.
    unit : float, optional
        Length that counts as 1, where absolute lengths matter (molecules, for example). By default the size of each
        cloud does, so that the answer does not depend on scale either.

    Returns
    -------
    CloudNetwork

    Examples
    --------
    >>> net, cloud = egnn(4).eval(), torch.rand(2, 30, 3)
    >>> torch.allclose(net(cloud), net(3000 - 1000 * cloud), atol=1e-4)  # mirrored, scaled and shifted
    True
    """
    return CloudNetwork([EGNNLayer(width, neighbours) for _ in range(depth)], in_features, width, n_out, unit)


def ga_attention(
    n_out: int, *, in_features: int = 0, width: int = 32, depth: int = 2, rank: int = 2, neighbours: int | None = 32,
    unit: float | None = None,
) -> CloudNetwork:  # fmt: skip
    """A network of geometric-algebra attention with an invariant answer.

    Parameters
    ----------
    n_out : int
    in_features, width, depth : int, default 0, 32 and 2
    unit : float, optional
        All as in :func:`egnn`.
    rank : {2, 3}, default 2
        Points in each product; 3 costs n k^2.
    neighbours : int or None, default 32
        The k nearest neighbours that a point attends to; None for all.

    Returns
    -------
    CloudNetwork

    Examples
    --------
    >>> ga_attention(4, rank=3)(torch.rand(2, 6, 2)).shape
    torch.Size([2, 4])
    """
    return CloudNetwork([GAAttention(width, rank, neighbours) for _ in range(depth)], in_features, width, n_out, unit)


class _Iterate(nn.Module):
    """Apply one equivariant layer several times, with its own points as the next input."""

    def __init__(self, layer: nn.Module, times: int) -> None:
        super().__init__()
        if times < 1:
            raise ValueError(f"times must be at least 1, got {times}")
        self.layer, self.times = layer, times

    def forward(self, features: Tensor, points: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(b, n, c), (b, n, d), (b, n) -> (b, n, c), (b, n, d)"""
        for _ in range(self.times):
            features, points = self.layer(features, points, mask)
        return features, points


def iterate(layer: nn.Module, times: int) -> nn.Module:
    """Refine features and points by the same layer several times, with shared weights.

    Parameters
    ----------
    layer : nn.Module
        An :class:`EGNNLayer`, a :class:`GAAttention`, or any module with the same call.
    times : int
        Number of passes.

    Returns
    -------
    nn.Module
        Takes and returns what the layer does.

    Examples
    --------
    >>> len(list(iterate(EGNNLayer(4), 3).parameters())) == len(list(EGNNLayer(4).parameters()))
    True
    """
    return _Iterate(layer, times)
