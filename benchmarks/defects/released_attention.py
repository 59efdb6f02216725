"""The group self-attention of the paper's released code, written anew from its formulas: not equivariant on the group.

The output at (i, v) sums, over the queries g of all elements, attention to (j, m) with the scores
``q(i, g) . (k(j, m) + [row(v^-1 (x_j - x_i)), column(...), element(v + m - g)]) / sqrt(channels)``. The indices of the
elements are added, and ``v + m - g`` is not invariant if v, m and g are all shifted by the same rotation. The lifting
layer has no relative element, and is equivariant.
"""

import math

import torch
from torch import nn

from unpose.groups import parse


class Embedding(nn.Sequential):
    """A number in [-1, 1] to a vector: the small network of the paper."""

    def __init__(self, features):
        super().__init__(nn.Linear(1, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, features))


class ReleasedGroupAttention(nn.Module):
    """(n, c, order, h, w) -> (n, d, order, h, w), or (n, c, h, w) if it lifts; in windows, or global."""

    def __init__(self, group, channels, hidden, features, heads, right=False, window=None, lifts=False):
        super().__init__()
        self.group = parse(group)
        self.heads, self.hidden, self.window = heads, hidden, window
        self.place = hidden // (2 if lifts else 3)
        self.rows, self.columns = Embedding(self.place), Embedding(self.place)
        self.elements = None if lifts else nn.Embedding(self.group.order, hidden - 2 * self.place)
        self.query, self.key, self.value = (nn.Linear(channels, hidden * heads) for _ in range(3))
        self.out = nn.Linear(hidden * heads, features)
        index = torch.arange(self.group.order)
        v, g, m = index[:, None, None], index[:, None], index
        # (order, order, order): the released one, or one that is right, the key as seen from the output
        self.relative = ((m - v).expand(-1, len(index), -1) if right else v + m - g) % self.group.order

    def forward(self, maps):
        maps = maps[:, :, None] if self.elements is None else maps
        order, height, width = maps.shape[2:]
        pixels = height * width
        listed = maps.flatten(3).movedim(1, -1)  # (n, order, pixels, c)
        q, k, v = (
            layer(listed).unflatten(-1, (self.hidden, self.heads)) for layer in (self.query, self.key, self.value)
        )  # (n, order, pixels, hidden, heads)
        place = torch.stack(torch.meshgrid(torch.arange(width), torch.arange(height), indexing="xy"), -1).to(maps)
        offset = place.flatten(0, 1)[None] - place.flatten(0, 1)[:, None]  # (i, j, 2)
        reach = self.window // 2 if self.window else max(height, width) - 1
        seen = torch.einsum("vab,ijb->vija", self.group.elements.to(maps)[:, :2, :2].mT, offset / reach)
        encoding = torch.cat([self.rows(seen[..., 1:]), self.columns(seen[..., :1])], -1)  # (v, i, j, 2 place)
        scores = torch.einsum("ngicH,nmjcH->nHgimj", q, k)[:, :, None]
        scores = scores + torch.einsum("ngicH,vijc->nHvgij", q[..., : 2 * self.place, :], encoding)[..., None, :]
        if self.elements is not None:
            table = self.elements(self.relative)
            scores = scores + torch.einsum("ngicH,vgmc->nHvgim", q[..., 2 * self.place :, :], table)[..., None]
        outside = (offset.abs() > reach).any(-1)[:, None]  # (i, 1, j)
        scores = (scores / math.sqrt(maps.shape[1])).masked_fill(outside, -math.inf)  # (n, H, v, g, i, m, j)
        weights = scores.flatten(-2).softmax(-1).unflatten(-1, (order, pixels))
        mixed = torch.einsum("nHvgimj,nmjcH->nvicH", weights, v)
        return self.out(mixed.flatten(-2)).movedim(-1, 1).unflatten(-1, (height, width))
