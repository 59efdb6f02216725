"""Layers on point clouds that commute with rotations, mirrors, shifts and permutations, in the plane and in space.

Features stay the same and points move along when a cloud is moved. Both hold by construction: layers see points only
through scalar products of differences, and move them along differences.
"""

import torch
from torch import Tensor, nn

from unpose.points.clouds import check_cloud, gather, mlp, neighbours, pool


class EGNNLayer(nn.Module):
    """One layer of an E(n)-equivariant graph network (Satorras, Hoogeboom and Welling, 2021, equations 3 to 6).

    Messages depend on squared distances and on the features of both points; points move along differences to their
    neighbours, by amounts that depend on the messages.

    Parameters
    ----------
    width : int
        Channels of the features, in and out.
    neighbours : int, optional
        Nearest neighbours that send messages; all other points by default.
    move : bool, default True
        Whether points move; without, only features change.

    Examples
    --------
    >>> features, points = EGNNLayer(8)(torch.rand(2, 5, 8), torch.rand(2, 5, 3), torch.ones(2, 5, dtype=torch.bool))
    >>> features.shape, points.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 5, 3]))
    """

    def __init__(self, width: int, neighbours: int | None = None, move: bool = True) -> None:
        super().__init__()
        self.k = neighbours
        # The first linear map of the messages is applied to each point once, and not to each pair.
        self.from_self, self.from_other = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.from_distance = nn.Linear(2, width, bias=False)
        self.message = nn.Sequential(nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.gate = nn.Linear(width, 1)
        self.move = mlp(width, width, 1) if move else None
        self.update = mlp(2 * width, width, width)

    def forward(self, features: Tensor, points: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(b, n, width), (b, n, d), (b, n) -> (b, n, width), (b, n, d)"""
        index, exists = neighbours(points, mask, self.k)
        difference = points[:, :, None] - gather(points, index)  # (b, n, k, d)
        square = torch.where(exists, difference.square().sum(-1), torch.zeros_like(difference[..., 0]))[..., None]
        # The logarithm keeps small distances apart, which decide about local form.
        distance = self.from_distance(torch.cat([square, (square + 1e-3).log()], dim=-1))
        message = self.message(
            self.from_self(features)[:, :, None] + gather(self.from_other(features), index) + distance
        )
        message = message * self.gate(message).sigmoid() * exists[..., None]  # (b, n, k, width)
        count = exists.sum(2, keepdim=True).clamp(min=1)  # (b, n, 1)
        if self.move is not None:
            # Bounded steps: dividing by 1 + distance keeps far points from throwing each other out of the cloud.
            step = difference / (1 + (square + 1e-8).sqrt()) * self.move(message) * exists[..., None]
            points = points + torch.where(mask[..., None], step.sum(2) / count, torch.zeros_like(points))
        features = features + self.update(torch.cat([features, message.sum(2) / count], dim=-1))
        return torch.where(mask[..., None], features, torch.zeros_like(features)), points


class GAAttention(nn.Module):
    """Attention weighted by geometric products of differences (Spellings, 2021, for small clouds).

    Around each point, the geometric product of the vectors u, v to two others has the scalar part ``u . v`` and the
    bivector part ``u ^ v``. Their sizes are invariant to rotations and mirrors. With ``rank=2`` values and scores
    depend on one other point; with ``rank=3`` on all pairs of other points, which costs n^3.

    Parameters
    ----------
    width : int
        Channels of the features, in and out.
    rank : {2, 3}, default 2
        Points in each product.

    Examples
    --------
    >>> features, points = GAAttention(8)(torch.rand(2, 5, 8), torch.rand(2, 5, 3), torch.ones(2, 5, dtype=torch.bool))
    >>> features.shape, points.shape
    (torch.Size([2, 5, 8]), torch.Size([2, 5, 3]))
    """

    def __init__(self, width: int, rank: int = 2) -> None:
        super().__init__()
        if rank not in (2, 3):
            raise ValueError(f"rank must be 2 or 3, got {rank}")
        self.rank = rank
        self.value = mlp(rank * width + (1 if rank == 2 else 4), width, width)
        self.score = mlp(width, width, 1)
        self.vector = mlp(width, width, 1)

    def forward(self, features: Tensor, points: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """(b, n, width), (b, n, d), (b, n) -> (b, n, width), (b, n, d)"""
        n, there = points.shape[1], mask[:, None, :] & mask[:, :, None]
        there = there & ~torch.eye(n, dtype=torch.bool, device=points.device)
        difference = points[:, None] - points[:, :, None]  # (b, i, j, d): from i to j
        difference = torch.where(there[..., None], difference, torch.zeros_like(difference))
        length = difference.square().sum(-1)  # (b, i, j)
        if self.rank == 2:
            value = self.value(_tuples(features, length[..., None], n, pairs=False))  # (b, i, j, width)
            vectors, allowed = difference, there
        else:
            dot = torch.einsum("bijd,bikd->bijk", difference, difference)
            wedge = length[:, :, :, None] * length[:, :, None, :] - dot.square()  # |u ^ v|^2 by Lagrange's identity
            sizes = torch.stack(
                [dot, wedge.clamp(min=0), length[..., None].expand_as(dot), length[:, :, None].expand_as(dot)], dim=-1
            )
            value = self.value(_tuples(features, sizes, n, pairs=True)).flatten(2, 3)  # (b, i, j * k, width)
            vectors = (difference[:, :, :, None] + difference[:, :, None]).flatten(2, 3)
            different = ~torch.eye(n, dtype=torch.bool, device=points.device)
            allowed = (there[:, :, :, None] & there[:, :, None] & different).flatten(2, 3)
        score = self.score(value)[..., 0].masked_fill(~allowed, -1e30)
        weight = score.softmax(2) * allowed  # a point without others attends to nothing
        moved = torch.einsum("bij,bijd->bid", weight * self.vector(value)[..., 0].tanh(), vectors)
        features = features + torch.einsum("bij,bijc->bic", weight, value)
        return torch.where(mask[..., None], features, torch.zeros_like(features)), points + moved


class CloudNetwork(nn.Module):
    """Equivariant layers on a cloud and a pooled, invariant answer; made by :func:`egnn` and :func:`ga_attention`.

    Parameters
    ----------
    layers : list of nn.Module
        Each maps ``(features, points, mask)`` to new features and points.
    in_features : int
        Invariant numbers given with each point; 0 for bare points.
    width : int
        Channels.
    n_out : int
        Outputs of the pooled answer.

    Examples
    --------
    >>> CloudNetwork([EGNNLayer(4)], 0, 4, 2)(torch.rand(1, 6, 3)).shape
    torch.Size([1, 2])
    """

    def __init__(self, layers: list[nn.Module], in_features: int, width: int, n_out: int) -> None:
        super().__init__()
        self.in_features = in_features
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
        points = torch.where(mask[..., None], points, torch.zeros_like(points))
        total = mask.sum(1)[:, None, None]
        radius = (points - points.sum(1, keepdim=True) / total).norm(dim=-1, keepdim=True)  # (b, n, 1)
        inputs = radius if features is None else torch.cat([radius, features.to(points)], dim=-1)
        hidden = self.embed(torch.where(mask[..., None], inputs, torch.zeros_like(inputs)))
        for layer in self.layers:
            hidden, points = layer(hidden, points, mask)
        return hidden, points

    def forward(self, points: Tensor, mask: Tensor | None = None, features: Tensor | None = None) -> Tensor:
        """(b, n, d) -> (b, n_out), the same for every rotation, mirror image, shift and order of the points."""
        hidden, _ = self.layer_outputs(points, mask, features)
        both = torch.cat([pool(hidden, mask, "mean"), pool(hidden, mask, "max")], dim=-1)
        return self.answer(self.norm(both))


def egnn(
    n_out: int, *, in_features: int = 0, width: int = 32, depth: int = 3, neighbours: int | None = 16
) -> CloudNetwork:
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

    Returns
    -------
    CloudNetwork

    Examples
    --------
    >>> net, cloud = egnn(4).eval(), torch.rand(2, 30, 3)
    >>> torch.allclose(net(cloud), net(3 - cloud), atol=1e-5)  # mirrored at the origin, and shifted
    True
    """
    layers: list[nn.Module] = [EGNNLayer(width, neighbours) for _ in range(depth)]
    return CloudNetwork(layers, in_features, width, n_out)


def ga_attention(n_out: int, *, in_features: int = 0, width: int = 32, depth: int = 2, rank: int = 2) -> CloudNetwork:
    """A network of geometric-algebra attention with an invariant answer, for small clouds.

    Parameters
    ----------
    n_out : int
        Outputs.
    in_features : int, default 0
        Invariant numbers given with each point.
    width : int, default 32
        Channels.
    depth : int, default 2
        Layers.
    rank : {2, 3}, default 2
        Points in each product; 3 costs n^3.

    Returns
    -------
    CloudNetwork

    Examples
    --------
    >>> ga_attention(4, rank=3)(torch.rand(2, 6, 2)).shape
    torch.Size([2, 4])
    """
    layers: list[nn.Module] = [GAAttention(width, rank) for _ in range(depth)]
    return CloudNetwork(layers, in_features, width, n_out)


class Iterate(nn.Module):
    """Apply one equivariant layer several times, with its own points as the next input; made by :func:`iterate`.

    Parameters
    ----------
    layer : nn.Module
        Maps ``(features, points, mask)`` to new features and points.
    times : int
        Number of passes.

    Examples
    --------
    >>> Iterate(EGNNLayer(4), 2)(torch.rand(1, 5, 4), torch.rand(1, 5, 2), torch.ones(1, 5, dtype=torch.bool))[1].shape
    torch.Size([1, 5, 2])
    """

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


def iterate(layer: nn.Module, times: int) -> Iterate:
    """Refine features and points by the same layer several times, with shared weights.

    Parameters
    ----------
    layer : nn.Module
        An :class:`EGNNLayer`, a :class:`GAAttention`, or any module with the same call.
    times : int
        Number of passes.

    Returns
    -------
    Iterate

    Examples
    --------
    >>> len(list(iterate(EGNNLayer(4), 3).parameters())) == len(list(EGNNLayer(4).parameters()))
    True
    """
    return Iterate(layer, times)


def _tuples(features: Tensor, sizes: Tensor, n: int, pairs: bool) -> Tensor:
    """Features of all members of pairs (b, i, j, .) or triples (b, i, j, k, .), with the sizes of their products."""
    b, _, c = features.shape
    if not pairs:
        both = (features[:, :, None].expand(b, n, n, c), features[:, None].expand(b, n, n, c))
        return torch.cat([*both, sizes], dim=-1)
    shape = (b, n, n, n, c)
    members = (features[:, :, None, None], features[:, None, :, None], features[:, None, None])
    return torch.cat([*(member.expand(shape) for member in members), sizes], dim=-1)
