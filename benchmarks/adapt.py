"""Adapt networks trained on upright images: accuracy upright and turned, and cost, beside the usual alternatives.

    UNPOSE_DATA=data python benchmarks/adapt.py [--sets mnist fashion cifar dense] [--seeds 3] [--device cuda]
        [--out adapt.json] [--quick]

Networks are trained on upright images and then frozen; the canonicalizers see the same training images, without their
labels. The last 5,000 training images are kept apart: gates and doubts are set on them. Test images are used once, as
they are (upright) and each moved once at random (turned): by any angle (MNIST, Fashion-MNIST), or by a multiple of 45
degrees (CIFAR-10, continued by reflection outside of the image). The cost is the number of multiplications of a call
relative to the plain network, as torch counts them. ``--quick`` only tests that the program runs.
"""

import argparse
import copy
import json
import math
import os
import platform
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
    restore,
    search,
    symmetrize,
)
from unpose.groups import parse, rotation
from unpose.images import warp

SMALL = {"group": "so2", "border": "zero", "steps": 1200, "network": 32, "width": 6, "stages": (1, 2, 2)}
SETS = {
    "mnist": SMALL | {"file": "mnist", "epochs": 8},
    "fashion": SMALL | {"file": "fashion_mnist", "epochs": 12, "width": 8},
    "cifar": {
        "file": "cifar10", "group": "c8", "border": "reflect", "epochs": 20, "steps": 3000, "network": 64, "width": 12,
        "stages": (1, 1, 2, 2), "dropout": 0.1,
    },
}  # fmt: skip
QUICK = {"epochs": 1, "steps": 2, "network": 2, "width": 2, "batch_size": 16}
HELD_OUT = 5000


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


def train(network, images, labels, epochs, *, rate=0.01, flips=False, move=None, batch_size=512):
    """Train a network by SGD with a one-cycle schedule; ``move`` is applied to every batch."""
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
    """The rows of the result, printed as they come."""

    def __init__(self):
        self.rows = []

    def add(self, **row):
        self.rows.append(row)
        print(" ".join(f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)


def classification(name, options, seed, table):
    spec = SETS[name] | {"batch_size": 512} | (QUICK if options.quick else {})
    device, group, border = torch.device(options.device), spec["group"], spec["border"]
    x, y, tx, ty = (part.to(device) for part in load(options.data, spec["file"]))
    if options.quick:
        x, y, tx, ty = x[:700], y[:700], tx[:50], ty[:50]
    held = min(HELD_OUT, len(x) // 4)
    vx, x, y = x[-held:], x[:-held], y[:-held]
    turned, _ = moved_at_random(tx, group, border, 1000 + seed)
    validation, _ = moved_at_random(vx, group, border, 2000 + seed)
    torch.manual_seed(seed)
    flips, w = name == "cifar", spec["network"]
    start = time.perf_counter()
    network = train(resnet(x.shape[1], w), x, y, spec["epochs"], flips=flips)
    trained = time.perf_counter() - start
    plain_cost, plain_time = multiplications(network, tx[:100]), seconds(network, tx[:500])

    def row(method, model, images=(tx, turned), labels=ty, **more):
        calls = multiplications(model, images[1][:100]) / plain_cost
        table.add(
            set=name, seed=seed, method=method, upright=accuracy(model, images[0], labels),
            turned=accuracy(model, images[1], labels), cost=calls,
            time=seconds(model, images[1][:500]) / plain_time, **more,
        )  # fmt: skip

    row("plain", network, train_seconds=trained)
    row("mean over c8", symmetrize(network, "c8", border=border))
    row("most certain of c8", symmetrize(network, "c8", most_certain, border=border))
    if seed == 0:
        turn = lambda images: warped(images, _random_poses(len(images), group).to(images), border)  # noqa: E731
        torch.manual_seed(seed)
        other = train(resnet(x.shape[1], w), x, y, spec["epochs"], flips=flips, move=turn)
        row("trained with rotations", other)

    torch.manual_seed(seed)
    shape = {"width": spec["width"], "stages": spec["stages"], "dropout": spec.get("dropout", 0.0)}
    scorer = learned(group, x.shape[1], **shape)
    start = time.perf_counter()
    fit = {
        "steps": spec["steps"],
        "batch_size": spec["batch_size"],
        "border": border,
        "device": device,
        "random_state": seed,
    }
    fit["mirrors"] = flips
    scorer = fit_canonicalizer(None if group == "so2" else network, x, y, canonicalizer=scorer, **fit)
    fitted = time.perf_counter() - start
    gate = gate_threshold(scorer, vx, 0.99)
    row("learned", canonicalize(network, scorer, border=border), fit_seconds=fitted)
    row("learned, gate", canonicalize(network, scorer, gate, border=border), gate=gate)
    with torch.no_grad():
        poses = [scorer(part) for part in validation.split(500)]
    margins = torch.cat([pose.margin for pose in poses]).double()
    for share in (0.1, 0.2):
        doubt = float(margins.quantile(share))
        row(
            f"learned, gate, 2 views for {share:.0%}",
            canonicalize(network, scorer, gate, views=2, doubt=doubt, border=border),
        )
    if name == "cifar":
        torch.manual_seed(seed)
        adapted = canonicalize(network, scorer, border=border)

        def canonical(images):
            with torch.no_grad():
                moved = warped(images, _random_poses(len(images), group).to(images), border)
                return warped(moved, adapted.pose(moved).element, border)

        tuned = train(copy.deepcopy(network), x, y, max(1, spec["epochs"] // 2), rate=0.003, flips=True, move=canonical)
        row("learned, network tuned", canonicalize(tuned, scorer, border=border))
        row("learned, gate, network tuned", canonicalize(tuned, scorer, gate, border=border))
        if options.save:
            torch.save(scorer.state_dict(), options.save / f"scorer-{name}-{seed}.pt")
    few = slice(0, 1000)
    features = nn.Sequential(*list(network)[:-1])
    finder = energy(features, x[:5000], "c8", border=border)
    row("energy, c8 (1000 images)", canonicalize(network, finder, border=border), (tx[few], turned[few]), ty[few])
    if name != "cifar" and seed == 0:
        found = search(x[:400].cpu(), group="so2", device=options.device)
        row("search, 400 references (1000 images)", canonicalize(network, found), (tx[few], turned[few]), ty[few])
    if name == "fashion" and seed == 0:
        affine(network, x, tx, ty, spec, options, seed, table)


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


def dense(options, seed, table):
    """Upper and lower half of digits: masks, and the topmost and lowest point of the strokes as keypoints."""
    device = torch.device(options.device)
    x, _, tx, _ = (part.to(device) for part in load(options.data, "mnist"))
    if options.quick or options.small:
        x, tx = x[:6000], tx[:500]
    (masks, points), (test_masks, test_points) = parts_of(x), parts_of(tx)
    turned, poses = moved_at_random(tx, "so2", "zero", 1000 + seed)
    torch.manual_seed(seed)
    segment = nn.Sequential(
        conv(1, 32), conv(32, 32), nn.MaxPool2d(2), conv(32, 64), conv(64, 64), nn.MaxPool2d(2), conv(64, 64),
        conv(64, 64), nn.Upsample(scale_factor=4, mode="bilinear"), conv(64, 32), nn.Conv2d(32, 3, 1),
    ).to(device)  # fmt: skip
    locate = nn.Sequential(
        conv(1, 32), nn.MaxPool2d(2), conv(32, 64), conv(64, 64), nn.Flatten(), nn.Linear(64 * 196, 128), nn.ReLU(),
        nn.Linear(128, 4),
    ).to(device)  # fmt: skip
    for network, target, loss_of in (
        (segment, masks, cross_entropy),
        (locate, points.flatten(1), lambda a, b: (a - b).square().mean()),
    ):
        optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
        steps, batch_size = (4, 32) if options.quick else (220, 48) if options.small else (1500, 256)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = 2e-3 * min(1.0, 2 * (1 - step / steps))
            batch = torch.randint(len(x), (batch_size,), device=device)
            loss = loss_of(network(x[batch]), target[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        network.eval()
    spec = SETS["mnist"]
    scorer = learned("so2", 1, width=spec["width"], stages=(1, 1, 1) if options.small else spec["stages"])
    steps, batch_size = (4, 32) if options.quick else (260, 64) if options.small else (spec["steps"], 512)
    scorer = fit_canonicalizer(
        None, x, canonicalizer=scorer, steps=steps, batch_size=batch_size, device=device, random_state=seed
    )
    true_masks = restore(test_masks, torch.linalg.inv(poses), "mask")  # the masks of the turned digits
    true_points = restore(test_points, torch.linalg.inv(poses).to(device), "keypoints", frame=(28, 28))
    adapted = canonicalize(segment, scorer, restores="mask")
    finder = canonicalize(locate, scorer)
    with torch.no_grad():
        for method, images, mask, point, model in (
            ("plain, upright", tx, test_masks, test_points, None),
            ("plain, turned", turned, true_masks, true_points, None),
            ("learned, upright", tx, test_masks, test_points, adapted),
            ("learned, turned", turned, true_masks, true_points, adapted),
        ):
            predicted = torch.cat([(model or segment)(part).argmax(1) for part in images.split(500)])
            located = []
            for part in images.split(500):
                if model is None:
                    located.append(locate(part).unflatten(1, (2, 2)))
                else:
                    answer, pose = finder.with_pose(part)
                    located.append(restore(answer.unflatten(1, (2, 2)), pose, "keypoints", frame=(28, 28)))
            error = (torch.cat(located) - point).norm(dim=2)
            table.add(
                set="dense", seed=seed, method=method, iou=100 * float(iou(predicted, mask)),
                pixels=float(error.mean()), median_pixels=float(error.median()),
            )  # fmt: skip


def parts_of(images):
    """Masks (n, h, w): 1 for the upper, 2 for the lower half of the strokes; the topmost and lowest point (n, 2, 2)."""
    stroke = images[:, 0] > 0.3
    rows = torch.arange(images.shape[2], device=images.device, dtype=torch.float32)
    any_in_row = stroke.any(2)
    top = torch.where(any_in_row, rows, 99.0).amin(1)
    bottom = torch.where(any_in_row, rows, -1.0).amax(1)
    lower = rows[None, :, None] > ((top + bottom) / 2)[:, None, None]
    masks = stroke.long() * torch.where(lower, 2, 1)
    points = []
    for row in (top, bottom):
        line = stroke.gather(1, row.long()[:, None, None].expand(-1, 1, stroke.shape[2]))[:, 0].float()
        points.append(torch.stack([(line * rows).sum(1) / line.sum(1), row], dim=1))
    return masks, torch.stack(points, dim=1)


def iou(predicted, true):
    """Mean intersection over union of both parts, over all pixels of all images."""
    both = [((predicted == k) & (true == k)).sum() / ((predicted == k) | (true == k)).sum() for k in (1, 2)]
    return sum(both) / 2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["mnist", "fashion", "cifar", "dense"], choices=[*SETS, "dense"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("UNPOSE_DATA", ".")))
    parser.add_argument("--out", type=Path, default=Path("adapt.json"))
    parser.add_argument("--save", type=Path, help="folder for the trained canonicalizers")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing new after this time")
    parser.add_argument("--small", action="store_true", help="dense: fewer images and steps, for a CPU")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    machine = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.machine()
    about = {
        "machine": machine,
        "torch": torch.__version__,
        "seeds": options.seeds,
        "quick": options.quick,
        "small": options.small,
    }
    table = Table()
    start = time.perf_counter()
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for name in options.sets:
            if time.perf_counter() - start > options.seconds:
                continue
            dense(options, seed, table) if name == "dense" else classification(name, options, seed, table)
            about["seconds"] = time.perf_counter() - start
            options.out.write_text(json.dumps({"about": about, "results": table.rows}, indent=1))


if __name__ == "__main__":
    main()
