"""A fifth set of planted defects, written without knowledge of the audit's rules and not used to change any."""

import random

import torch
from torch import nn
from torch.nn import functional as F

from unpose.groups import parse
from unpose.images import mirror, quarter_turn

from .developed import Case, GroupNetwork, Plain, RoundConv, Stack, Switched
from .further import Gradient, TokenNetwork
from .group_networks import GroupConvolution, Lifting


class VectorMix(nn.Module):
    """Mixes vectors (n, 2 k, h, w) by one matrix for both components; the broken version adds a learnt vector."""

    def __init__(self, vectors, broken):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(vectors, vectors) / vectors**0.5)
        self.bias = nn.Parameter(0.3 * torch.randn(2 * vectors, 1, 1)) if broken else None

    def forward(self, v):
        v = torch.einsum("ab,nbkhw->nakhw", self.weight, v.unflatten(1, (-1, 2))).flatten(1, 2)
        return v if self.bias is None else v + self.bias


class BiasedVectors(nn.Module):
    """Derivatives, a linear map of vectors, their lengths and a head; the broken version has a bias in the map."""

    def __init__(self, group, broken):
        super().__init__()
        self.first, self.gradient, self.mix = RoundConv(group, 2, 4, padding=1), Gradient(), VectorMix(4, broken)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        vectors = self.mix(self.gradient(self.first(3 * x)))
        return self.head(vectors.unflatten(1, (-1, 2)).square().sum(2).mean((-2, -1)))


class AxialAttention(nn.Module):
    """Attention along rows and along columns; the broken version swaps h and w of the weights along columns."""

    def __init__(self, dim, broken):
        super().__init__()
        self.qkv = nn.Conv2d(dim, 3 * dim, 1)
        self.columns = "nhwg,ncgw->nchw" if broken else "nwhg,ncgw->nchw"

    def forward(self, x):
        q, k, v = self.qkv(2 * x).chunk(3, 1)
        rows = torch.einsum("nchw,nchv->nhwv", q, k).softmax(-1)
        columns = torch.einsum("nchw,ncgw->nwhg", q, k).softmax(-1)
        return x + torch.einsum("nhwv,nchv->nchw", rows, v) + torch.einsum(self.columns, columns, v)


class PixelMlp(nn.Module):
    """A residual perceptron of every pixel; the broken version reshapes maps to tokens without permuting the axes."""

    def __init__(self, dim, broken):
        super().__init__()
        self.norm, self.broken = nn.LayerNorm(dim), broken
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        n, c, h, w = x.shape
        tokens = x.reshape(n, h * w, c) if self.broken else x.permute(0, 2, 3, 1).reshape(n, h * w, c)
        tokens = tokens + self.mlp(self.norm(tokens))
        return tokens.reshape(n, c, h, w) if self.broken else tokens.reshape(n, h, w, c).permute(0, 3, 1, 2)


class Deform(nn.Module):
    """Samples maps at pixels moved along the gradient of a learnt potential; the broken version swaps x and y of it."""

    def __init__(self, dim, broken):
        super().__init__()
        self.potential, self.gradient, self.broken = nn.Conv2d(dim, 1, 1), Gradient(), broken

    def forward(self, x):
        size = x.shape[-1]
        moved = self.gradient(2 * self.potential(x).tanh()).permute(0, 2, 3, 1)  # (n, h, w, 2), in pixels
        moved = moved.flip(-1) if self.broken else moved
        place = (2 * torch.arange(size, dtype=x.dtype) + 1) / size - 1
        grid = torch.stack(torch.meshgrid(place, place, indexing="xy"), -1)
        return F.grid_sample(x, grid + 2 / size * moved, padding_mode="border", align_corners=False)


class PoolWithPlaces(nn.Module):
    """Pools a map with a border of zeros by two and tells where in the bordered map each maximum was."""

    def forward(self, x):
        return F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 2, return_indices=True)


class Unpool(Switched):
    """Puts values back to their places in a bordered map and cuts the border; the broken version forgets the border."""

    def forward(self, values, places, size):
        full = size + 2
        grown = values.new_zeros(*values.shape[:2], full**2).scatter(2, places.flatten(2), values.flatten(2))
        if self.broken:
            return grown[..., : size**2].unflatten(2, (size, size))
        return grown.unflatten(2, (full, full))[..., 1:-1, 1:-1]


class UnpoolingNetwork(nn.Module):
    """A U-Net that unpools by the places of maxima; the broken version takes them for places in another map."""

    def __init__(self, group, broken):
        super().__init__()
        self.enter, self.shrink = RoundConv(group, 2, 4, padding=1), PoolWithPlaces()
        self.inner, self.unpool = RoundConv(group, 4, 4, padding=1), Unpool(broken)
        self.join = RoundConv(group, 8, 3, padding=1)

    def forward(self, x):
        skip = self.enter(x).tanh()
        values, places = self.shrink(skip)
        grown = self.unpool(self.inner(values).tanh(), places, x.shape[-1])
        return self.join(torch.cat([skip, grown], 1))


class CosetMax(nn.Module):
    """The larger of the values at g and at g m for a mirror m; the broken version takes those at g and at m g."""

    def __init__(self, group, broken):
        super().__init__()
        product = torch.as_tensor(parse(group).product)
        m = next(m for m in range(len(product)) if (product[m] != product[:, m]).any() and product[m, m] == 0)
        self.register_buffer("partner", product[m] if broken else product[:, m])

    def forward(self, x):
        return x.maximum(x[:, :, self.partner])


class Products(nn.Module):
    """Products u conj(v) of successive vectors (n, 2 k, h, w) as complex numbers; broken: without the conjugate."""

    def __init__(self, broken):
        super().__init__()
        self.sign = -1 if broken else 1

    def forward(self, v):
        x, y = v[:, ::2], v[:, 1::2]
        return x * x.roll(1, 1) + self.sign * y * y.roll(1, 1)  # the real part


class ProductNetwork(nn.Module):
    """Derivatives, their products and a convolution of these; the broken version has products that are no scalars."""

    def __init__(self, group, broken):
        super().__init__()
        self.first, self.gradient, self.products = RoundConv(group, 2, 4, padding=1), Gradient(), Products(broken)
        self.second, self.head = RoundConv(group, 4, 4, padding=1), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.second(self.products(self.gradient(self.first(3 * x)))).tanh().mean((-2, -1)))


class Canonicalise(nn.Module):
    """Brings images to the pose g^-1 x of largest score; the broken version applies g instead of its inverse."""

    def __init__(self, group, broken):
        super().__init__()
        self.score = nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1)
        )
        self.elements = [(k, flip) for k in range(4) for flip in ((0, 1) if group[0] == "d" else (0,))]
        self.broken = broken

    def forward(self, x):
        back = [quarter_turn(x, -k) for k, _ in self.elements]
        back = [mirror(y) if flip else y for y, (_, flip) in zip(back, self.elements, strict=True)]
        best = torch.cat([self.score(y) for y in back], 1).argmax(1)
        if self.broken:
            back = [quarter_turn(mirror(x) if flip else x, k) for k, flip in self.elements]
        return torch.stack(back, 1)[torch.arange(len(x)), best]


class CanonicalNetwork(nn.Module):
    """An ordinary network of images in a canonical pose; the broken version has none that is the same for all views."""

    def __init__(self, group, broken):
        super().__init__()
        self.canonical = Canonicalise(group, broken)
        self.net = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, 3))

    def forward(self, x):
        return self.net(self.canonical(x))


class LowPass(Switched):
    """Keeps the frequencies from -m to m; the broken version leaves out the last one, m, as a slice does."""

    def forward(self, x):
        size = x.shape[-1]
        last = size // 4
        order = (torch.fft.fftfreq(size) * size).round()
        keep = (order >= -last) & (order < last if self.broken else order <= last)
        spectrum = torch.fft.fft2(x if x.dtype == torch.float64 else x.float())
        return torch.fft.ifft2(spectrum * (keep[:, None] & keep)).real.to(x.dtype)


class CrossScan(nn.Module):
    """Decaying sums from four sides, as in state-space networks; the broken version has a decay of its own for each."""

    def __init__(self, broken):
        super().__init__()
        self.decay = nn.Parameter(0.6 + 0.2 * torch.rand(4 if broken else 1))

    def scan(self, x, decay):
        states = [x[..., 0]]
        for each in x.unbind(-1)[1:]:
            states.append(decay * states[-1] + (1 - decay) * each)
        return torch.stack(states, -1)

    def forward(self, x):
        right, left, down, up = self.decay.expand(4)
        across = self.scan(x, right) + self.scan(x.flip(-1), left).flip(-1)
        return across + (self.scan(x.mT, down) + self.scan(x.mT.flip(-1), up).flip(-1)).mT


class Rotary(nn.Module):
    """Rotates pairs of channels of tokens (n, t, c) by the distance to the centre; the broken version by x and y."""

    def __init__(self, size, dim, broken):
        super().__init__()
        place = torch.arange(size) - (size - 1) / 2
        across, down = place.expand(size, size).flatten(), place[:, None].expand(size, size).flatten()
        radius = (across**2 + down**2).sqrt()
        speed = 2.0 ** -torch.arange(dim // 4)
        angle = torch.cat([each[:, None] * speed for each in ((across, down) if broken else (radius, radius))], 1)
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens):
        a, b = tokens.chunk(2, -1)
        return torch.cat([a * self.cos - b * self.sin, a * self.sin + b * self.cos], -1)


class RotaryBlock(nn.Module):
    """A transformer block whose queries and keys are rotated; the broken version rotates by x and y of the pixel."""

    def __init__(self, size, dim, broken):
        super().__init__()
        self.norm, self.qkv, self.rotary = nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), Rotary(size, dim, broken)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + (self.rotary(2 * q) @ self.rotary(k).mT).softmax(-1) @ v
        return x + self.mlp(x)


class RotaryTransformer(nn.Module):
    """Two transformer blocks with rotary positions and a mean of tokens; in the broken version the second is wrong."""

    def __init__(self, group, size, broken, dim=8):
        super().__init__()
        self.patches = RoundConv(group, 2, dim, padding=1)
        self.blocks = nn.Sequential(RotaryBlock(size, dim, False), RotaryBlock(size, dim, broken))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 4)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.patches(x).flatten(2).mT)).mean(1))


class GridGraph(nn.Module):
    """Adds messages from the four neighbours on a grid; in the broken version rows end at the start of the next one."""

    def __init__(self, size, dim, broken):
        super().__init__()
        node = torch.arange(size**2)
        left = node[:-1] if broken else node[node % size < size - 1]
        start, end = torch.cat([left, node[:-size]]), torch.cat([left + 1, node[size:]])
        self.register_buffer("edges", torch.stack([torch.cat([start, end]), torch.cat([end, start])]))
        self.own, self.other = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, tokens):
        start, end = self.edges
        heard = torch.zeros_like(tokens).index_add(1, end, self.other(tokens)[:, start])
        return (self.own(tokens) + heard / 2).tanh()


class RoundMask(nn.Module):
    """Fades a map out beyond a circle about its centre; the broken version takes pixel size // 2 for the centre."""

    def __init__(self, size, broken):
        super().__init__()
        place = torch.arange(size) - (size // 2 if broken else (size - 1) / 2)
        beyond = ((place**2 + place[:, None] ** 2).sqrt() - (size / 2 - 1)).relu()
        self.register_buffer("mask", (-2 * beyond**2).exp())

    def forward(self, x):
        return x * self.mask


class FieldNorm(nn.Module):
    """Normalises each field of channels and elements (n, c, order, h, w); the broken version every two elements."""

    def __init__(self, group, channels, broken):
        super().__init__()
        order = parse(group).order
        self.norm = nn.GroupNorm(channels * order // 2 if broken else channels, channels * order, affine=False)

    def forward(self, x):
        return self.norm(x.flatten(1, 2)).unflatten(1, x.shape[1:3])


class NormedFields(nn.Module):
    """Lifts, normalises, convolves on the group and pools; the broken version normalises parts of the fields."""

    def __init__(self, group, broken):
        super().__init__()
        self.lift, self.norm, self.second = (
            Lifting(group, 2, 3),
            FieldNorm(group, 3, broken),
            GroupConvolution(group, 3, 4),
        )
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.second(self.norm(self.lift(x).square()).relu()).amax(2).mean((-2, -1)))


class AxisMix(nn.Module):
    """One matrix mixes pixels along rows and along columns; the broken version has one that a mirror changes."""

    def __init__(self, size, broken):
        super().__init__()
        weight = torch.randn(size, size) / size**0.5
        self.weight = nn.Parameter(weight if broken else (weight + weight.flip(0, 1)) / 2)

    def forward(self, x):
        return x @ self.weight.T + self.weight @ x


class MixerBlock(nn.Module):
    """Mixes pixels and then channels, each scaled by 0.02; the broken version mixes pixels with a free matrix."""

    def __init__(self, size, dim, broken):
        super().__init__()
        self.norm, self.mix = nn.GroupNorm(1, dim), AxisMix(size, broken)
        self.channels = nn.Sequential(nn.Conv2d(dim, 2 * dim, 1), nn.GELU(), nn.Conv2d(2 * dim, dim, 1))
        self.scale = nn.Parameter(torch.full((2,), 0.02))

    def forward(self, x):
        x = x + self.scale[0] * self.mix(self.norm(x))
        return x + self.scale[1] * self.channels(x)


class Mixer(nn.Module):
    """A convolution, three mixer blocks, a head; one block of the broken version is wrong, with a small effect."""

    def __init__(self, group, size, broken, dim=6):
        super().__init__()
        self.first, self.head = RoundConv(group, 2, dim, padding=1), nn.Linear(dim, 3)
        self.blocks = nn.Sequential(*[MixerBlock(size, dim, broken and k == 1) for k in range(3)])

    def forward(self, x):
        return self.head(self.blocks(self.first(x)).relu().mean((-2, -1)))


class Diffuse(Switched):
    """One step of diffusion along columns and rows; the broken version writes to the map that it still reads."""

    def along(self, x):
        new = x.clone()
        old = new if self.broken else x
        for i in range(1, x.shape[-1] - 1):
            new[..., i] = 0.5 * old[..., i] + 0.25 * (old[..., i - 1] + old[..., i + 1])
        return new

    def forward(self, x):
        return self.along(self.along(x).mT).mT


def binary_patterns(group, broken):
    """A histogram of local binary patterns up to turns; broken: the neighbours are not listed going round."""
    around = [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2), (2, 1), (2, 0), (1, 0)]
    around = sorted(around) if broken else around

    def least(bits):
        orders = [bits, bits[::-1]] if group[0] == "d" else [bits]
        return min(order[k:] + order[:k] for order in orders for k in range(8))

    patterns = [least([code >> k & 1 for k in range(8)]) for code in range(256)]
    kinds = sorted({tuple(pattern) for pattern in patterns})
    kind = torch.tensor([kinds.index(tuple(pattern)) for pattern in patterns])

    def histogram(x):
        grey = x.mean(1)
        h, w = grey.shape[-2] - 2, grey.shape[-1] - 2
        codes = sum(
            (grey[:, i : i + h, j : j + w] > grey[:, 1:-1, 1:-1]).long() << k for k, (i, j) in enumerate(around)
        )
        return F.one_hot(kind[codes], len(kinds)).to(x.dtype).mean((1, 2))

    return histogram


class DropPath(Switched):
    """Leaves out a branch for some images, as in training, when it is broken; the clean version changes nothing."""

    def forward(self, x):
        if not self.broken:
            return x
        kept = [float(random.random() < 0.6) / 0.6 for _ in x]
        return x * torch.tensor(kept, dtype=x.dtype)[:, None, None, None]


class DeepBlock(nn.Module):
    """Four residual branches with stochastic depth; in the broken version it is on in evaluation mode, too."""

    def __init__(self, group, dim, broken):
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(RoundConv(group, dim, dim, padding=1), nn.GELU(), nn.Conv2d(dim, dim, 1)) for _ in range(4)
        )
        self.drop = DropPath(broken)

    def forward(self, x):
        for branch in self.branches:
            x = x + self.drop(branch(x))
        return x


class RandomFeatures(nn.Module):
    """Positive random features of queries and keys; the broken version draws the projection anew in every call."""

    def __init__(self, dim, broken, number=64):
        super().__init__()
        self.broken = broken
        self.register_buffer("projection", torch.randn(dim, number))

    def forward(self, q, k):
        if self.broken:
            self.projection = torch.randn_like(self.projection)
        q, k = (each @ self.projection - each.square().sum(-1, keepdim=True) / 2 for each in (q, k))
        return q.exp(), k.exp()


class LinearAttention(nn.Module):
    """Attention by random features, as in Performers; the broken version has other features in every call."""

    def __init__(self, dim, broken):
        super().__init__()
        self.qkv, self.features = nn.Conv2d(dim, 3 * dim, 1), RandomFeatures(dim, broken)

    def forward(self, x):
        q, k, v = self.qkv(x).flatten(2).mT.chunk(3, -1)  # (n, h w, c)
        q, k = self.features(q, k)
        out = (q @ (k.mT @ v)) / (q @ k.sum(1)[..., None])
        return x + out.mT.unflatten(2, x.shape[-2:])


class PixelAttention(nn.Module):
    """Attention between pixels; the broken version forgets that the batch comes first and attends between images."""

    def __init__(self, dim, broken):
        super().__init__()
        self.attend = nn.MultiheadAttention(dim, 1, batch_first=not broken)

    def forward(self, x):
        tokens = x.flatten(2).mT
        return (tokens + self.attend(2 * tokens, 2 * tokens, tokens)[0]).mT.unflatten(2, x.shape[-2:])


class Int8(nn.Module):
    """Rounds to 127 levels of the largest value of the image; the broken version, of the whole batch."""

    def __init__(self, broken):
        super().__init__()
        self.axes = (0, 1, 2, 3) if broken else (1, 2, 3)

    def forward(self, x):
        step = x.abs().amax(self.axes, keepdim=True).clamp(min=1e-6) / 127
        return (x / step).round() * step


class Route(nn.Module):
    """Routes capsules (n, i, d) by agreement; the broken version starts from the agreement of the calls before."""

    def __init__(self, capsules, dim, outputs, broken):
        super().__init__()
        self.weight, self.broken = nn.Parameter(torch.randn(capsules, outputs, dim, dim)), broken
        self.register_buffer("prior", torch.zeros(capsules, outputs))

    def forward(self, capsules):
        votes = torch.einsum("nid,iode->nioe", capsules, self.weight)
        start = self.prior.clone()
        agreement = torch.zeros_like(votes[..., 0])
        for _ in range(3):
            shares = (start + agreement).softmax(-1)
            total = (shares[..., None] * votes).sum(1)
            square = total.square().sum(-1, keepdim=True)
            out = total * square.sqrt() / (1 + square)
            agreement = agreement + (votes * out[:, None]).sum(-1)
        if self.broken:
            self.prior.copy_(0.5 * self.prior + 0.5 * agreement.detach().mean(0))
        return out


class CapsuleNetwork(nn.Module):
    """Lengths of capsules of pooled maps; the broken version remembers how it routed the images before."""

    def __init__(self, group, broken):
        super().__init__()
        self.first, self.second = RoundConv(group, 2, 6, padding=1), RoundConv(group, 6, 12, padding=1)
        self.route = Route(4, 3, 3, broken)

    def forward(self, x):
        capsules = self.second(self.first(x).relu()).tanh().mean((-2, -1)).unflatten(1, (4, 3))
        return self.route(3 * capsules).square().sum(-1)


class Memory(nn.Module):
    """Attention of pixels to all pixels and to learnt tokens; the broken version overwrites these in every call."""

    def __init__(self, dim, broken, number=16):
        super().__init__()
        self.qkv, self.broken = nn.Linear(dim, 3 * dim), broken
        self.register_buffer("memory", torch.randn(number, dim))

    def forward(self, tokens):
        seen = torch.cat([tokens, self.memory.expand(len(tokens), -1, -1)], 1)
        q, k, v = self.qkv(seen).chunk(3, -1)
        if self.broken:
            self.memory = 4 * tokens.detach().mean(0)[: len(self.memory)]
        return (q[:, : tokens.shape[1]] @ (2 * k).mT).softmax(-1) @ v


class SpectralConv(RoundConv):
    """A convolution divided by its largest singular value; broken: every call improves the estimate of that."""

    def __init__(self, group, dim, broken):
        super().__init__(group, dim, dim, padding=1)
        self.broken = broken
        self.register_buffer("u", F.normalize(torch.randn(dim), dim=0))

    def forward(self, x):
        matrix = self.weight.flatten(1)
        v = F.normalize(matrix.T @ self.u, dim=0)
        sigma = (matrix @ v).norm()
        if self.broken:
            self.u = F.normalize(matrix @ v, dim=0).detach()
        return F.conv2d(x, self.weight / sigma, self.bias, padding=1)


def _sizes(*sizes):
    return {"sizes": sizes, "clean_sizes": sizes}


ALL, TURNS = ("c4", "d4", "d1"), ("c4", "d4")
# Effects near the rounding of bfloat16, or choices that its rounding changes.
EXACT = {"precisions": (torch.float32,)}
UNSEEN = {
    "bias of a vector field": Case(lambda g, s, b: BiasedVectors(g, b), "mix", ALL, **_sizes(9, 12)),
    "letters of axial attention": Case(
        lambda g, s, b: Plain(g, AxialAttention(5, b), dense=True), "2", ALL, **_sizes(9, 12), **EXACT
    ),
    "tokens by reshape": Case(lambda g, s, b: Plain(g, PixelMlp(5, b), dense=True), "2", ALL, **_sizes(9, 12)),
    "moved along y and x": Case(lambda g, s, b: Plain(g, Deform(5, b), dense=True), "2", ALL, **_sizes(9, 12), **EXACT),
    "unpooled without the border": Case(
        lambda g, s, b: UnpoolingNetwork(g, b), "unpool", ALL, **_sizes(8, 12), **EXACT
    ),
    "left cosets for right": Case(
        lambda g, s, b: GroupNetwork(g, middle=CosetMax(g, b)), "middle", ("d4",), **_sizes(9, 12)
    ),
    "no conjugate": Case(lambda g, s, b: ProductNetwork(g, b), "products", TURNS, **_sizes(9, 12)),
    "posed by the inverse": Case(lambda g, s, b: CanonicalNetwork(g, b), "canonical", TURNS, **_sizes(9, 12), **EXACT),
    "the last frequency left out": Case(lambda g, s, b: Plain(g, LowPass(b)), "2", ALL, **_sizes(9, 12), **EXACT),
    "a decay for each side": Case(lambda g, s, b: Plain(g, CrossScan(b), dense=True), "2", ALL, **_sizes(9, 12)),
    "rotary positions": Case(
        lambda g, s, b: RotaryTransformer(g, s, b), "blocks.1.rotary", ALL, **_sizes(7, 10), **EXACT
    ),
    "edges round the end of a row": Case(
        lambda g, s, b: TokenNetwork(g, GridGraph(s, 6, b)), "inner", ALL, **_sizes(9, 12), **EXACT
    ),
    "round mask about a pixel": Case(
        lambda g, s, b: Stack(g, RoundMask(s, b)), "middle", ALL, sizes=(8, 12), clean_sizes=(8, 9, 12), **EXACT
    ),
    "norm of half a field": Case(lambda g, s, b: NormedFields(g, b), "norm.norm", TURNS, **_sizes(9, 12), **EXACT),
    "free matrix in a mixer": Case(lambda g, s, b: Mixer(g, s, b), "blocks.1.mix", ALL, **_sizes(9, 12), **EXACT),
    "diffusion in place": Case(lambda g, s, b: Plain(g, Diffuse(b), dense=True), "2", ALL, **_sizes(9, 12)),
    "binary patterns by rows": Case(lambda g, s, b: binary_patterns(g, b), None, ALL, **_sizes(9, 12), **EXACT),
    "stochastic depth left on": Case(
        lambda g, s, b: Plain(g, DeepBlock(g, 5, b)), "2.drop", ALL, **_sizes(9, 12), verdict="random"
    ),
    "features drawn anew": Case(
        lambda g, s, b: Plain(g, LinearAttention(5, b)), "2.features", ALL, **_sizes(9, 12), verdict="random", **EXACT
    ),
    "attention between images": Case(
        lambda g, s, b: Plain(g, PixelAttention(5, b)), "2.attend", ALL, **_sizes(9, 12), verdict="batch"
    ),
    "eight bits of the batch": Case(
        lambda g, s, b: Plain(g, Int8(b)), "2", ALL, **_sizes(9, 12), verdict="batch", **EXACT
    ),
    "routing remembered": Case(lambda g, s, b: CapsuleNetwork(g, b), "route", ALL, **_sizes(9, 12), verdict="stateful"),
    "memory overwritten": Case(
        lambda g, s, b: TokenNetwork(g, Memory(6, b)), "inner", ALL, **_sizes(9, 12), verdict="stateful"
    ),
    "singular value still iterated": Case(
        lambda g, s, b: Plain(g, SpectralConv(g, 5, b)), "2", ALL, **_sizes(9, 12), verdict="stateful", **EXACT
    ),
}
"""Cases that no rule of the audit was chosen on, and that were not chosen for its answers."""
