"""Adapt networks trained on upright digits and garments: accuracy upright and turned, and cost.

    UNPOSE_DATA=data python benchmarks/adapt.py [--sets mnist fashion] [--parts frozen rotations affine] [--seeds 3]
        [--device cuda] [--out adapt.json] [--quick]
    python benchmarks/adapt.py --report adapt.json [...]

Networks are trained on upright images and then frozen; the canonicalizers see the same training images, without their
labels. The last 5,000 training images are kept apart, for two choices: the gate, which is the best one on turned images
of those that cost at most 0.2 points upright, and the share of doubtful images that are looked at from two sides. Test
images are used once, as they are (upright) and each turned once by any angle (turned). The cost is the number of
multiplications of a call relative to the plain network, as torch counts them. The parts are the frozen networks, the
same network trained with rotations, and affine poses of garments. ``--quick`` only tests that the program runs;
``--report`` prints the tables of finished runs. ``adapt_cifar.py`` has photographs, ``adapt_dense.py`` masks and
keypoints.
"""

import argparse
import json
import math
import os
import platform
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad
from torch.utils.flop_counter import FlopCounterMode

from unpose.adapt import (
    canonicalize,
    energy,
    fit_canonicalizer,
    gate_threshold,
    iterate,
    learned,
    most_certain,
    regress,
    symmetrize,
)
from unpose.adapt.views import erased
from unpose.groups import parse, rotation
from unpose.images import warp

SMALL = {"group": "so2", "border": "zero", "steps": 2000, "network": 32, "width": 8, "stages": (1, 2, 2)}
SETS = {
    "mnist": SMALL | {"file": "mnist", "epochs": 5, "steps": 6000},
    "fashion": SMALL | {"file": "fashion_mnist", "epochs": 8},
}
PARTS = "frozen", "rotations", "affine"
QUICK = {"epochs": 1, "steps": 2, "network": 2, "width": 2, "batch_size": 16}
HELD_OUT = 5000
ALLOWED_LOSS = 0.2
"""Points of upright accuracy, on images kept apart, that a gate may cost."""
SHARES = (0.05, 0.1, 0.2)
"""Shares of doubtful images that two views are tried for."""


def load(folder, name):
    """Training and test images (n, c, h, w) in [0, 1], and their labels."""
    if name == "cifar10":
        parts = [np.load(path) for path in sorted(folder.glob("cifar10_train_batch*.npz"))]
        train = np.concatenate([part["x_train"] for part in parts]), np.concatenate([part["y_train"] for part in parts])
        test = np.load(folder / "cifar10_test.npz")
        arrays = (*train, test["x_test"], test["y_test"])
    else:
        file = np.load(folder / f"{name}.npz")
        arrays = tuple(file[key] for key in ("x_train", "y_train", "x_test", "y_test"))
    x, y, tx, ty = arrays
    images = [torch.from_numpy(a).float().div(255) for a in (x, tx)]
    images = [a[:, None] if a.ndim == 3 else a.movedim(3, 1).contiguous() for a in images]
    return images[0], torch.from_numpy(y).long(), images[1], torch.from_numpy(ty).long()


def conv(before, after):
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU())


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Sequential(conv(width, width), conv(width, width))

    def forward(self, x):
        return x + self.inner(x)


def resnet(channels, w):
    """A residual network of nine layers; w = 64 has 6.6 million parameters."""
    return nn.Sequential(
        nn.BatchNorm2d(channels, affine=False), conv(channels, w), conv(w, 2 * w), nn.MaxPool2d(2), Residual(2 * w),
        conv(2 * w, 4 * w), nn.MaxPool2d(2), conv(4 * w, 8 * w), nn.MaxPool2d(2), Residual(8 * w),
        nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(8 * w, 10),
    )  # fmt: skip


def moved_at_random(images, group, border, seed):
    """Each image moved once: by any angle, or by an element of a finite group; and the poses."""
    generator = torch.Generator().manual_seed(seed)
    if group == "so2":
        poses = rotation((2 * torch.rand(len(images), generator=generator) - 1) * math.pi)
    else:
        elements = parse(group).elements
        poses = elements[torch.randint(len(elements), (len(images),), generator=generator)].float()
    return warped(images, poses.to(images), border), poses


def warped(images, poses, border):
    if border == "zero":
        return warp(images, poses)
    return warp(pad(images, (10,) * 4, mode=border), poses, images.shape[-2:])


def augmented(images, flips):
    """Shift by up to two (four) pixels and mirror photographs: the usual augmentation of upright training."""
    reach = 4 if flips else 2
    padded = pad(images, (reach,) * 4, mode="reflect")
    n, _, height, width = images.shape
    y, x = torch.randint(2 * reach + 1, (2, n, 1), device=images.device)
    rows, columns = y + torch.arange(height, device=y.device), x + torch.arange(width, device=y.device)  # (n, side)
    each = torch.arange(n, device=y.device)[:, None, None]
    images = padded.movedim(1, 3)[each, rows[:, :, None], columns[:, None]].movedim(3, 1)
    if flips:
        mirrored = torch.rand(len(images), device=images.device) < 0.5
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    return images


def train(network, images, labels, epochs, *, rate=0.01, flips=False, move=None, erase=False, batch_size=512):
    """Train a network by SGD with a one-cycle schedule; ``move`` is applied to every batch, then squares erased."""
    device = images.device
    network.to(device, memory_format=torch.channels_last).train()
    steps = epochs * (len(images) // batch_size)
    optimizer = torch.optim.SGD(network.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 20 * rate, total_steps=max(steps, 2), pct_start=0.2)
    done = 0
    while done < steps:
        for batch in torch.randperm(len(images), device=device).split(batch_size):
            if len(batch) < batch_size or done >= steps:
                continue
            x = augmented(images[batch], flips)
            x = x if move is None else move(x)
            x = erased(x) if erase else x
            with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
                loss = cross_entropy(
                    network(x.contiguous(memory_format=torch.channels_last)), labels[batch], label_smoothing=0.1
                )
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
            done += 1
    return network.eval()


@torch.no_grad()
def accuracy(model, images, labels, batch_size=500):
    right = [model(x).argmax(1) == y for x, y in zip(images.split(batch_size), labels.split(batch_size), strict=True)]
    return 100 * float(torch.cat(right).float().mean())


@torch.no_grad()
def multiplications(model, images):
    with FlopCounterMode(display=False) as counter:
        model(images)
    return counter.get_total_flops()


@torch.no_grad()
def seconds(model, images):
    times = []
    for _ in range(4):
        if images.is_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        model(images)
        if images.is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times[1:])


class Table:
    """The rows of the result, shown and written as they come."""

    def __init__(self, about, file):
        self.rows, self.about, self.file, self.start = [], about, file, time.perf_counter()

    def add(self, **row):
        self.rows.append(row)
        self.about["seconds"] = time.perf_counter() - self.start
        self.file.write_text(json.dumps({"about": self.about, "results": self.rows}, indent=1))
        cells = (f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items())
        print(" ".join(cells), file=sys.stderr, flush=True)


def classification(name, options, seed, table):
    spec = SETS[name] | {"batch_size": 512} | (QUICK if options.quick else {})
    device, group, border = torch.device(options.device), spec["group"], spec["border"]
    x, y, tx, ty = (part.to(device) for part in load(options.data, spec["file"]))
    if options.quick:
        x, y, tx, ty = x[:700], y[:700], tx[:50], ty[:50]
    held = min(HELD_OUT, len(x) // 4)
    vx, vy, x, y = x[-held:], y[-held:], x[:-held], y[:-held]
    turned, _ = moved_at_random(tx, group, border, 1000 + seed)
    validation, _ = moved_at_random(vx, group, border, 2000 + seed)
    torch.manual_seed(seed)
    w = spec["network"]
    start = time.perf_counter()
    network = train(resnet(x.shape[1], w), x, y, spec["epochs"])
    trained = time.perf_counter() - start
    plain_cost, plain_time = multiplications(network, tx[:100]), seconds(network, tx[:500])

    def row(method, model, images=(tx, turned), labels=ty, **more):
        calls = multiplications(model, images[1][:100]) / plain_cost
        table.add(
            set=name, seed=seed, method=method, upright=accuracy(model, images[0], labels),
            turned=accuracy(model, images[1], labels), cost=calls,
            time=seconds(model, images[1][:500]) / plain_time, **more,
        )  # fmt: skip

    if "rotations" in options.parts:
        turn = lambda images: warped(images, _random_poses(len(images), group).to(images), border)  # noqa: E731
        for method, longer in (("trained with rotations", 1), ("trained with rotations, four times as long", 4)):
            torch.manual_seed(seed)
            row(method, train(resnet(x.shape[1], w), x, y, longer * spec["epochs"], move=turn))
    if "affine" in options.parts and name == "fashion":
        affine(network, x, tx, ty, spec, options, seed, table)
    if "frozen" not in options.parts:
        return
    row("plain", network, train_seconds=trained)
    row("mean over c8", symmetrize(network, "c8", border=border))
    row("most certain of c8", symmetrize(network, "c8", most_certain, border=border))
    torch.manual_seed(seed)
    scorer = learned(group, x.shape[1], width=spec["width"], stages=spec["stages"])
    start = time.perf_counter()
    scorer = fit_canonicalizer(
        None, x, canonicalizer=scorer, steps=spec["steps"], batch_size=spec["batch_size"], border=border,
        device=device, random_state=seed,
    )  # fmt: skip
    fitted = time.perf_counter() - start
    row("learned", canonicalize(network, scorer, border=border), fit_seconds=fitted)
    tried = tried_gates(network, scorer, (vx, validation, vy), (0.98, 0.99, 0.995, 0.997, 0.998, 0.999), border)
    kept = chosen_gate(tried, accuracy(network, vx, vy), ALLOWED_LOSS)
    gate = gate_threshold(scorer, vx, kept)
    row("learned, gate", canonicalize(network, scorer, gate, border=border), kept=kept, gates=tried)
    with torch.no_grad():
        margins = torch.cat([scorer(part).margin for part in validation.split(500)]).double()
    tried = {}
    for share in SHARES:
        several = canonicalize(network, scorer, gate, views=2, doubt=float(margins.quantile(share)), border=border)
        tried[share] = several, accuracy(several, vx, vy) + accuracy(several, validation, vy)
    share = max(tried, key=lambda known: tried[known][1])
    row("learned, gate, 2 views of doubtful images", tried[share][0], share=share)
    few = slice(0, 1000)
    features = nn.Sequential(*list(network)[:-1])
    finder = energy(features, x[:5000], "c8", border=border)
    row("energy, c8 (1000 images)", canonicalize(network, finder, border=border), (tx[few], turned[few]), ty[few])


def tried_gates(network, scorer, kept_apart, shares, border):
    """Share of upright images that a gate leaves alone -> accuracy upright and turned on images kept apart."""
    upright, turned, labels = kept_apart
    found = {}
    for kept in shares:
        gated = canonicalize(network, scorer, gate_threshold(scorer, upright, kept), border=border)
        found[kept] = accuracy(gated, upright, labels), accuracy(gated, turned, labels)
    return found


def chosen_gate(tried, plain, allowed):
    """The gate that is best on turned images of those that cost no more than allowed, or the one that costs least."""
    enough = [kept for kept in tried if tried[kept][0] >= plain - allowed]
    return max(enough, key=lambda kept: tried[kept][1]) if enough else max(tried, key=lambda kept: tried[kept][0])


def _random_poses(n, group):
    if group == "so2":
        return rotation((2 * torch.rand(n) - 1) * math.pi)
    elements = parse(group).elements.float()
    return elements[torch.randint(len(elements), (n,))]


def affine(network, x, tx, ty, spec, options, seed, table):
    """Rotation by any angle, scale from 0.8 to 1.25, stretch by up to 1.3."""
    generator = torch.Generator().manual_seed(3000 + seed)
    poses = parse("affine").random(len(tx), generator=generator, max_shift=0, max_scale=1.25, max_stretch=1.3)
    moved = warp(tx, poses.to(tx))
    torch.manual_seed(seed)
    fit = {"steps": spec["steps"], "batch_size": spec["batch_size"], "device": options.device, "random_state": seed}
    scorer = fit_canonicalizer(
        None, x, canonicalizer=learned("so2", 1, width=spec["width"], stages=spec["stages"]), distort="affine", **fit
    )
    rest = fit_canonicalizer(None, x, canonicalizer=regress("affine", 1, size=28), **fit)
    for method, model in (
        ("plain", network),
        ("mean over c8", symmetrize(network, "c8")),
        ("learned", canonicalize(network, scorer)),
        ("learned, regress", canonicalize(network, iterate(scorer, rest))),
        ("learned, regress twice", canonicalize(network, iterate(scorer, rest, rest))),
    ):
        upright, turned = accuracy(model, tx, ty), accuracy(model, moved, ty)
        table.add(set="fashion affine", seed=seed, method=method, upright=upright, turned=turned)


def report(files):
    """Print one table for each set: means over the seeds, and the largest deviation from them."""
    runs = [json.loads(file.read_text()) for file in files]
    rows = [row for run in runs for row in run["results"]]
    for name in dict.fromkeys(row["set"] for row in rows):
        own = [row for row in rows if row["set"] == name]
        print(f"| {name} | upright | turned | cost | seeds |\n|---|---|---|---|---|")
        for method in dict.fromkeys(row["method"] for row in own):
            same = [row for row in own if row["method"] == method]
            cells = []
            for key in ("upright", "turned"):
                values = np.array([row[key] for row in same])
                spread = f" ± {np.abs(values - values.mean()).max():.2f}" if len(same) > 1 else ""
                cells.append(f"{values.mean():.2f}{spread}")
            costs = [row["cost"] for row in same if "cost" in row]
            cells.append(f"{np.mean(costs):.2f}" if costs else "")
            print(f"| {method} | {' | '.join(cells)} | {len(same)} |")
        print()
    for run in runs:
        about = run["about"]
        print(f"measured on {about['machine']}, torch {about['torch']}, in {about['seconds']:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=[*SETS], choices=SETS)
    parser.add_argument("--parts", nargs="+", default=[*PARTS], choices=PARTS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("UNPOSE_DATA", ".")))
    parser.add_argument("--out", type=Path, default=Path("adapt.json"))
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing new after this time")
    parser.add_argument("--report", type=Path, nargs="+", help="print the tables of these files")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.report:
        report(options.report)
        return
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    machine = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.machine()
    about = {
        "machine": machine,
        "torch": torch.__version__,
        "seeds": options.seeds,
        "quick": options.quick,
    }
    table = Table(about, options.out)
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name in options.sets:
            if time.perf_counter() - table.start > options.seconds:
                continue
            classification(name, options, seed, table)
    report([options.out])


if __name__ == "__main__":
    main()
