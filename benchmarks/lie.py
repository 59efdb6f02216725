"""Continuous groups and ideal scales: Lie convolution, Lie self-attention and scale Fourier layers beside their peers.

    UNPOSE_DATA=/path/to/arrays python benchmarks/lie.py [--part affine|turned|sizes] [--device cuda]

Three questions, each with peers of as many parameters, trained in the same run by one recipe (AdamW, one cycle, no
weights chosen by test images), mean and standard deviation over seeds of the accuracy on 10,000 test images in percent.

``affine``: networks trained on upright MNIST digits are tested on digits under random affine maps: small (20 degrees,
2 pixels, scale and stretch of 1.2), medium (60 degrees, scale and stretch of 1.3) and large (any angle). `lie_cnn`
samples the affine group; the peers are a CNN of its size and, for comparison, the same CNN trained on medium maps.

``turned``: `lie_transformer` on se2 beside `gsa_net` and `group_cnn` of 8 rotations, trained and tested on digits
turned by any angle.

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
from unpose.nn import count_parameters, group_cnn, gsa_net, lie_cnn, lie_transformer, scale_fourier_net
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


def train(network, images, labels, options, seed, change=None):
    """Train a network by the recipe of this benchmark and return the seconds of a step."""
    torch.manual_seed(seed)
    network.to(options.device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.rate, total_steps=options.steps)
    order = torch.Generator().manual_seed(seed)
    start = time.perf_counter()
    for _ in range(options.steps):
        pick = torch.randint(len(images), (options.batch,), generator=order).to(options.device)
        given = images[pick] if change is None else change(images[pick])
        optimizer.zero_grad()
        cross_entropy(network(given), labels[pick]).backward()
        optimizer.step()
        schedule.step()
    if options.device == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / options.steps


@torch.no_grad()
def accuracy(network, images, labels, batch=250):
    network.eval()
    right = sum(
        int((network(part).argmax(1) == truth).sum())
        for part, truth in zip(images.split(batch), labels.split(batch), strict=True)
    )
    return 100 * right / len(images)


def show(name, network, rows, more=()):
    """Print a row of a table: means and standard deviations over seeds."""
    values = torch.tensor(rows)  # (seeds, columns)
    spread = values.std(0) if len(values) > 1 else torch.zeros(values.shape[1])
    cells = [f"{mean:.2f} ± {deviation:.2f}" for mean, deviation in zip(values.mean(0), spread, strict=True)]
    print(f"| {name} | {count_parameters(network):,} | " + " | ".join([*cells, *more]) + " |", flush=True)


def affine(mnist, options):
    part = options.part_of(mnist)
    whole = {"group": "translation", "max_shift": 0.0, "shape": CANVAS}
    images, labels = images_of(mnist.train, options.images, options.device, **whole)
    medium, _ = images_of(
        mnist.train, options.images, options.device, group="affine", shape=CANVAS, random_state=2, **MAPS["medium"]
    )
    tests = [images_of(part, options.tests, options.device, **whole)]
    for bounds in MAPS.values():
        pose = {"group": "affine", "shape": CANVAS, "random_state": 1, **bounds}
        tests.append(images_of(part, options.tests, options.device, **pose))
    lie = lambda: lie_cnn("affine", 1, 10, CANVAS, samples=options.samples)  # noqa: E731
    plain = lambda: group_cnn("c1", 1, 10, CANVAS, parameters=count_parameters(lie()))  # noqa: E731
    print("| trained on upright digits | parameters | upright | small | medium | large | ms of a step |")
    print("|---|---|---|---|---|---|---|")
    for name, build, seen in (
        ("`lie_cnn`, affine", lie, images),
        ("CNN", plain, images),
        ("CNN, trained on medium maps", plain, medium),
    ):
        rows = []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            network = build()
            seconds = train(network, seen, labels, options, seed)
            rows.append([accuracy(network, *test) for test in tests])
        show(name, network, rows, [f"{1000 * seconds:.0f}"])
    print()


def turned(mnist, options):
    part = options.part_of(mnist)
    pose = {"group": "so2", "max_angle": math.pi}
    images, labels = images_of(mnist.train, options.images, options.device, random_state=3, **pose)
    test = images_of(part, options.tests, options.device, random_state=4, **pose)
    print("| turned digits | parameters | accuracy | ms of a step |")
    print("|---|---|---|---|")
    for name, build in (
        ("`lie_transformer`, se2, 8 samples", lambda: lie_transformer("se2", 1, 10, 28)),
        ("`gsa_net`, c8", lambda: gsa_net("c8", 1, 10, 28)),
        ("`group_cnn`, c8", lambda: group_cnn("c8", 1, 10, 28)),
    ):
        rows = []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            network = build()
            seconds = train(network, images, labels, options, seed)
            rows.append([accuracy(network, *test)])
        show(name, network, rows, [f"{1000 * seconds:.0f}"])
    print()


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
    images, labels = images_of(mnist.train, options.images, options.device)
    test, truth = images_of(options.part_of(mnist), options.tests, options.device)

    def spectral(kind):
        network = scale_fourier_net("dilations(5, 1.4142)", 1, 10, 28)
        network.__class__ = kind
        network.scales = network.scales if kind is ScaleFourierNet else [1.0]
        return network

    cnn = lambda: group_cnn("c1", 1, 10, 28, parameters=count_parameters(spectral(ScaleFourierNet)))  # noqa: E731
    columns = " | ".join(f"{size} pixels" for size in SIZES)
    print(f"| network | trained on | parameters | {columns} | law | ms of a step |")
    print("|---" * (len(SIZES) + 5) + "|")
    for name, build, show_at, random in (
        ("`scale_fourier_net`", lambda: spectral(ScaleFourierNet), shrink, False),
        ("ordinary activation", lambda: spectral(OrdinaryActivation), shrink, False),
        ("ordinary activation", lambda: spectral(OrdinaryActivation), shrink, True),
        ("CNN", cnn, shrink_and_enlarge, False),
        ("CNN", cnn, shrink_and_enlarge, True),
    ):
        rows, law = [], 0.0
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            network = build()
            seconds = train(network, images, labels, options, seed, at_random_size(show_at) if random else None)
            rows.append([accuracy(network, show_at(test, size), truth) for size in SIZES])
            if isinstance(network, ScaleFourierNet):
                law = max(law, law_error(network, test[:50]))
        seen = "all sizes" if random else "28 pixels"
        show(f"{name} | {seen}", network, rows, [f"{law:.1e}" if law else "-", f"{1000 * seconds:.0f}"])
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--part", choices=["affine", "turned", "sizes"], nargs="+", default=["affine", "turned", "sizes"]
    )
    parser.add_argument("--images", type=int, default=10_000, help="training images")
    parser.add_argument("--tests", type=int, default=10_000, help="test images")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rate", type=float, default=5e-3, help="largest learning rate")
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dev", action="store_true", help="test on validation images, to choose settings")
    options = parser.parse_args()
    options.part_of = lambda data: data.validation if options.dev else data.test
    mnist = load("mnist")
    for part in options.part:
        {"affine": affine, "turned": turned, "sizes": sizes}[part](mnist, options)


if __name__ == "__main__":
    main()
