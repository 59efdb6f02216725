"""Continuous groups and ideal scales: Lie convolution, Lie self-attention and scale Fourier layers beside their peers.

    UNPOSE_DATA=/path/to/arrays python benchmarks/lie.py affine --device cuda
    UNPOSE_DATA=/path/to/arrays python benchmarks/lie.py turned --device cuda
    UNPOSE_DATA=/path/to/arrays python benchmarks/lie.py sizes --device cuda

Each part trains a network and peers with about as many parameters in the same run, on 10,000 MNIST digits, by one
recipe (AdamW, one cycle). For every network the largest learning rate is the better of two on 2,000 validation images
of the kind it was trained on. Tables show the accuracy on 10,000 test images in percent, mean and standard deviation
over seeds.

``affine``: networks trained on upright digits are tested on digits under random affine maps: small (20 degrees, 2
pixels, scale and stretch of 1.2), medium (60 degrees, scale and stretch of 1.3) and large (any angle). `lie_cnn`
samples the affine group; the peers are a CNN of its size and, for comparison, the same CNN trained on medium maps.

``turned``: `lie_transformer` on se2 beside `group_cnn` of 8 rotations and a CNN, trained and tested on digits turned by
any angle.

``sizes``: networks trained on digits of 28 pixels see the same digits shrunk to fewer pixels by an ideal low-pass
filter. `scale_fourier_net` beside the same network with an ordinary activation, and a CNN that sees the images
enlarged to 28 pixels again; each peer also trained on shrunk images. The law is the relative difference between the
features of the shrunk image and the shrunk features, at the size where it is largest.
"""

import argparse
import math
import time

import numpy as np
import torch
from torch.nn.functional import cross_entropy, gelu

from unpose.data import load, posed
from unpose.images import fourier_resize
from unpose.nn import count_parameters, group_cnn, lie_cnn, lie_transformer, scale_fourier_net
from unpose.nn.networks.scale_fourier import ScaleFourierNet

CANVAS = (32, 32)
MAPS = {
    "small": {"max_angle": math.radians(20), "max_shift": 2.0, "max_scale": 1.2, "max_stretch": 1.2},
    "medium": {"max_angle": math.radians(60), "max_shift": 2.0, "max_scale": 1.3, "max_stretch": 1.3},
    "large": {"max_angle": math.pi, "max_shift": 2.0, "max_scale": 1.3, "max_stretch": 1.3},
}
SIZES = (28, 20, 14, 10, 7)


def images_of(split, count, device, **pose):
    """The first images of a part of the data, posed or not, and their labels."""
    images = split.images[:count]
    if pose:
        images = posed(images, **pose).images
    pixels = torch.from_numpy(np.asarray(images, dtype=np.float32)).to(device)
    return pixels.reshape(len(pixels), 1, *pixels.shape[1:3]), torch.from_numpy(split.labels[:count]).long().to(device)


def train(network, images, labels, options, rate, seed, change=None):
    """Train a network by the recipe of this benchmark and return the (processor) seconds of a step."""
    torch.manual_seed(seed)
    network.to(options.device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=options.steps)
    order = torch.Generator().manual_seed(seed)
    clock = time.perf_counter if options.device == "cuda" else time.process_time
    start = clock()
    for _ in range(options.steps):
        pick = torch.randint(len(images), (options.batch,), generator=order).to(options.device)
        given = images[pick] if change is None else change(images[pick])
        optimizer.zero_grad()
        cross_entropy(network(given), labels[pick]).backward()
        optimizer.step()
        schedule.step()
    if options.device == "cuda":
        torch.cuda.synchronize()
    return (clock() - start) / options.steps


@torch.no_grad()
def accuracy(network, images, labels, batch=250):
    network.eval()
    right = sum(
        int((network(part).argmax(1) == truth).sum())
        for part, truth in zip(images.split(batch), labels.split(batch), strict=True)
    )
    return 100 * right / len(images)


def trained(build, seen, validation, options, change=None):
    """Networks of all seeds at the learning rate that is best on validation images, the rate, and seconds of a step."""
    first = {}
    for rate in options.rates:
        torch.manual_seed(0)
        network = build()
        seconds = train(network, *seen, options, rate, 0, change)
        first[rate] = (accuracy(network, *validation), network)
    best = max(first, key=lambda rate: first[rate][0])
    networks = [first[best][1]]
    for seed in range(1, options.seeds):
        torch.manual_seed(seed)
        networks.append(build())
        train(networks[-1], *seen, options, best, seed, change)
    return networks, best, seconds


def show(name, found, rows, *more):
    """Print a row of a table: means and standard deviations over seeds."""
    networks, rate, seconds = found
    values = torch.tensor(rows)  # (seeds, columns)
    spread = values.std(0) if len(values) > 1 else torch.zeros(values.shape[1])
    cells = [f"{mean:.2f} ± {deviation:.2f}" for mean, deviation in zip(values.mean(0), spread, strict=True)]
    cells = [f"{count_parameters(networks[0]):,}", *cells, *more, f"{rate:g}", f"{1000 * seconds:.0f}"]
    print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def affine(mnist, options):
    def digits(split, count, **bounds):
        pose = {"group": "affine", **bounds} if bounds else {"group": "translation", "max_shift": 0.0}
        seed = {"train": 2, "validation": 3, "test": 1}[split]
        return images_of(getattr(mnist, split), count, options.device, shape=CANVAS, random_state=seed, **pose)

    def lie():
        return lie_cnn("affine", 1, 10, CANVAS)

    def plain():
        return group_cnn("c1", 1, 10, CANVAS, parameters=count_parameters(lie()))

    tests = [digits("test", options.tests), *(digits("test", options.tests, **bounds) for bounds in MAPS.values())]
    print("| network | trained on | parameters | upright | small | medium | large | rate | ms of a step |")
    print("|---" * 9 + "|")
    for name, build, maps in (("`lie_cnn`, affine", lie, None), ("CNN", plain, None), ("CNN", plain, "medium")):
        seen, validation = (
            digits(split, count, **MAPS.get(maps, {}))
            for split, count in (("train", options.images), ("validation", options.checks))
        )
        found = trained(build, seen, validation, options)
        rows = [[accuracy(network, *test) for test in tests] for network in found[0]]
        show(f"{name} | {maps or 'upright'}", found, rows)


def turned(mnist, options):
    seen, validation, test = (
        images_of(split, count, options.device, group="so2", random_state=seed)
        for seed, (split, count) in enumerate(
            ((mnist.train, options.images), (mnist.validation, options.checks), (mnist.test, options.tests))
        )
    )

    def lie():
        return lie_transformer("se2", 1, 10, 28)

    print("| network | parameters | turned digits | rate | ms of a step |")
    print("|---" * 5 + "|")
    for name, build in (
        ("`lie_transformer`, se2", lie),
        ("`group_cnn`, c8", lambda: group_cnn("c8", 1, 10, 28, parameters=count_parameters(lie()))),
        ("CNN", lambda: group_cnn("c1", 1, 10, 28, parameters=count_parameters(lie()))),
    ):
        found = trained(build, seen, validation, options)
        show(name, found, [[accuracy(network, *test)] for network in found[0]])


class OrdinaryActivation(ScaleFourierNet):
    """The same network with GELU at the resolution of the image, which moves high frequencies into low ones."""

    def features(self, images):
        maps = images
        for layer, norm in zip(self.layers, self.norms, strict=True):
            maps = gelu(norm(layer(maps)))
        return maps


def shrink(images, size):
    return fourier_resize(images, (size, size))


def shrink_and_enlarge(images, size):
    return shrink(shrink(images, size), 28)


def at_random_size(show_at):
    """Show each batch at one of the sizes of the test."""
    return lambda images: show_at(images, SIZES[int(torch.randint(len(SIZES), (1,)))])


@torch.no_grad()
def law_error(network, images):
    """The relative difference of features of the shrunk image and shrunk features, at the size where it is largest."""
    features = network.eval().features(images)
    pairs = [(network.features(shrink(images, size)), shrink(features, size)) for size in SIZES[1:]]
    return max(float((found - wanted).norm() / wanted.norm()) for found, wanted in pairs)


def sizes(mnist, options):
    seen, validation, (test, truth) = (
        images_of(split, count, options.device)
        for split, count in (
            (mnist.train, options.images),
            (mnist.validation, options.checks),
            (mnist.test, options.tests),
        )
    )

    def scaled():
        return scale_fourier_net("dilations(5, 1.4142)", 1, 10, 28)

    def ordinary():
        network = scale_fourier_net("dilations(1)", 1, 10, 28)
        network.__class__ = OrdinaryActivation
        return network

    def plain():
        return group_cnn("c1", 1, 10, 28, parameters=count_parameters(scaled()))

    columns = " | ".join(f"{size} pixels" for size in SIZES)
    print(f"| network | trained on | parameters | {columns} | law | rate | ms of a step |")
    print("|---" * (len(SIZES) + 6) + "|")
    for name, build, show_at, is_random in (
        ("`scale_fourier_net`", scaled, shrink, False),
        ("ordinary activation", ordinary, shrink, False),
        ("ordinary activation", ordinary, shrink, True),
        ("CNN", plain, shrink_and_enlarge, False),
        ("CNN", plain, shrink_and_enlarge, True),
    ):
        found = trained(build, seen, validation, options, at_random_size(show_at) if is_random else None)
        rows = [[accuracy(network, show_at(test, size), truth) for size in SIZES] for network in found[0]]
        law = "-"
        if build is not plain:
            law = f"{max(law_error(network, test[:100]) for network in found[0]):.0e}"
        show(f"{name} | {'all sizes' if is_random else '28 pixels'}", found, rows, law)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["affine", "turned", "sizes"])
    parser.add_argument("--images", type=int, default=10_000, help="training images")
    parser.add_argument("--checks", type=int, default=2000, help="validation images")
    parser.add_argument("--tests", type=int, default=10_000, help="test images")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rates", type=float, nargs="+", default=[1e-2, 3e-2], help="largest learning rates to try")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    {"affine": affine, "turned": turned, "sizes": sizes}[options.part](load("mnist"), options)


if __name__ == "__main__":
    main()
