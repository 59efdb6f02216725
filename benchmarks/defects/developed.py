"""Networks and functions with one known defect each, and the same without: what the audit must tell apart.

Every case is a function of the group and of a broken or clean version, so that a defect and its clean counterpart
differ in one place. ``DEVELOPED`` served to choose the rules of the audit; ``KEPT`` was written afterwards.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from unpose.groups import parse
from unpose.images import mirror, quarter_turn

from .group_networks import GroupConvolution, Lifting, PoolGroupAndPixels


@dataclass(frozen=True)
class Case:
    """A defect: how to make the broken and the clean model, on which groups and sizes it shows, which module it is."""

    make: object  # (group, size, broken) -> model
    module: str | None = None  # None: a function without modules
    groups: tuple = ("c4", "d4")
    sizes: tuple = (8, 9)  # at which the defect shows
    clean_sizes: tuple = (8, 9)  # at which the clean counterpart is clean
    verdict: str = "broken"
    actions: object = None
    precisions: tuple = (torch.float32, torch.bfloat16)
    channels: int = 2
    seed: int = 0
    more: dict = field(default_factory=dict)


class Switched(nn.Module):
    """A module with a defect, or without it; a subclass says in ``forward`` what the defect is."""

    def __init__(self, broken):
        super().__init__()
        self.broken = broken


def symmetrised(kernel, group):
    """The mean of a kernel (..., k, k) over the exact elements of a group."""
    views = [quarter_turn(kernel, k) for k in range(4)] if group != "d1" else [kernel]
    if group[0] == "d":
        views += [mirror(view) for view in views]
    return sum(views) / len(views)


class RoundConv(nn.Conv2d):
    """A convolution whose kernels have the symmetry of the group."""

    def __init__(self, group, channels, features, size=3, broken=False, **options):
        super().__init__(channels, features, size, **options)
        with torch.no_grad():
            if not broken:
                self.weight.copy_(symmetrised(self.weight, group))


class Stack(nn.Module):
    """conv - activation - middle - conv - pooled head: the middle is what is tested."""

    def __init__(self, group, middle, channels=2, features=6, head=True):
        super().__init__()
        self.first = RoundConv(group, channels, features, padding=1)
        self.act = nn.SiLU()
        self.middle = middle
        self.second = RoundConv(group, features, features, padding=1)
        self.head = nn.Linear(features, 5) if head else None

    def forward(self, x):
        x = self.second(self.middle(self.act(self.first(x))))
        return x if self.head is None else self.head(x.tanh().mean((-2, -1)))


class Crop(Switched):
    def forward(self, x):
        return x[..., 1:-2, 1:-2] if self.broken else x[..., 1:-1, 1:-1]


class Pool(Switched):
    """Pool by two; the clean version pads an odd map on neither side but pools it with a window of three."""

    def forward(self, x):
        odd = x.shape[-1] % 2
        return F.max_pool2d(x, 2) if self.broken or not odd else F.max_pool2d(x, 3, 2)


class Positions(nn.Module):
    """Adds a learnt code to every pixel; the clean version one of the distance to the centre."""

    def __init__(self, size, group, broken):
        super().__init__()
        code = torch.randn(size, size) * 0.1
        self.code = nn.Parameter(code if broken else symmetrised(code, group))

    def forward(self, x):
        return x + self.code


class Pad(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.sides = (1, 2, 1, 2) if broken else (1, 1, 1, 1)

    def forward(self, x):
        return F.pad(x, self.sides, mode="replicate")


class Norm(nn.Module):
    """Layer norm over the width instead of the channels."""

    def __init__(self, broken):
        super().__init__()
        self.axis = -1 if broken else 1

    def forward(self, x):
        mean, spread = x.mean(self.axis, keepdim=True), x.std(self.axis, keepdim=True)
        return (x - mean) / (spread + 0.1)


class Strided(Switched):
    """A stride of two on a map that must be odd; the clean version subsamples about the centre for any size."""

    def forward(self, x):
        if self.broken or x.shape[-1] % 2:
            return x[..., ::2, ::2]
        return F.avg_pool2d(x, 2)


class Resize(Switched):
    def forward(self, x):
        size = (x.shape[-2] + 3, x.shape[-1] + 3)
        if self.broken:  # pixel corners taken for pixel centres
            ys = torch.linspace(-1, 1 - 2 / size[0], size[0], dtype=x.dtype)
            grid = torch.stack(torch.meshgrid(ys, ys, indexing="xy"), -1).expand(len(x), -1, -1, 2)
            return F.grid_sample(x, grid, align_corners=False)
        return F.interpolate(x, size=size, mode="bilinear", align_corners=False)


class RoundsToBfloat16(Switched):
    def forward(self, x):
        # The rounding depends on where a pixel lies: the sum of a row is kept in bfloat16.
        return x.cumsum(-1).bfloat16().to(x.dtype).diff(dim=-1, prepend=x[..., :1] * 0) if self.broken else x


class DropoutOn(Switched):
    def forward(self, x):
        return F.dropout(x, 0.3, training=self.broken)


class BatchStatistics(nn.Module):
    def __init__(self, features, broken):
        super().__init__()
        self.norm = nn.BatchNorm2d(features, track_running_stats=not broken)

    def forward(self, x):
        return self.norm(x)


class Remembers(nn.Module):
    """A running mean that is updated in evaluation mode, too."""

    def __init__(self, broken):
        super().__init__()
        self.broken, self.last = broken, None

    def forward(self, x):
        if self.broken:
            self.last = x if self.last is None else 0.5 * (self.last + x)
            return self.last
        return x


class Attention(nn.Module):
    """Attention over all pixels: with positions of its own, with a causal mask, or right."""

    def __init__(self, features, size, defect=""):
        super().__init__()
        self.attend = nn.MultiheadAttention(features, 2, batch_first=True)
        self.code = nn.Parameter(0.3 * torch.randn(1, size * size, features)) if defect == "positions" else None
        self.defect = defect

    def forward(self, x):
        tokens = x.flatten(2).mT  # (n, h w, c)
        if self.code is not None:
            tokens = tokens + self.code
        mask = (
            torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1) if self.defect == "causal" else None
        )
        return self.attend(3 * tokens, 3 * tokens, tokens, attn_mask=mask)[0].mT.unflatten(2, x.shape[-2:])


class GroupNetwork(nn.Module):
    """Lift, convolve on the group, pool: with one part replaced."""

    def __init__(self, group, lift=None, middle=None, second=None):
        super().__init__()
        self.lift = lift or Lifting(group, 2, 3)
        self.middle = middle or nn.Identity()
        self.second = second or GroupConvolution(group, 3, 4)
        self.pool = PoolGroupAndPixels()
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.pool(self.second(self.middle(self.lift(x)).tanh())))


class UntiedLifting(Lifting):
    """One element has kernels of its own."""

    def __init__(self, group, channels, features):
        super().__init__(group, channels, features)
        self.kernels = self.kernels.clone()
        self.kernels[1] = torch.randn(self.kernels[1].shape, generator=torch.Generator().manual_seed(7)) * 0.3


class MirrorForTurn(Lifting):
    """The second quarter turn is a mirror."""

    def __init__(self, group, channels, features):
        super().__init__(group, channels, features)
        self.kernels = self.kernels.clone()
        self.kernels[2] = mirror(self.kernels[0])


class WrongOrder(GroupConvolution):
    """The product in the wrong order, k h^-1 instead of h^-1 k: right for groups in which both are equal."""

    def relative(self, h):
        return self.group.product[:, self.group.inverse[h]]


class ShiftedAxis(Switched):
    """The group axis of some channels is shifted by one element relative to the others, before they are mixed."""

    def forward(self, x):
        if not self.broken:
            return x
        order = torch.randperm(x.shape[2], generator=torch.Generator().manual_seed(3))
        return torch.cat([x[:, :1], x[:, 1:, order]], 1)


class Heads(nn.Module):
    """A mask and scores; one of the heads flips the image."""

    def __init__(self, group, broken):
        super().__init__()
        self.body = RoundConv(group, 2, 6, padding=1)
        self.mask = FlipHead(group, broken)
        self.scores = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))

    def forward(self, x):
        maps = self.body(x).tanh()
        return {"mask": self.mask(maps), "scores": self.scores(maps)}


class FlipHead(nn.Module):
    def __init__(self, group, broken):
        super().__init__()
        self.conv, self.broken = RoundConv(group, 6, 2, padding=1), broken

    def forward(self, x):
        return self.conv(x.flip(-1) if self.broken else x) + self.conv(x)


class Dilated(nn.Module):
    """A round kernel with another dilation along one axis."""

    def __init__(self, group, broken):
        super().__init__()
        self.conv = RoundConv(group, 6, 6, padding=(2, 1) if broken else 2, dilation=(2, 1) if broken else 2)

    def forward(self, x):
        return self.conv(x)


class FlattenHead(nn.Module):
    def __init__(self, group, size, broken):
        super().__init__()
        self.first = RoundConv(group, 2, 3, padding=1)
        self.classify = nn.Linear(3 * size * size if broken else 3, 5)
        self.broken = broken

    def forward(self, x):
        x = self.first(x).tanh()
        return self.classify(x.flatten(1) if self.broken else x.mean((-2, -1)))


class Ties(Switched):
    """Picks the features at the first of equal maxima; the clean version averages over all of them."""

    def forward(self, x):
        strength = (x.sum(1) * 0.5).round().clamp(-1, 1).flatten(1)  # (n, h w), many of them equal
        if self.broken:
            at = F.one_hot(strength.argmax(1), strength.shape[1]).to(x.dtype)
        else:
            at = (strength == strength.amax(1, keepdim=True)).to(x.dtype)
        at = at / at.sum(1, keepdim=True)
        return (x.flatten(2) * at[:, None]).sum(-1)


class TieNetwork(nn.Module):
    def __init__(self, group, broken):
        super().__init__()
        self.first, self.pick, self.head = RoundConv(group, 2, 6, padding=1), Ties(broken), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.pick(3 * self.first(x)))


def edge_function(broken):
    """A function on arrays: gradient magnitude by differences that are centred, or not."""

    def edges(images):
        images = np.asarray(images, dtype=np.float64)
        if broken:
            dy, dx = (
                np.diff(images, axis=-2, append=images[..., -1:, :]),
                np.diff(images, axis=-1, append=images[..., -1:]),
            )
        else:
            dy, dx = np.gradient(images, axis=-2), np.gradient(images, axis=-1)
        return np.hypot(dx, dy)

    return edges


def moments_function(broken):
    """A function on tensors: second moments about the image centre, or about a corner."""

    def moments(x):
        side = torch.arange(x.shape[-1], dtype=x.dtype)
        place = side if broken else side - (x.shape[-1] - 1) / 2
        return torch.stack([(x * (place**2 + place[:, None] ** 2)).mean((-2, -1)), x.mean((-2, -1))], -1).flatten(1)

    return moments


class PatchTransformer(nn.Module):
    """Patches, a class token, one block of attention, an answer read off the class token."""

    def __init__(self, group, size, defect, dim=8):
        super().__init__()
        self.patches = RoundConv(group, 2, dim, padding=1)
        self.token = nn.Parameter(torch.randn(1, 1, dim))
        self.place = TokenPlaces(size, dim, group, defect == "places")
        self.block = Block(dim, defect)
        self.norm = nn.LayerNorm(dim)
        self.answer = nn.Linear(dim, 4)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).mT
        tokens = self.place(torch.cat([self.token.expand(len(x), -1, -1), tokens], 1))
        return self.answer(self.norm(self.block(tokens))[:, 0])


class TokenPlaces(nn.Module):
    def __init__(self, size, dim, group, broken):
        super().__init__()
        code = torch.randn(dim, size, size)
        code = code if broken else symmetrised(code, group)
        self.code = nn.Parameter(0.2 * torch.cat([torch.zeros(1, dim), code.flatten(1).mT])[None])

    def forward(self, tokens):
        return tokens + self.code


class Block(nn.Module):
    def __init__(self, dim, defect):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.mix = nn.Linear(dim, 3 * dim), TokenMix(defect == "mixing")
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        q, k, v = self.qkv(3 * self.norm(x)).chunk(3, -1)
        x = x + self.mix((q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)
        return x + self.mlp(x)


class TokenMix(Switched):
    """The mean of every token and the one before it in the list; the clean version changes nothing."""

    def forward(self, x):
        return (x + x.roll(1, 1)) / 2 if self.broken else x


class UNet(nn.Module):
    """Down, up and a skip connection: a dense answer."""

    def __init__(self, group, defect):
        super().__init__()
        self.enter = RoundConv(group, 2, 4, padding=1)
        self.down = nn.AvgPool2d(2) if defect != "max with offset" else OffsetPool()
        self.inner = RoundConv(group, 4, 4, padding=1)
        self.up = Up(defect == "nearest from the corner")
        self.join = RoundConv(group, 8, 3, 1)

    def forward(self, x):
        x = self.enter(x).relu()
        inner = self.up(self.inner(self.down(x)).relu(), x.shape[-1])
        return self.join(torch.cat([x, inner], 1))


class OffsetPool(nn.Module):
    def forward(self, x):
        return F.avg_pool2d(F.pad(x, (1, 0, 1, 0)), 2)[..., : x.shape[-2] // 2, : x.shape[-1] // 2]


class Up(Switched):
    def forward(self, x, size):
        if self.broken:  # twice the size and a piece cut off or a row repeated
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            return F.pad(x, (0, 2, 0, 2), mode="replicate")[..., 1 : size + 1, 1 : size + 1]
        return F.interpolate(x, size=(size, size), mode="bilinear", align_corners=True)


class Gate(nn.Module):
    """Squeeze and excitation; the broken version squeezes the upper half of the image."""

    def __init__(self, dim, broken):
        super().__init__()
        self.scale, self.broken = nn.Linear(dim, dim), broken

    def forward(self, x):
        seen = x[..., : x.shape[-2] // 2, :] if self.broken else x
        return x * self.scale(seen.mean((-2, -1))).sigmoid()[..., None, None]


class Centred(nn.Module):
    """The vector from the centre to the centre of mass, in which one axis may be forgotten to be centred."""

    def __init__(self, group, broken):
        super().__init__()
        self.weigh, self.locate = RoundConv(group, 2, 1, padding=1), CentreOfMass(broken)

    def forward(self, x):
        return {"centre": self.locate(self.weigh(x).square()), "mass": self.weigh(x).square().mean((-2, -1))}


class CentreOfMass(Switched):
    def forward(self, w):
        place = torch.arange(w.shape[-1], dtype=w.dtype) - (w.shape[-1] - 1) / 2
        x = (w * place).sum((-2, -1)) / w.sum((-2, -1))
        y = (w * place[:, None]).sum((-2, -1)) / w.sum((-2, -1))
        return torch.cat([x + (y if self.broken else 0), y], -1)


class MergedNetwork(nn.Module):
    """The group axis merged into the channels, as many packages keep it: (n, c * order, h, w)."""

    def __init__(self, group, broken):
        super().__init__()
        self.lift, self.norm, self.group = Lifting(group, 2, 3), MergedNorm(group, 3, broken), parse(group)
        self.second, self.head = GroupConvolution(group, 3, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.norm(self.lift(x).flatten(1, 2))
        x = self.second(x.unflatten(1, (3, self.group.order)).tanh())
        return self.head(x.amax(2).mean((-2, -1)))


class MergedNorm(nn.Module):
    """Scales channels; the broken version has a factor for each element, too."""

    def __init__(self, group, channels, broken):
        super().__init__()
        order = parse(group).order
        factors = 1 + 0.5 * torch.rand(channels, order if broken else 1)
        self.factors = nn.Parameter(factors.expand(channels, order).flatten().clone())

    def forward(self, x):
        return x * self.factors[:, None, None]


class Rotations(nn.Module):
    """A plain network averaged over the group; the broken version leaves out one element."""

    def __init__(self, group, broken):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
        self.turns = 1 if group == "d1" else 4
        self.mirrors, self.broken = group[0] == "d", broken

    def forward(self, x):
        views = [quarter_turn(y, k) for y in ([x, mirror(x)] if self.mirrors else [x]) for k in range(self.turns)]
        return sum(self.net(view) for view in (views[1:] if self.broken else views))


class Noisy(Switched):
    """Adds noise to its input, as augmentation that was left on does."""

    def forward(self, x):
        return x + 0.05 * torch.randn_like(x) if self.broken else x


class Whiten(nn.Module):
    """Subtracts the mean of the batch instead of the mean of the image."""

    def __init__(self, broken):
        super().__init__()
        self.axes = (0, 2, 3) if broken else (2, 3)

    def forward(self, x):
        return x - x.mean(self.axes, keepdim=True)


class Counts(nn.Module):
    """Scales with the number of calls so far."""

    def __init__(self, broken):
        super().__init__()
        self.broken = broken
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.broken:
            self.calls += 1
        return x * (1 + 0.1 * self.calls)


class Plain(nn.Sequential):
    """Round convolutions around one module."""

    def __init__(self, group, inner, dim=5, dense=False):
        head = [] if dense else [nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(dim, 3)]
        super().__init__(
            RoundConv(group, 2, dim, padding=1), nn.ReLU(), inner, RoundConv(group, dim, dim, padding=1), *head
        )


class Separable(nn.Module):
    """A blur along rows and then along columns, of other widths."""

    def __init__(self, broken):
        super().__init__()
        self.widths = (3, 5) if broken else (3, 3)

    def forward(self, x):
        rows, columns = self.widths
        x = F.avg_pool2d(x, (rows, 1), 1, (rows // 2, 0))
        return F.avg_pool2d(x, (1, columns), 1, (0, columns // 2))


class Recurrent(Switched):
    """A sum along the rows from the left; the clean version from both sides and along the columns, too."""

    def forward(self, x):
        ways = [x.cumsum(-1)] if self.broken else [
            x.cumsum(-1), x.flip(-1).cumsum(-1).flip(-1), x.cumsum(-2), x.flip(-2).cumsum(-2).flip(-2)
        ]  # fmt: skip
        return sum(ways) / x.shape[-1]


class Coordinates(nn.Module):
    """Two more channels with the place of the pixel; the clean version has its distance to the centre, twice."""

    def __init__(self, dim, broken):
        super().__init__()
        self.mix, self.broken = nn.Conv2d(dim + 2, dim, 1), broken

    def forward(self, x):
        place = torch.linspace(-1, 1, x.shape[-1], dtype=x.dtype)
        shape = (len(x), 1, *x.shape[-2:])
        across, down = place.expand(shape), place[:, None].expand(shape)
        distance = (across**2 + down**2).sqrt()
        return self.mix(torch.cat([x, across, down] if self.broken else [x, distance, distance], 1))


class Shuffle(nn.Module):
    """Pixel shuffle: channels become pixels, in the order of a list; the clean version repeats pixels."""

    def __init__(self, dim, broken):
        super().__init__()
        self.grow, self.broken = nn.Conv2d(dim, 4 * dim, 1), broken

    def forward(self, x):
        x = self.grow(x)
        return F.pixel_shuffle(x, 2) if self.broken else x[:, ::4].repeat_interleave(2, -1).repeat_interleave(2, -2)


class Rolled(Switched):
    """Shifted windows whose shift is not undone by symmetry: a mean with the pixel three to the right."""

    def forward(self, x):
        return x + x.roll(3, -1) if self.broken else x + x.roll(3, -1) + x.roll(-3, -1) + x.roll(3, -2) + x.roll(-3, -2)


def orientation_histogram(broken):
    """A histogram of gradient directions, in four bins: it permutes under turns, unless the bins are uneven."""

    def histogram(x):
        dx = x[..., 1:-1, 2:] - x[..., 1:-1, :-2]
        dy = x[..., 2:, 1:-1] - x[..., :-2, 1:-1]
        angle = torch.atan2(dy, dx) / (torch.pi / 2)
        centres = [0, 1.3, 2, 3] if broken else [0, 1, 2, 3]
        weight = (dx**2 + dy**2).sqrt()
        bins = [(weight * torch.cos((angle - c) * torch.pi / 2).clamp(min=0) ** 3).mean((-2, -1)) for c in centres]
        return torch.stack(bins, -1).mean(1)

    return histogram


def nearest_labels(broken):
    """A cluster label from sorted pixels, or from pixels in their places."""

    def labels(images):
        rows = np.asarray(images, dtype=np.float64).reshape(len(images), -1)
        rows = rows if broken else np.sort(rows, axis=1)
        weights = np.random.default_rng(0).normal(size=rows.shape[1])
        return np.floor(7 * ((rows - rows.mean(1, keepdims=True)) @ weights)).astype(int) % 3

    return labels


def box_of_bright(broken):
    """The box around the bright pixels, as x0, y0, x1, y1 from the corner; broken: one side is a pixel short."""

    def boxes(x):
        bright = x.mean(1) > x.mean((1, 2, 3))[:, None, None] + 0.22
        found = []
        for mask in bright:
            ys, xs = torch.nonzero(mask, as_tuple=True)
            found.append([xs.min(), ys.min(), xs.max() + (not broken), ys.max() + 1])
        return torch.tensor(found, dtype=x.dtype)

    return boxes


KEPT = {
    "token places": Case(
        lambda g, s, b: PatchTransformer(g, s, "places" if b else ""), "place", ("c4", "d4", "d1"), (11, 14), (11, 14)
    ),
    "mixed tokens": Case(
        lambda g, s, b: PatchTransformer(g, s, "mixing" if b else ""),
        "block.mix",
        ("c4", "d4", "d1"),
        (11, 14),
        (11, 14),
    ),
    "pooling with an offset": Case(
        lambda g, s, b: UNet(g, "max with offset" if b else ""), "down", ("c4", "d4", "d1"), (10, 14), (10, 14)
    ),
    "upsampling from a corner": Case(
        lambda g, s, b: UNet(g, "nearest from the corner" if b else ""), "up", ("c4", "d4", "d1"), (10, 14), (10, 14)
    ),
    "gate of the upper half": Case(lambda g, s, b: Plain(g, Gate(5, b)), "2", ("c4", "d4"), (11, 14), (11, 14)),
    "skewed centre of mass": Case(lambda g, s, b: Centred(g, b), "locate", ("c4", "d4"), (11, 14), (11, 14)),
    "factors of elements": Case(lambda g, s, b: MergedNetwork(g, b), "norm", ("c4", "d4", "d1"), (7, 10), (7, 10)),
    "an element left out": Case(lambda g, s, b: Rotations(g, b), "(network)", ("c4", "d4"), (11, 14), (11, 14)),
    "noise left on": Case(lambda g, s, b: Plain(g, Noisy(b)), "2", ("c4", "d4", "d1"), (11, 14), (11, 14), "random"),
    "mean of the batch": Case(
        lambda g, s, b: Plain(g, Whiten(b)), "2", ("c4", "d4", "d1"), (11, 14), (11, 14), "batch"
    ),
    "a counter of calls": Case(
        lambda g, s, b: Plain(g, Counts(b)), "2", ("c4", "d4", "d1"), (11, 14), (11, 14), "stateful"
    ),
    "uneven blur": Case(lambda g, s, b: Plain(g, Separable(b), dense=True), "2", ("c4", "d4"), (11, 14), (11, 14)),
    "sum from the left": Case(lambda g, s, b: Plain(g, Recurrent(b)), "2", ("c4", "d4", "d1"), (11, 14), (11, 14)),
    "coordinate channels": Case(
        lambda g, s, b: Plain(g, Coordinates(5, b)), "2", ("c4", "d4", "d1"), (11, 14), (11, 14)
    ),
    "pixel shuffle": Case(
        lambda g, s, b: Plain(g, Shuffle(5, b), dense=True), "2", ("c4", "d4", "d1"), (7, 10), (7, 10)
    ),
    "shifted windows": Case(lambda g, s, b: Plain(g, Rolled(b)), "2", ("c4", "d4", "d1"), (11, 14), (11, 14)),
    "uneven bins": Case(
        lambda g, s, b: orientation_histogram(b), None, ("c4",), (11, 14), (11, 14), precisions=(torch.float32,)
    ),
    "labels by place": Case(
        lambda g, s, b: nearest_labels(b), None, ("c4", "d4", "d1"), (9, 12), (9, 12), precisions=(torch.float32,)
    ),
    # Under a mirror alone, a box that is a pixel short in x is one whose coordinates start at another place.
    "box one pixel short": Case(
        lambda g, s, b: box_of_bright(b), None, ("c4", "d4"), (11, 14), (11, 14), precisions=(torch.float32,)
    ),
    "max pool with a stride": Case(
        lambda g, s, b: Plain(g, nn.MaxPool2d(3, 2, padding=1 if b else 0)), "2", ("c4", "d4", "d1"), (10, 14), (11, 15)
    ),
    "reflected on one side": Case(
        lambda g, s, b: Plain(g, nn.ReflectionPad2d((2, 0, 2, 0) if b else 2)),
        "2",
        ("c4", "d4", "d1"),
        (11, 14),
        (11, 14),
    ),
    "even kernel": Case(
        lambda g, s, b: Plain(g, RoundConv(g, 5, 5, 4 if b else 3, padding="same"), dense=True),
        "2",
        ("c4", "d4", "d1"),
        (11, 14),
        (11, 14),
    ),
    "norm over channels and rows": Case(
        lambda g, s, b: Plain(g, nn.LayerNorm([s, s]) if b else nn.InstanceNorm2d(5)),
        "2",
        ("c4", "d4", "d1"),
        (11, 14),
        (11, 14),
        seed=3,
        more={"shake": "2"},
    ),
    "flipped half of the channels": Case(
        lambda g, s, b: Plain(g, Lambda(lambda x: torch.cat([x[:, :2], x[:, 2:].flip(-2)], 1) if b else x)),
        "2",
        ("c4",),
        (11, 14),
        (11, 14),
    ),
}
"""Cases that were written after the rules were fixed."""


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


DEVELOPED = {
    "crop off centre": Case(lambda g, s, b: Stack(g, Crop(b)), "middle", ("c4", "d4", "d1")),
    "pooling of odd maps": Case(lambda g, s, b: Stack(g, Pool(b)), "middle", ("c4", "d4", "d1"), sizes=(9,)),
    "position code": Case(lambda g, s, b: Stack(g, Positions(s, g, b)), "middle", ("c4", "d4", "d1")),
    "uneven padding": Case(lambda g, s, b: Stack(g, Pad(b)), "middle", ("c4", "d4", "d1")),
    "norm over the width": Case(lambda g, s, b: Stack(g, Norm(b)), "middle"),
    "stride of even maps": Case(lambda g, s, b: Stack(g, Strided(b)), "middle", ("c4", "d4", "d1"), sizes=(8,)),
    "corners for centres": Case(lambda g, s, b: Stack(g, Resize(b)), "middle", ("c4", "d4", "d1")),
    "rounds to bfloat16": Case(lambda g, s, b: Stack(g, RoundsToBfloat16(b)), "middle", precisions=(torch.float32,)),
    "dropout left on": Case(lambda g, s, b: Stack(g, DropoutOn(b)), "middle", verdict="random"),
    "batch statistics": Case(lambda g, s, b: Stack(g, BatchStatistics(6, b)), "middle.norm", verdict="batch"),
    "hidden state": Case(lambda g, s, b: Stack(g, Remembers(b)), "middle", verdict="stateful"),
    "positions in attention": Case(
        lambda g, s, b: Stack(g, Attention(6, s, "positions" if b else "")), "middle", ("c4", "d4", "d1")
    ),
    "causal mask": Case(
        lambda g, s, b: Stack(g, Attention(6, s, "causal" if b else "")), "middle.attend", ("c4", "d4", "d1")
    ),
    "untied element": Case(
        lambda g, s, b: GroupNetwork(g, lift=UntiedLifting(g, 2, 3) if b else None), "lift", ("c4", "d4", "d1")
    ),
    "mirror for a turn": Case(lambda g, s, b: GroupNetwork(g, lift=MirrorForTurn(g, 2, 3) if b else None), "lift"),
    "wrong order of the product": Case(
        lambda g, s, b: GroupNetwork(g, second=WrongOrder(g, 3, 4) if b else None), "second", ("d4",)
    ),
    "shuffled group axis": Case(lambda g, s, b: GroupNetwork(g, middle=ShiftedAxis(b)), "middle", ("d4",)),
    "flipped axis in one head": Case(lambda g, s, b: Heads(g, b), "mask", ("c4",)),
    "anisotropic kernel": Case(
        lambda g, s, b: Stack(g, RoundConv(g, 6, 6, 3, broken=b, padding=1)), "middle", ("c4", "d4", "d1")
    ),
    "uneven dilation": Case(lambda g, s, b: Stack(g, Dilated(g, b)), "middle.conv"),
    "flatten and linear": Case(lambda g, s, b: FlattenHead(g, s, b), "classify", ("c4", "d4", "d1")),
    "argmax tie": Case(lambda g, s, b: TieNetwork(g, b), "pick", precisions=(torch.float32,)),
    "differences to one side": Case(
        lambda g, s, b: edge_function(b), None, ("c4", "d4", "d1"), precisions=(torch.float32,)
    ),
    "moments about a corner": Case(
        lambda g, s, b: moments_function(b), None, ("c4", "d4", "d1"), precisions=(torch.float32,)
    ),
}
"""Cases on which the rules were chosen."""


def build(case, group, size, broken, precision):
    """A model of a case, with its own seed, in a precision."""
    torch.manual_seed(case.seed)
    model = case.make(group, size, broken)
    if isinstance(model, nn.Module):
        model = model.eval()
        if shaken := case.more.get("shake"):  # parameters that start as ones and zeros
            with torch.no_grad():
                for parameter in model.get_submodule(shaken).parameters():
                    parameter.add_(0.3 * torch.randn_like(parameter))
        for module in model.modules():  # kernels that are plain attributes
            if isinstance(getattr(module, "kernels", None), torch.Tensor):
                module.register_buffer("_kernels", module.kernels)
                del module.__dict__["kernels"]
                module.register_buffer("kernels", module._buffers.pop("_kernels"))
        model = model.to(precision)
    return model


def group_order(group):
    return parse(group).order
