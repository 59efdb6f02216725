"""A fourth set of planted defects, written after the rules that the third one led to and not used to change any."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from unpose.images import mirror, quarter_turn

from .developed import Case, Plain, RoundConv, Switched
from .further import Gradient


class Grow(nn.Module):
    """A transposed convolution by two, from the corner; the clean version cuts the same off both sides."""

    def __init__(self, group, dim, broken):
        super().__init__()
        kernel = RoundConv(group, dim, dim, 3).weight
        self.kernel, self.broken = nn.Parameter(kernel.detach().clone()), broken

    def forward(self, x):
        grown = F.conv_transpose2d(x, self.kernel, stride=2)  # 2 h + 1
        return grown[..., :-1, :-1] if self.broken else grown[..., 1:-1, 1:-1]


class Blur(nn.Module):
    """Blurs with the binomial kernel and keeps every second pixel; the broken version has an even kernel."""

    def __init__(self, broken):
        super().__init__()
        row = torch.tensor([1.0, 3, 3, 1] if broken else [1.0, 2, 1])
        self.register_buffer("kernel", row[:, None] * row / row.sum() ** 2)

    def forward(self, x):
        kernel = self.kernel.to(x.dtype).expand(x.shape[1], 1, -1, -1)
        return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), kernel, stride=2, groups=x.shape[1])


class Cosines(nn.Module):
    """The cosine transform of maps (n, c, h, w), as in JPEG."""

    def forward(self, x):
        size = x.shape[-1]
        place, order = torch.arange(size, dtype=torch.float64) + 0.5, torch.arange(size, dtype=torch.float64)
        basis = torch.cos(math.pi / size * order[:, None] * place).to(x.dtype)
        return basis @ x @ basis.T


class Powers(Switched):
    """Scaled squares of the coefficients: by their distance to zero frequency, or by rows more than by columns."""

    def forward(self, x):
        order = torch.arange(x.shape[-1], dtype=x.dtype)
        away = order[:, None] ** 2 + (0.5 if self.broken else 1) * order**2
        return x.square() / (1 + away)


class CosineNetwork(nn.Module):
    def __init__(self, group, broken):
        super().__init__()
        self.first, self.cosines, self.powers = RoundConv(group, 2, 4, padding=1), Cosines(), Powers(broken)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head((1 + self.powers(self.cosines(self.first(x)))).log().mean((-2, -1)))


class Pairs(nn.Module):
    """A linear map of vectors (n, 2 k, h, w) that mixes them; the broken version has other weights for x and for y."""

    def __init__(self, vectors, broken):
        super().__init__()
        self.along = nn.Parameter(torch.randn(vectors, vectors))
        self.across = nn.Parameter(torch.randn(vectors, vectors) if broken else self.along.detach().clone())

    def forward(self, v):
        x, y = v[:, ::2], v[:, 1::2]
        x, y = torch.einsum("ab,nbhw->nahw", self.along, x), torch.einsum("ab,nbhw->nahw", self.across, y)
        return torch.stack([x, y], 2).flatten(1, 2)


class MixedVectors(nn.Module):
    def __init__(self, group, broken):
        super().__init__()
        self.first, self.gradient, self.mix = RoundConv(group, 2, 4, padding=1), Gradient(), Pairs(4, broken)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        vectors = self.mix(self.gradient(self.first(x)))
        return self.head(vectors.unflatten(1, (-1, 2)).square().sum(2).sqrt().mean((-2, -1)))


class Locate(Switched):
    """The place of the largest mass as x and y in [-1, 1], by softmax; the broken version counts rows from the edge."""

    def forward(self, x):
        size = x.shape[-1]
        place = torch.linspace(-1, 1, size, dtype=x.dtype)
        down = torch.linspace(-1, 1 - 2 / size, size, dtype=x.dtype) if self.broken else place
        weight = (4 * x).flatten(2).softmax(-1).unflatten(2, x.shape[-2:])
        return torch.stack([(weight * place).sum((-2, -1)), (weight * down[:, None]).sum((-2, -1))], -1)  # (n, c, 2)


class PlaceNetwork(nn.Module):
    """Where things are, and from their distances to the centre an answer."""

    def __init__(self, group, broken):
        super().__init__()
        self.first, self.locate, self.head = RoundConv(group, 2, 5, padding=1), Locate(broken), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.locate(self.first(x)).square().sum(-1))


class Sharpen(Switched):
    """Subtracts the mean of the four neighbours; the broken version takes one of them twice."""

    def forward(self, x):
        p = F.pad(x, (1, 1, 1, 1))
        up, down, left, right = p[..., :-2, 1:-1], p[..., 2:, 1:-1], p[..., 1:-1, :-2], p[..., 1:-1, 2:]
        return x - (up + down + left + (left if self.broken else right)) / 4


class Experts(nn.Module):
    """Chooses one of two branches for each image, by its spread or by its first row."""

    def __init__(self, dim, broken):
        super().__init__()
        self.one, self.other, self.broken = nn.Conv2d(dim, dim, 1), nn.Conv2d(dim, dim, 1), broken

    def forward(self, x):
        seen = x[..., :1, :].mean((1, 2, 3)) if self.broken else x.flatten(1).std(1)
        return torch.where((seen > x.mean((1, 2, 3)))[:, None, None, None], self.one(x), self.other(x))


class TwoViews(nn.Module):
    """The largest answer over turned views; the broken version turns the last one twice as far."""

    def __init__(self, broken):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
        self.turns = (0, 1, 2, 2) if broken else (0, 1, 2, 3)

    def forward(self, x):
        return torch.stack([self.net(quarter_turn(x, k)) for k in self.turns]).amax(0)


class OneSided(nn.Module):
    """A convolution after circular padding of two pixels on one side, or of one on both."""

    def __init__(self, group, dim, broken):
        super().__init__()
        self.conv, self.sides = RoundConv(group, dim, dim), (2, 0, 2, 0) if broken else (1, 1, 1, 1)

    def forward(self, x):
        return self.conv(F.pad(x, self.sides, mode="circular"))


class Integral(nn.Module):
    """Means of 3 x 3 pixels from sums over all pixels above and to the left, in half or in double precision."""

    def __init__(self, broken):
        super().__init__()
        self.type = torch.float16 if broken else torch.float64

    def forward(self, x):
        sums = F.pad(x, (2, 1, 2, 1)).to(self.type).cumsum(-1).cumsum(-2)
        means = sums[..., 3:, 3:] - sums[..., :-3, 3:] - sums[..., 3:, :-3] + sums[..., :-3, :-3]
        return means.to(x.dtype) / 9


class PooledToTwo(nn.Sequential):
    """A classifier of maps that are pooled to 2 x 2 pixels and flattened, or to one."""

    def __init__(self, group, broken):
        side = 2 if broken else 1
        pooled = nn.AdaptiveAvgPool2d(side), nn.Flatten(), nn.Linear(5 * side**2, 8)
        super().__init__(RoundConv(group, 2, 5, padding=1), nn.ReLU(), *pooled, nn.ReLU(), nn.Linear(8, 3))


class MapsOfViews(nn.Module):
    """The sum of maps of transformed views; the broken version does not transform them back, so that none moves."""

    def __init__(self, group, broken):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1))
        self.views = [(k, flip) for k in range(1 if group == "d1" else 4) for flip in ([0, 1] if "d" in group else [0])]
        self.broken = broken

    def forward(self, x):
        maps = [self.net(quarter_turn(mirror(x) if flip else x, k)) for k, flip in self.views]
        if not self.broken:
            maps = [quarter_turn(each, -k) for each, (k, _) in zip(maps, self.views, strict=True)]
            maps = [mirror(each) if flip else each for each, (_, flip) in zip(maps, self.views, strict=True)]
        return sum(maps)


def _sizes(*sizes):
    return {"sizes": sizes, "clean_sizes": sizes}


ALL = ("c4", "d4", "d1")
LAST = {
    "growth from the corner": Case(lambda g, s, b: Plain(g, Grow(g, 5, b), dense=True), "2", ALL, **_sizes(9, 12)),
    "even blur before a stride": Case(lambda g, s, b: Plain(g, Blur(b)), "2", ALL, (9, 11), (9, 11)),
    "rows of cosines weighted": Case(lambda g, s, b: CosineNetwork(g, b), "powers", ("c4", "d4"), **_sizes(9, 12)),
    "other weights for x and y": Case(lambda g, s, b: MixedVectors(g, b), "mix", ("c4", "d4"), **_sizes(9, 12)),
    "places from an edge": Case(lambda g, s, b: PlaceNetwork(g, b), "locate", ("c4", "d4"), **_sizes(9, 12)),
    "a neighbour taken twice": Case(lambda g, s, b: Plain(g, Sharpen(b), dense=True), "2", ALL, **_sizes(9, 12)),
    "branch chosen by the first row": Case(lambda g, s, b: Plain(g, Experts(5, b)), "2", ("c4", "d4"), **_sizes(9, 12)),
    "a view turned twice as far": Case(lambda g, s, b: TwoViews(b), "(network)", ("c4",), **_sizes(9, 12)),
}
"""Cases that no rule of the audit was chosen on."""

TAUGHT = {
    "circular padding on one side": Case(
        lambda g, s, b: Plain(g, OneSided(g, 5, b), dense=True), "2", ALL, **_sizes(9, 12)
    ),
    "sums in half precision": Case(
        lambda g, s, b: Plain(g, Integral(b)), "2", ALL, **_sizes(9, 12), precisions=(torch.float32,)
    ),
    "two by two pixels flattened": Case(lambda g, s, b: PooledToTwo(g, b), "4", ALL, **_sizes(8, 12)),
    "maps of views not turned back": Case(lambda g, s, b: MapsOfViews(g, b), "(network)", ALL, **_sizes(9, 12)),
}
"""Of 42 cases written after all others, those that led to another rule."""
