"""Planted defects: each is found and its module is named, and the same model without it raises no alarm.

One case of each mechanism is tried here. ``benchmarks/audit_defects.py`` measures many more, each at several groups,
sizes and precisions.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from kit.group_networks import GroupConvolution, Lifting, PoolGroupAndPixels
from kit.tensors import normal
from unpose.audit import assert_equivariant, audit_model, probe_images
from unpose.images import mirror, quarter_turn


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """A model with a defect and the same without it, and what the audit is expected to say about the first."""

    broken: Callable  # builds the model
    clean: Callable
    group: str
    size: int
    module: str | None  # where the defect is; None if the model is a function
    verdict: str = "broken"
    precision: torch.dtype = torch.float32


def symmetrised(kernel, group):
    """The mean of a kernel (..., k, k) over the exact elements of a group."""
    views = [quarter_turn(kernel, k) for k in range(4)] if group != "d1" else [kernel]
    if group[0] == "d":
        views += [mirror(view) for view in views]
    return sum(views) / len(views)


def round_conv(group, channels, features):
    """A convolution whose kernels have the symmetry of the group."""
    conv = nn.Conv2d(channels, features, 3, padding=1)
    with torch.no_grad():
        conv.weight.copy_(symmetrised(conv.weight, group))
    return conv


class Apply(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


def around(group, middle, pooled=True):
    """Something between two round convolutions, of 2 to 5 and of 5 to 5 channels; a pooled head or dense maps."""
    head = [nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(5, 3)] if pooled else []
    return nn.Sequential(round_conv(group, 2, 5), nn.ReLU(), middle, round_conv(group, 5, 5), *head)


def between(*, broken, clean, group, pooled=True, module="2", **fields):
    """A mechanism whose halves are functions that build what stands between two round convolutions."""
    return Mechanism(
        broken=lambda: around(group, broken(), pooled),
        clean=lambda: around(group, clean(), pooled),
        group=group,
        module=module,
        **fields,
    )


def of_maps(*, broken, clean, **fields):
    """A mechanism whose halves are functions of the maps (n, 5, h, w) between two round convolutions."""
    return between(broken=lambda: Apply(broken), clean=lambda: Apply(clean), **fields)


def add_noise(x):
    """Noise from the operating system, which no seed controls."""
    source = torch.Generator().manual_seed(int.from_bytes(os.urandom(4)))
    return x + 0.05 * torch.randn(x.shape, generator=source).to(x)


def means_of_nine(x, precision):
    """Means of 3 x 3 pixels from the sums over all pixels above and to the left."""
    sums = F.pad(x, (2, 1, 2, 1)).to(precision).cumsum(-1).cumsum(-2)
    means = sums[..., 3:, 3:] - sums[..., :-3, 3:] - sums[..., 3:, :-3] + sums[..., :-3, :-3]
    return means.to(x.dtype) / 9


MAPS = {
    "crop off centre": of_maps(
        broken=lambda x: x[..., 1:-2, 1:-2],
        clean=lambda x: x[..., 1:-1, 1:-1],
        group="d1",
        size=8,
        precision=torch.bfloat16,
    ),
    "pooling of odd maps": of_maps(
        broken=lambda x: F.max_pool2d(x, 2), clean=lambda x: F.max_pool2d(x, 3, 2), group="c4", size=9
    ),
    "nearest pixel rounded down": of_maps(
        broken=lambda x: F.interpolate(x, (16, 16), mode="nearest"),
        clean=lambda x: F.interpolate(x, (16, 16), mode="nearest-exact"),
        group="c4",
        size=11,
        precision=torch.bfloat16,
    ),
    "sums in half precision": of_maps(
        broken=lambda x: means_of_nine(x, torch.float16),
        clean=lambda x: means_of_nine(x, torch.float64),
        group="d1",
        size=12,
    ),
    "dropout left on": of_maps(
        broken=lambda x: F.dropout(x, 0.3), clean=lambda x: x, group="c4", size=8, verdict="random"
    ),
    "noise without a seed": of_maps(broken=add_noise, clean=lambda x: x, group="d1", size=9, verdict="random"),
    "statistics of the batch": between(
        broken=lambda: nn.BatchNorm2d(5, track_running_stats=False),
        clean=lambda: nn.BatchNorm2d(5),
        group="c4",
        size=9,
        verdict="batch",
    ),
}


class ScalesWithCalls(nn.Module):
    """Scales with the number of calls so far."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return x * (1 + 0.1 * self.calls)


class PixelAttention(nn.Module):
    """Attention between all pixels; a causal mask orders them."""

    def __init__(self, is_causal):
        super().__init__()
        self.attend, self.is_causal = nn.MultiheadAttention(5, 1, batch_first=True), is_causal

    def forward(self, x):
        tokens = x.flatten(2).mT  # (n, h w, c)
        later = torch.ones(2 * tokens.shape[1:2], dtype=torch.bool).triu(1) if self.is_causal else None
        return self.attend(3 * tokens, 3 * tokens, tokens, attn_mask=later)[0].mT.unflatten(2, x.shape[-2:])


class Spectral(nn.Module):
    """A low pass in the frequency domain, after a module whose output is complex; the gain may be of one axis only."""

    def __init__(self, of_one_axis):
        super().__init__()
        self.spectrum, self.filter = Apply(torch.fft.fft2), Apply(self.low_pass)
        self.of_one_axis = of_one_axis

    def low_pass(self, spectrum):
        down, across = (torch.fft.fftfreq(size).abs() for size in spectrum.shape[-2:])
        radius = across if self.of_one_axis else (across**2 + down[:, None] ** 2).sqrt()
        return spectrum * (1 / (1 + (8 * radius) ** 2)).to(spectrum)

    def forward(self, x):
        return torch.fft.ifft2(self.filter(self.spectrum(x))).real


PARTS = {
    "a counter of calls": between(broken=ScalesWithCalls, clean=nn.Identity, group="c4", size=9, verdict="stateful"),
    "causal mask": between(
        broken=lambda: PixelAttention(True),
        clean=lambda: PixelAttention(False),
        module="2.attend",
        pooled=False,
        group="c4",
        size=8,
    ),
    "frequencies of one axis": between(
        broken=lambda: Spectral(True), clean=lambda: Spectral(False), module="2.filter", group="c4", size=9
    ),
}


class TokenNetwork(nn.Module):
    """Pixels as tokens after one more, something done to them, and a mean of what is left."""

    def __init__(self, group, inner, extra=0):
        super().__init__()
        self.first, self.mix = round_conv(group, 2, 6), nn.Linear(6, 6)
        self.extra = nn.Parameter(normal(1, extra, 6))
        self.inner, self.head = inner, nn.Linear(6, 3)

    def forward(self, x):
        tokens = self.mix(self.first(x).flatten(2).mT).tanh()  # (n, h w, c)
        return self.head(self.inner(torch.cat([self.extra.expand(len(x), -1, -1), tokens], 1)).tanh().mean(1))


def token_places(code):
    """Adds a code (c, h, w) to tokens that follow one that has no place."""
    listed = torch.cat([torch.zeros(1, len(code)), code.flatten(1).mT])
    return Apply(lambda tokens: tokens + listed)


def largest_half(tokens):
    """Those tokens (n, t / 2, c) with the largest sums, in that order."""
    order = tokens.sum(-1).argsort(1, descending=True)[:, : tokens.shape[1] // 2]
    return tokens.gather(1, order[..., None].expand(-1, -1, tokens.shape[-1]))


TOKENS = {
    "places of tokens": Mechanism(
        broken=lambda: TokenNetwork("c4", token_places(normal(6, 9, 9)), extra=1),
        clean=lambda: TokenNetwork("c4", token_places(symmetrised(normal(6, 9, 9), "c4")), extra=1),
        module="inner",
        group="c4",
        size=9,
    ),
    "the first tokens are kept": Mechanism(
        broken=lambda: TokenNetwork("c4", Apply(lambda tokens: tokens[:, : tokens.shape[1] // 2])),
        clean=lambda: TokenNetwork("c4", Apply(largest_half)),
        module="inner",
        group="c4",
        size=8,
    ),
}


class GroupNetwork(nn.Module):
    """Lift, convolve on the group, pool."""

    def __init__(self, group, convolution):
        super().__init__()
        self.lift, self.second = Lifting(group, 2, 3), convolution(group, 3, 4)
        self.pool, self.head = PoolGroupAndPixels(), nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.pool(self.second(self.lift(x)).tanh()))


class WrongOrder(GroupConvolution):
    """The product in the wrong order, k h^-1 instead of h^-1 k: right for groups in which both are equal."""

    def relative(self, h):
        return self.group.product[:, self.group.inverse[h]]


class Factors(nn.Module):
    """Multiplies each channel by a number."""

    def __init__(self, factors):
        super().__init__()
        self.factors = nn.Parameter(factors)

    def forward(self, x):
        return x * self.factors[:, None, None]


class MergedNetwork(nn.Module):
    """The group axis merged into the channels, as many packages keep it, and a factor for each of them."""

    def __init__(self, group, factors):
        super().__init__()
        self.lift, self.second, self.head = Lifting(group, 2, 3), GroupConvolution(group, 3, 4), nn.Linear(4, 3)
        self.scale = Factors(factors)

    def forward(self, x):
        maps = self.scale(self.lift(x).flatten(1, 2)).unflatten(1, (3, -1))
        return self.head(self.second(maps.tanh()).amax(2).mean((-2, -1)))


GROUP_AXES = {
    "wrong order of the product": Mechanism(
        broken=lambda: GroupNetwork("d4", WrongOrder),
        clean=lambda: GroupNetwork("d4", GroupConvolution),
        module="second",
        group="d4",
        size=8,
    ),
    "factors of elements": Mechanism(
        broken=lambda: MergedNetwork("c4", torch.linspace(1, 2, 12)),
        clean=lambda: MergedNetwork("c4", torch.linspace(1, 2, 3).repeat_interleave(4)),
        module="scale",
        group="c4",
        size=7,
    ),
}


class VectorNetwork(nn.Module):
    """Derivatives of maps as vectors (n, 2 c, h, w), something done to these, their lengths, a head."""

    def __init__(self, group, function):
        super().__init__()
        self.first, self.gradient, self.act = round_conv(group, 2, 4), Apply(self.differentiate), Apply(function)
        self.head = nn.Linear(4, 3)

    def differentiate(self, x):
        padded = F.pad(x, (1, 1, 1, 1), mode="replicate")
        dx, dy = (padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2], padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1])
        return torch.stack([dx, dy], 2).flatten(1, 2)

    def forward(self, x):
        vectors = self.act(self.gradient(self.first(x)))
        return self.head(vectors.unflatten(1, (-1, 2)).square().sum(2).mean((-2, -1)))


def rectified_length(v):
    """Vectors (n, 2 c, h, w) shortened, without a change of direction."""
    pairs = v.unflatten(1, (-1, 2))
    length = (pairs.square().sum(2, keepdim=True) + 1e-6).sqrt()
    return (pairs * (length - 0.05).relu() / length).flatten(1, 2)


class PolarNetwork(nn.Module):
    """A convolution along angles of maps that were sampled on rings; angles go round."""

    def __init__(self, group, is_circular):
        super().__init__()
        self.first, self.polar = round_conv(group, 2, 5), Apply(self.rings)
        padding = {"padding": (0, 1), "padding_mode": "circular" if is_circular else "zeros"}
        self.around, self.head = nn.Conv2d(5, 5, (1, 3), **padding), nn.Linear(20, 3)

    def rings(self, x):
        """(n, c, h, w) -> (n, c, 4 radii, 16 angles)"""
        angle, radius = torch.arange(16, dtype=torch.float64) * (torch.pi / 8), (torch.arange(4) + 0.5) * 0.225
        grid = torch.stack([radius[:, None] * angle.cos(), -radius[:, None] * angle.sin()], -1)
        return F.grid_sample(x, grid.to(x).expand(len(x), -1, -1, 2), align_corners=False)

    def forward(self, x):
        return self.head(self.around(self.polar(self.first(x).tanh())).relu().mean(-1).flatten(1))


class Locate(nn.Module):
    """The centre of mass of each map, (n, c, 2), from the image centre; the rows may be counted from elsewhere."""

    def __init__(self, start):
        super().__init__()
        self.start = start

    def forward(self, x):
        weight = (4 * x).flatten(2).softmax(-1).unflatten(2, x.shape[-2:])
        place = torch.linspace(-1, 1, x.shape[-1])
        return torch.stack([(weight * place).sum((2, 3)), (weight * (place + self.start)[:, None]).sum((2, 3))], -1)


class PlaceNetwork(nn.Module):
    """Where things are, and from their distances to the centre an answer."""

    def __init__(self, group, start):
        super().__init__()
        self.first, self.locate, self.head = round_conv(group, 2, 5), Locate(start), nn.Linear(5, 3)

    def forward(self, x):
        return self.head(self.locate(self.first(x)).square().sum(-1))


GEOMETRY = {
    "components of vectors rectified": Mechanism(
        broken=lambda: VectorNetwork("c4", torch.relu),
        clean=lambda: VectorNetwork("c4", rectified_length),
        module="act",
        group="c4",
        size=9,
    ),
    "a border between angles": Mechanism(
        broken=lambda: PolarNetwork("c4", is_circular=False),
        clean=lambda: PolarNetwork("c4", is_circular=True),
        module="around",
        group="c4",
        size=8,
    ),
    "places from an edge": Mechanism(
        broken=lambda: PlaceNetwork("c4", start=0.2),
        clean=lambda: PlaceNetwork("c4", start=0.0),
        module="locate",
        group="c4",
        size=9,
    ),
}


class Heads(nn.Module):
    """A mask and scores; the head of the mask may see the image from the other side, too."""

    def __init__(self, group, flips):
        super().__init__()
        self.body, self.conv = round_conv(group, 2, 6), round_conv(group, 6, 2)
        self.mask = Apply(lambda x: self.conv(x) + self.conv(x.flip(-1) if flips else x))
        self.scores = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))

    def forward(self, x):
        maps = self.body(x).tanh()
        return {"mask": self.mask(maps), "scores": self.scores(maps)}


class Views(nn.Module):
    """The sum of the maps of turned views of an image, which may be turned back."""

    def __init__(self, back):
        super().__init__()
        layers = nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 3, padding=1)
        self.net, self.back = nn.Sequential(*layers), back

    def forward(self, x):
        return sum(quarter_turn(self.net(quarter_turn(x, k)), -k if self.back else 0) for k in range(4))


def pooled_to(group, side):
    """A classifier of maps that are pooled to so many pixels squared and flattened."""
    head = nn.AdaptiveAvgPool2d(side), nn.Flatten(), nn.Linear(5 * side**2, 8), nn.ReLU(), nn.Linear(8, 3)
    return nn.Sequential(round_conv(group, 2, 5), nn.ReLU(), *head)


def labelled(group, shift):
    """The largest of three maps at every pixel, which may be moved first."""
    place = Apply(lambda x: F.pad(x, (shift, 0, 0, 0))[..., : x.shape[-1]])
    layers = round_conv(group, 2, 5), nn.Tanh(), round_conv(group, 5, 3), place, Apply(lambda x: x.argmax(1))
    return nn.Sequential(*layers)


ANSWERS = {
    "two by two pixels flattened": Mechanism(
        broken=lambda: pooled_to("d1", side=2),
        clean=lambda: pooled_to("d1", side=1),
        module="4",
        group="d1",
        size=8,
    ),
    "flipped axis in one head": Mechanism(
        broken=lambda: Heads("c4", flips=True),
        clean=lambda: Heads("c4", flips=False),
        module="mask",
        group="c4",
        size=8,
    ),
    "label map moved by a pixel": Mechanism(
        broken=lambda: labelled("d1", shift=1),
        clean=lambda: labelled("d1", shift=0),
        module="3",
        group="d1",
        size=9,
    ),
    "maps of views not turned back": Mechanism(
        broken=lambda: Views(back=False), clean=lambda: Views(back=True), module="(network)", group="c4", size=8
    ),
}


def gradient_sizes(images, is_centred):
    """Gradient magnitude of arrays, by differences to both sides or to one."""
    images = np.asarray(images, dtype=np.float64)
    if is_centred:
        return np.hypot(np.gradient(images, axis=-2), np.gradient(images, axis=-1))
    down = np.diff(images, axis=-2, append=images[..., -1:, :])
    return np.hypot(down, np.diff(images, axis=-1, append=images[..., -1:]))


def labels(images, are_sorted):
    """Labels of arrays from their pixels, sorted or in their places."""
    rows = np.asarray(images, dtype=np.float64).reshape(len(images), -1)
    rows = np.sort(rows, axis=1) if are_sorted else rows
    weights = np.random.default_rng(0).normal(size=rows.shape[1])
    return np.floor(7 * ((rows - rows.mean(1, keepdims=True)) @ weights)).astype(int) % 3


def boxes(x, last):
    """The boxes around bright pixels: x0, y0, x1, y1 from the corner, of which x1 lies so far beyond its pixel."""
    found = []
    for mask in x.mean(1) > x.mean((1, 2, 3))[:, None, None] + 0.22:
        ys, xs = torch.nonzero(mask, as_tuple=True)
        found.append([xs.min(), ys.min(), xs.max() + last, ys.max() + 1])
    return torch.tensor(found, dtype=x.dtype)


def centre(x, skew):
    """The vector from the image centre to the centre of mass, with a part of y added to x."""
    weight, place = x.square().mean(1), torch.arange(x.shape[-1]) - (x.shape[-1] - 1) / 2
    right, down = ((weight * axis).sum((1, 2)) / weight.sum((1, 2)) for axis in (place, place[:, None]))
    return torch.stack([right + skew * down, down], -1)


def moments(x, middle):
    """Second moments about the image centre, or about another point."""
    place = torch.arange(x.shape[-1]) - middle * (x.shape[-1] - 1)
    return torch.stack([(x * (place**2 + place[:, None] ** 2)).mean((1, 2, 3)), x.mean((1, 2, 3))], 1)


def of_images(function, *, broken, clean, **fields):
    """A mechanism that is a function of images and of one setting."""
    halves = [lambda setting=setting: lambda x: function(x, setting) for setting in (broken, clean)]
    return Mechanism(broken=halves[0], clean=halves[1], module=None, **fields)


OF_IMAGES = {
    "differences to one side": of_images(gradient_sizes, broken=False, clean=True, group="d4", size=8),
    "labels by place": of_images(labels, broken=False, clean=True, group="d4", size=9),
    "box one pixel short": of_images(boxes, broken=0, clean=1, group="d4", size=11),
    "skewed centre of mass": of_images(centre, broken=1, clean=0, group="c4", size=14),
    # Of eight rotations, the quarter turns decide; between them, resampling explains the error of the clean half.
    "moments about a corner": of_images(moments, broken=0, clean=0.5, group="c8", size=14),
}

MECHANISMS = {**MAPS, **PARTS, **TOKENS, **GROUP_AXES, **GEOMETRY, **ANSWERS, **OF_IMAGES}


def audited(mechanism, make):
    torch.manual_seed(0)
    model = make()
    if isinstance(model, nn.Module):
        model = model.eval().to(mechanism.precision)
    images = probe_images(2, (mechanism.size, mechanism.size))
    return audit_model(model, images, mechanism.group, measure=mechanism.group == "c8", sizes=())


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_defect_is_found_and_its_module_is_named(name):
    mechanism = MECHANISMS[name]
    audit = audited(mechanism, mechanism.broken)
    assert audit.verdict == mechanism.verdict, audit.summary()
    assert mechanism.module in (None, audit.cause), audit.summary()


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_same_model_without_the_defect_raises_no_alarm(name):
    audit = audited(MECHANISMS[name], MECHANISMS[name].clean)
    assert audit.holds, audit.summary()


def test_a_layer_on_the_group_is_asserted_on_maps_of_the_group():
    maps = normal(2, 3, 8, 5, 5)
    on_group = {"input": "regular image", "actions": "regular image"}
    assert_equivariant(GroupConvolution("d4", 3, 4), "d4", maps, **on_group)
    with pytest.raises(AssertionError, match=r"module \(network\) breaks it"):
        assert_equivariant(WrongOrder("d4", 3, 4), "d4", maps, **on_group)
