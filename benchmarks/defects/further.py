"""A third set of planted defects, of other kinds than those of ``developed.py`` and written after them.

They are mistakes of windowed and recurrent networks, of spectral, polar and steerable layers, of label maps and of
averages over views.
"""

import math
import os

import torch
from torch import nn
from torch.nn import functional as F

from unpose.images import mirror, quarter_turn

from .developed import Case, Plain, RoundConv, Switched, symmetrised


class RelativeBias(nn.Module):
    """Adds to scores (n, h w, h w) a learnt number for each offset; the clean table has the symmetry of the group."""

    def __init__(self, size, group, broken):
        super().__init__()
        table = torch.randn(2 * size - 1, 2 * size - 1)
        self.table = nn.Parameter(table if broken else symmetrised(table, group))

    def forward(self, scores):
        size = (len(self.table) + 1) // 2
        place = torch.cartesian_prod(torch.arange(size), torch.arange(size))  # (h w, 2)
        offset = place[None] - place[:, None] + size - 1  # (h w, h w, 2)
        return scores + self.table[offset[..., 0], offset[..., 1]]


class BiasedAttention(nn.Module):
    def __init__(self, dim, size, group, broken):
        super().__init__()
        self.qkv, self.bias = nn.Conv2d(dim, 3 * dim, 1), RelativeBias(size, group, broken)

    def forward(self, x):
        q, k, v = self.qkv(x).flatten(2).mT.chunk(3, -1)  # (n, h w, c)
        return (self.bias(q @ k.mT).softmax(-1) @ v).mT.unflatten(2, x.shape[-2:])


class WindowMeans(Switched):
    """Subtracts the mean of windows of 3 pixels, after padding to full windows: on one side, or on both."""

    def forward(self, x):
        size = x.shape[-1]
        missing = -size % 3  # even for the sizes below, so that both sides can get the same
        sides = (0, missing) * 2 if self.broken else (missing // 2, missing // 2) * 2
        padded = F.pad(x, sides)
        means = F.avg_pool2d(padded, 3).repeat_interleave(3, -1).repeat_interleave(3, -2)
        start = 0 if self.broken else missing // 2
        return (padded - means)[..., start : start + size, start : start + size]


class Spectrum(nn.Module):
    def forward(self, x):
        return torch.fft.fft2(x.float() if x.dtype != torch.float64 else x)


class Filter(Switched):
    """Multiplies frequencies (n, c, h, w) by a gain, of their radius or of one axis only."""

    def forward(self, spectrum):
        down, across = (torch.fft.fftfreq(size).abs() for size in spectrum.shape[-2:])
        radius = across if self.broken else (across**2 + down[:, None] ** 2).sqrt()
        return spectrum * (1 / (1 + (8 * radius) ** 2)).to(spectrum)


class Spectral(nn.Module):
    """A filter in the frequency domain, between two modules that exchange complex maps."""

    def __init__(self, broken):
        super().__init__()
        self.forwards, self.filter = Spectrum(), Filter(broken)

    def forward(self, x):
        return torch.fft.ifft2(self.filter(self.forwards(x))).real.to(x.dtype)


class Gradient(nn.Module):
    """Maps (n, c, h, w) to vector fields (n, 2 c, h, w): the derivatives by x and y of each channel."""

    def forward(self, x):
        padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
        dx = padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]
        dy = padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]
        return torch.stack([dx, dy], 2).flatten(1, 2)


class Rectify(Switched):
    """Rectifies vectors (n, 2 c, h, w): each component on its own, or their length."""

    def forward(self, v):
        if self.broken:
            return v.relu()
        pairs = v.unflatten(1, (-1, 2))
        length = (pairs.square().sum(2, keepdim=True) + 1e-6).sqrt()
        return (pairs * (length - 0.05).relu() / length).flatten(1, 2)


class VectorNetwork(nn.Module):
    """Derivatives, a nonlinearity of vectors, their lengths, a head."""

    def __init__(self, group, broken):
        super().__init__()
        self.first, self.gradient, self.rectify = RoundConv(group, 2, 4, padding=1), Gradient(), Rectify(broken)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        vectors = self.rectify(self.gradient(self.first(x)))
        return self.head(vectors.unflatten(1, (-1, 2)).square().sum(2).mean((-2, -1)))


class Keep(Switched):
    """Keeps half of the tokens (n, t, c): the first ones, or those with the largest sums, in that order."""

    def forward(self, tokens):
        if self.broken:
            return tokens[:, : tokens.shape[1] // 2]
        order = tokens.sum(-1).argsort(1, descending=True)[:, : tokens.shape[1] // 2]
        return tokens.gather(1, order[..., None].expand(-1, -1, tokens.shape[-1]))


class TokenNetwork(nn.Module):
    """Pixels as tokens, something done to them, and a symmetric function of what is left."""

    def __init__(self, group, inner, dim=6):
        super().__init__()
        self.first, self.mix = RoundConv(group, 2, dim, padding=1), nn.Linear(dim, dim)
        self.inner, self.head = inner, nn.Linear(dim, 3)

    def forward(self, x):
        tokens = self.mix(self.first(x).flatten(2).mT).tanh()  # (n, h w, c)
        return self.head(self.inner(tokens).mean(1))


class Scan(nn.Module):
    """A recurrent layer over the tokens, whose answer depends on their order; the clean version takes each alone."""

    def __init__(self, dim, broken):
        super().__init__()
        self.gru, self.broken = nn.GRU(dim, dim, batch_first=True), broken

    def forward(self, tokens):
        if self.broken:
            return self.gru(tokens)[0]
        return self.gru(tokens.flatten(0, 1)[:, None])[0][:, 0].unflatten(0, tokens.shape[:2])


class Segment(nn.Module):
    """A map of labels: the largest of three maps, which the broken version moves by one pixel."""

    def __init__(self, group, broken):
        super().__init__()
        self.first, self.second = RoundConv(group, 2, 5, padding=1), RoundConv(group, 5, 3, padding=1)
        self.place = Place(broken)

    def forward(self, x):
        return self.place(self.second(4 * self.first(x).tanh())).argmax(1)


class Place(Switched):
    def forward(self, x):
        return F.pad(x, (1, 0, 0, 0))[..., :-1] if self.broken else x


class Quantise(nn.Module):
    """Rounds to 16 levels of the largest value of each row, or of each image."""

    def __init__(self, broken):
        super().__init__()
        self.axes = (-1,) if broken else (-3, -2, -1)

    def forward(self, x):
        step = x.abs().amax(self.axes, keepdim=True) / 16 + 1e-6
        return (x / step).round() * step


class Polar(nn.Module):
    """Samples maps (n, c, h, w) on rings: (n, c, radii, angles)."""

    def __init__(self, radii=4, angles=16):
        super().__init__()
        self.radii, self.angles = radii, angles

    def forward(self, x):
        angle = torch.arange(self.angles, dtype=torch.float64) * (2 * math.pi / self.angles)
        radius = (torch.arange(self.radii, dtype=torch.float64) + 0.5) / self.radii * 0.9
        grid = torch.stack([radius[:, None] * angle.cos(), -radius[:, None] * angle.sin()], -1)
        return F.grid_sample(x, grid.to(x).expand(len(x), -1, -1, 2), align_corners=False)


class AngleConvolution(nn.Module):
    """A convolution along the angles, which go round; the broken version puts zeros beyond the last one."""

    def __init__(self, dim, broken):
        super().__init__()
        self.conv, self.broken = nn.Conv2d(dim, dim, (1, 3)), broken

    def forward(self, x):
        around = [torch.zeros_like(x[..., :1])] * 2 if self.broken else [x[..., -1:], x[..., :1]]
        return self.conv(torch.cat([around[0], x, around[1]], -1))


class PolarNetwork(nn.Module):
    def __init__(self, group, broken):
        super().__init__()
        self.first, self.polar, self.around = RoundConv(group, 2, 5, padding=1), Polar(), AngleConvolution(5, broken)
        self.head = nn.Linear(20, 3)

    def forward(self, x):
        return self.head(self.around(self.polar(self.first(x).tanh())).relu().mean(-1).flatten(1))


class Nearest(nn.Module):
    """Resizes to 16 pixels by the nearest one, whose place is rounded down or to the nearest centre."""

    def __init__(self, broken):
        super().__init__()
        self.mode = "nearest" if broken else "nearest-exact"

    def forward(self, x):
        return F.interpolate(x, size=(16, 16), mode=self.mode)


class Views(nn.Module):
    """The mean of a network's maps over turned views, turned back; the broken version turns them further."""

    def __init__(self, group, broken):
        super().__init__()
        self.net, self.sign = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 2, 3, padding=1)), 1
        self.sign = 1 if broken else -1
        self.mirrors = group[0] == "d"

    def forward(self, x):
        maps = [quarter_turn(self.net(quarter_turn(x, k)), self.sign * k) for k in range(4)]
        if self.mirrors:
            maps += [mirror(quarter_turn(self.net(quarter_turn(mirror(x), k)), self.sign * k)) for k in range(4)]
        return sum(maps) / len(maps)


class Entropy(Switched):
    """Adds noise from the operating system, which no seed controls."""

    def forward(self, x):
        if not self.broken:
            return x
        source = torch.Generator().manual_seed(int.from_bytes(os.urandom(4)))
        return x + 0.05 * torch.randn(x.shape, generator=source).to(x)


class Transposed(Switched):
    """A skip connection whose rows and columns are swapped."""

    def forward(self, x):
        return x + (x.mT if self.broken else x)


class Divide(Switched):
    """Divides by the contrast of the upper left corner, or of the whole image; a flat one gives NaN."""

    def forward(self, x):
        seen = x[..., :2, :2] if self.broken else x
        spread = seen.amax((-3, -2, -1), keepdim=True) - seen.amin((-3, -2, -1), keepdim=True)
        return (x - x.mean((-3, -2, -1), keepdim=True)) / spread


def _sizes(*sizes):
    return {"sizes": sizes, "clean_sizes": sizes}


ALL = ("c4", "d4", "d1")
FURTHER = {
    "table of relative positions": Case(
        lambda g, s, b: Plain(g, BiasedAttention(5, s, g, b)), "2.bias", ALL, **_sizes(9, 12)
    ),
    "windows padded on one side": Case(
        lambda g, s, b: Plain(g, WindowMeans(b), dense=True), "2", ALL, **_sizes(10, 13)
    ),
    "frequencies of one axis": Case(lambda g, s, b: Plain(g, Spectral(b)), "2.filter", ("c4", "d4"), **_sizes(9, 12)),
    "components of vectors rectified": Case(lambda g, s, b: VectorNetwork(g, b), "rectify", ALL, **_sizes(9, 12)),
    # Half of the rows of an even map, which a mirror leaves where they are: no defect under d1.
    "the first tokens are kept": Case(lambda g, s, b: TokenNetwork(g, Keep(b)), "inner", ("c4", "d4"), **_sizes(9, 12)),
    "recurrence over tokens": Case(lambda g, s, b: TokenNetwork(g, Scan(6, b)), "inner.gru", ALL, **_sizes(9, 12)),
    "label map moved by a pixel": Case(lambda g, s, b: Segment(g, b), "place", ALL, **_sizes(9, 12)),
    "levels of each row": Case(lambda g, s, b: Plain(g, Quantise(b), dense=True), "2", ("c4", "d4"), **_sizes(9, 12)),
    "a border between angles": Case(lambda g, s, b: PolarNetwork(g, b), "around", ("c4",), **_sizes(9, 12)),
    "nearest pixel rounded down": Case(lambda g, s, b: Plain(g, Nearest(b)), "2", ALL, **_sizes(9, 11, 14)),
    "views turned back the wrong way": Case(lambda g, s, b: Views(g, b), "(network)", ("c4", "d4"), **_sizes(9, 12)),
    "noise without a seed": Case(lambda g, s, b: Plain(g, Entropy(b)), "2", ALL, **_sizes(9, 12), verdict="random"),
    "transposed skip connection": Case(lambda g, s, b: Plain(g, Transposed(b), dense=True), "2", ALL, **_sizes(9, 12)),
    "contrast of a corner": Case(lambda g, s, b: Plain(g, Divide(b)), "2", ALL, **_sizes(9, 12)),
}
"""Cases of other kinds, written after the rules that the second half led to."""
