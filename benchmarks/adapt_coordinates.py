"""Sheared digits brought back in coordinates in which a shear is a shift.

    UNPOSE_DATA=data python benchmarks/adapt_coordinates.py [--images 1000] [--references 400]

A small network is trained on 12,000 upright MNIST digits and frozen. Test digits (from the 1,001st on) are sheared by
up to 0.6. ``coordinates`` finds the shear relative to upright training digits; beside it, 25 warps of every image are
compared with the same digits. "Own" compares every image with its own upright version, which shows how exact the
coordinates are.
"""

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from adapt import accuracy, load
from unpose.adapt import coordinates
from unpose.images import warp

REACH, WARPS = 0.6, 25


def shears(amounts):
    poses = torch.eye(3).repeat(len(amounts), 1, 1)
    poses[:, 0, 1] = amounts
    return poses


def trained(images, labels):
    network = nn.Sequential(
        nn.Conv2d(1, 16, 5, stride=2, padding=2), nn.ReLU(), nn.Conv2d(16, 32, 5, stride=2, padding=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(32 * 49, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(500):
        batch = torch.randint(len(images), (128,))
        loss = cross_entropy(network(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


@torch.no_grad()
def by_coordinates(images, references):
    finder = coordinates("shear", references)
    return torch.cat([warp(part, finder(part).element) for part in images.split(50)])


def by_warps(images, references):
    """The best of some warps of every image, by the cosine with the references."""
    known = normalize(references.flatten(1))
    views, scores = [], []
    for amount in torch.linspace(-1.3 * REACH, 1.3 * REACH, WARPS):
        views.append(warp(images, shears(-amount.expand(len(images)))))
        scores.append((normalize(views[-1].flatten(1)) @ known.T).amax(1))
    best = torch.stack(scores).argmax(0)
    return torch.stack(views)[best, torch.arange(len(images))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("UNPOSE_DATA", ".")))
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--references", type=int, default=400)
    options = parser.parse_args()
    x, y, tx, ty = load(options.data, "mnist")
    x, y = x[:12000], y[:12000]
    tx, ty = tx[1000 : 1000 + options.images], ty[1000 : 1000 + options.images]
    references = x[: options.references]
    torch.manual_seed(0)
    network = trained(x, y)
    amounts = (2 * torch.rand(len(tx)) - 1) * REACH
    moved = warp(tx, shears(amounts))
    errors = []
    for number in range(min(100, len(tx))):
        alone = slice(number, number + 1)
        errors.append(float((coordinates("shear", tx[alone])(moved[alone]).element[0, 0, 1] + amounts[number]).abs()))
    print(f"| {len(tx):,} digits | upright | sheared | ms per image |\n|---|---|---|---|")
    print(f"| plain | {accuracy(network, tx, ty):.1f} % | {accuracy(network, moved, ty):.1f} % | |")
    for name, method in (("coordinates", by_coordinates), (f"{WARPS} warps", by_warps)):
        start = time.process_time()
        upright, sheared = method(tx, references), method(moved, references)
        spent = 1e3 * (time.process_time() - start) / (2 * len(tx))
        figures = [f"{accuracy(network, images, ty):.1f} %" for images in (upright, sheared)]
        print(f"| {name} | {' | '.join(figures)} | {spent:.1f} |")
    print(f"\nown: median error of the shear {torch.tensor(errors).median():.4f}")


if __name__ == "__main__":
    main()
