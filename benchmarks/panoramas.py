"""Panoramas: networks trained upright, tested at other longitudes and at all rotations of the sphere.

    python benchmarks/panoramas.py [--steps 400] [--seeds 1] [--rows 20] [--batch 64] [--device cpu]

scikit-learn's digits 0 to 8 (without 9, which is a turned 6) are painted on the sphere, 110 degrees wide: 1,000 to
train on, upright on the equator, and the others to test on. They are sampled at the rotated directions, so that no
panorama is interpolated. `sphere_net` beside a convolutional network of about as many parameters whose borders wrap
around the globe, trained on the same upright panoramas and on panoramas at random rotations; both read out a mean over
all pixels.
"""

import argparse
import math

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from unpose.groups import parse
from unpose.sphere import directions, sphere_net

SPAN = math.radians(110)


def painted(images, rotations, rows):
    """(b, 8, 8) painted around the direction x and rotated by (b, 3, 3): (b, 1, rows, 2 rows)."""
    there = directions(rows, 2 * rows).to(images.device).reshape(1, -1, 3) @ rotations  # rows times R are R^-1 d
    angle = torch.atan2(there[..., 1:].norm(dim=-1), there[..., 0])
    sideways = there[..., 1:] / there[..., 1:].norm(dim=-1, keepdim=True).clamp(min=1e-9)
    place = sideways * (angle / (SPAN / 2))[..., None] * torch.tensor([1.0, -1.0], device=images.device)
    values = nn.functional.grid_sample(images[:, None], place[:, None], align_corners=False)
    return values.reshape(len(images), 1, rows, 2 * rows)


def rotations(kind, count, columns, generator):
    """(count, 3, 3): the identity, turns about the axis of the globe by whole columns, or all rotations."""
    twist = torch.zeros(count, 3)
    if kind == "longitude":
        twist[:, 2] = torch.randint(columns, (count,), generator=generator) * (2 * math.pi / columns)
    if kind == "any":
        return parse("so3").random(count, generator=generator)[:, :3, :3]
    return parse("so3").exp(twist)[:, :3, :3]


class Plain(nn.Module):
    """Three convolutions that wrap around the globe, and the mean of their maps."""

    def __init__(self, n_out, width=20):
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv2d(a, width, 5) for a in (1, width, width))
        self.answer = nn.Linear(width, n_out)

    def forward(self, images):
        for layer in self.layers:
            wrapped = nn.functional.pad(images, (2, 2, 0, 0), mode="circular")
            images = torch.relu(layer(nn.functional.pad(wrapped, (0, 0, 2, 2))))
        return self.answer(images.mean((2, 3)))


def fit(net, images, classes, options, seed, kind):
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=options.steps)
    for _ in range(options.steps):
        rows = torch.randperm(len(images), generator=generator)[: options.batch].to(options.device)
        turns = rotations(kind, len(rows), 2 * options.rows, generator).to(options.device)
        loss = nn.functional.cross_entropy(net(painted(images[rows], turns, options.rows)), classes[rows])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return net.eval()


def accuracy(net, images, classes, options, kind):
    generator, right = torch.Generator().manual_seed(9), 0
    with torch.no_grad():
        for part, wanted in zip(images.split(100), classes.split(100), strict=True):
            turns = rotations(kind, len(part), 2 * options.rows, generator).to(options.device)
            right += int((net(painted(part, turns, options.rows)).argmax(1) == wanted).sum())
    return right / len(images)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    digits = load_digits()
    kept = digits.target < 9
    images = torch.tensor(digits.images[kept] / 16, dtype=torch.float32, device=options.device)
    classes = torch.tensor(digits.target[kept], device=options.device)
    kinds = ("upright", "longitude", "any")
    print("| trained | parameters | upright | other longitudes | all rotations |\n|---|---|---|---|---|")
    for name, make, kind in (
        ("sphere_net, upright", sphere_net, "upright"),
        ("convolutions, upright", Plain, "upright"),
        ("convolutions, all rotations", Plain, "any"),
    ):
        results = []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            net = fit(make(9).to(options.device), images[:1000], classes[:1000], options, seed, kind)
            results.append([accuracy(net, images[1000:], classes[1000:], options, each) for each in kinds])
        count = sum(parameter.numel() for parameter in net.parameters())
        print(
            f"| {name} | {count:,} | " + " | ".join(f"{value:.3f}" for value in np.mean(results, 0)) + " |", flush=True
        )


if __name__ == "__main__":
    main()
