"""Masks and keypoints of turned images from networks that know upright images only, beside the networks alone.

    UNPOSE_DATA=data python benchmarks/adapt_dense.py [--sets shapes garments digits] [--seeds 3] [--device cuda]
        [--out adapt-dense.json] [--small] [--true-pose] [--quick]
    python benchmarks/adapt_dense.py --report adapt-dense.json [...]

One network marks two parts of every object, another one finds two points of it; both are trained on upright images and
frozen. A learned canonicalizer brings each image upright, and the answers are carried back to the frame of the input.

shapes    drawn figures of 40 pixels (F, P, L, T, Y, h, 4, R, E and an arrow, with random proportions, slant, strokes,
          contrast and noise): the stem and the rest, and both ends of the stem. Turned figures are drawn turned, so
          that nothing is interpolated in the input or in the truth.
garments  Fashion-MNIST: the upper and the lower half, and the middle of the topmost and of the lowest row.
digits    MNIST, the same. Half a turn maps 0, 1 and 8 onto themselves, 6 and 9 onto each other and 2 and 5 nearly onto
          themselves, so that no method can tell their upper half.

Every test image is used once upright and once turned by a random angle. "True pose" brings images upright by the angle
that they were turned by: what is lost there is lost to resampling, not to the canonicalizer. The gate leaves 99 % of
5,000 upright images that are used for nothing else alone. IoU is the mean over both parts, over the pixels of all test
images. ``--small`` has smaller networks, for a CPU, ``--true-pose`` leaves out the canonicalizer, and ``--quick`` only
tests that the program runs.
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
from torch.nn.functional import cross_entropy, mse_loss

from adapt import conv, load, moved_at_random
from unpose.adapt import canonicalize, fit_canonicalizer, gate_threshold, learned, restore
from unpose.groups import inverse, rotation, transform
from unpose.images import pixel_grid, warp

FIGURES = (  # the stem first; x to the right, y down
    ((-0.5, -1, -0.5, 1), (-0.5, -1, 0.6, -1), (-0.5, 0, 0.3, 0)),  # F
    ((-0.5, -1, -0.5, 1), (-0.5, -1, 0.5, -1), (0.5, -1, 0.5, 0), (0.5, 0, -0.5, 0)),  # P
    ((-0.5, -1, -0.5, 1), (-0.5, 1, 0.5, 1)),  # L
    ((0, -1, 0, 1), (-0.8, -1, 0.8, -1)),  # T
    ((0, 0, 0, 1), (0, 0, -0.7, -1), (0, 0, 0.7, -1)),  # Y
    ((-0.5, -1, -0.5, 1), (-0.5, 0, 0.5, 0), (0.5, 0, 0.5, 1)),  # h
    ((0.3, -1, 0.3, 1), (0.3, -1, -0.7, 0.3), (-0.7, 0.3, 0.8, 0.3)),  # 4
    ((-0.5, -1, -0.5, 1), (-0.5, -1, 0.5, -1), (0.5, -1, 0.5, 0), (0.5, 0, -0.5, 0), (-0.2, 0, 0.6, 1)),  # R
    ((-0.5, -1, -0.5, 1), (-0.5, -1, 0.6, -1), (-0.5, 0, 0.4, 0), (-0.5, 1, 0.6, 1)),  # E
    ((0, -1, 0, 1), (0, -1, -0.6, -0.4), (0, -1, 0.6, -0.4)),  # arrow
)
SIDE, UNIT = 40, 12.0
STROKES = max(len(figure) for figure in FIGURES)
TRAINING, HELD_OUT, TEST = 20000, 5000, 5000


class Figures:
    """Random upright figures, which can be drawn at any pose."""

    def __init__(self, n, seed, device):
        g = torch.Generator().manual_seed(seed)

        def uniform(low, high, *shape):
            return low + (high - low) * torch.rand(n, *shape, generator=g)

        table = torch.full((len(FIGURES), STROKES, 4), torch.nan)
        for number, figure in enumerate(FIGURES):
            table[number, : len(figure)] = torch.tensor(figure, dtype=torch.float32)
        ends = table[torch.randint(len(FIGURES), (n,), generator=g)].unflatten(2, (2, 2))  # (n, strokes, 2, 2)
        ends = ends + uniform(-0.06, 0.06, STROKES, 2, 2)
        linear = torch.stack([uniform(0.8, 1.2), uniform(-0.15, 0.15), uniform(-0.1, 0.1), uniform(0.85, 1.15)], 1)
        ends = UNIT * ends @ linear.unflatten(1, (2, 2)).mT[:, None] + uniform(-2, 2, 2)[:, None, None]
        self.ends, self.radius = ends.to(device), uniform(1.2, 2.4).to(device)
        self.contrast, self.noise = uniform(0.6, 1.0).to(device), uniform(0.03, 0.12).to(device)
        self.seed = seed

    def drawn(self, poses):
        """Images (n, 1, h, w), masks (n, h, w) and keypoints (n, 2, 2) at poses (n, 3, 3)."""
        images, masks = [], []
        n = len(self.ends)
        ends = transform(poses.to(self.ends), self.ends.flatten(1, 2)).unflatten(1, (STROKES, 2))
        grid = pixel_grid((SIDE, SIDE), device=ends.device).flatten(0, 1)  # (pixels, 2)
        for part in torch.arange(n, device=ends.device).split(1000):
            a, b = ends[part, :, None, 0], ends[part, :, None, 1]  # (part, strokes, 1, 2)
            along = (((grid - a) * (b - a)).sum(-1) / (b - a).square().sum(-1)).clamp(0, 1)
            distance = (grid - a - along[..., None] * (b - a)).norm(dim=-1).nan_to_num(nan=99.0)  # (part, strokes, px)
            nearest, which = distance.min(1)
            depth = self.radius[part, None] - nearest
            images.append((depth + 0.5).clamp(0, 1) * self.contrast[part, None])
            masks.append((depth > 0) * torch.where(which == 0, 1, 2))
        generator = torch.Generator().manual_seed(self.seed + 1)
        noise = torch.randn(n, 1, SIDE, SIDE, generator=generator).to(ends)
        image = torch.cat(images).reshape(n, 1, SIDE, SIDE) + noise * self.noise[:, None, None, None]
        return image, torch.cat(masks).reshape(n, SIDE, SIDE), ends[:, 0] + (SIDE - 1) / 2


def halves(upright, poses):
    """Images at poses, masks (upper part 1, lower part 2), the middle of the topmost and of the lowest row."""
    stroke = upright[:, 0] > 0.3
    side = upright.shape[-1]
    rows = torch.arange(side, device=upright.device, dtype=torch.float32)
    in_row = stroke.any(2)
    top, bottom = torch.where(in_row, rows, 99.0).amin(1), torch.where(in_row, rows, -1.0).amax(1)
    points = []
    for row in (top, bottom):
        line = stroke.gather(1, row.long()[:, None, None].expand(-1, 1, side))[:, 0].float()
        points.append(torch.stack([(line * rows).sum(1) / line.sum(1), row], dim=1))
    centre = (side - 1) / 2
    points = transform(poses, torch.stack(points, 1) - centre) + centre
    grid = pixel_grid((side, side), device=upright.device).flatten(0, 1)
    height = transform(inverse(poses), grid.expand(len(upright), -1, -1))[..., 1].reshape(-1, side, side)
    lower = height > ((top + bottom) / 2 - centre)[:, None, None]
    images = warp(upright, poses)
    return images, (images[:, 0] > 0.3) * torch.where(lower, 2, 1), points


def examples(name, options, seed):
    """Training examples, held-out upright images, test examples upright and turned, and how they were turned."""
    device = options.device
    n, held, test = (
        (120, 40, 40) if options.quick else (3000, 500, 500) if options.small else (TRAINING, HELD_OUT, TEST)
    )

    def unmoved(count):
        return torch.eye(3, device=device).expand(count, 3, 3)

    if name == "shapes":
        sets = [Figures(count, 10 * seed + part, device) for part, count in enumerate((n, held, test))]
        angles = (2 * torch.rand(test, generator=torch.Generator().manual_seed(1000 + seed)) - 1) * math.pi
        poses = rotation(angles).to(device)
        learnt, kept = sets[0].drawn(unmoved(n)), sets[1].drawn(unmoved(held))[0]
        return learnt, kept, sets[2].drawn(unmoved(test)), sets[2].drawn(poses), poses
    x, _, tx, _ = (part.to(device) for part in load(options.data, "mnist" if name == "digits" else "fashion_mnist"))
    x = x[(x > 0.3).flatten(1).any(1)]
    x, tx = (x[: n + held], tx[:test]) if options.quick or options.small else (x, tx)
    tx = tx[(tx > 0.3).flatten(1).any(1)]
    _, poses = moved_at_random(tx, "so2", "zero", 1000 + seed)
    poses = poses.to(device)
    learnt = halves(x[:-held], unmoved(len(x) - held))
    return learnt, x[-held:], halves(tx, unmoved(len(tx))), halves(tx, poses), poses


def networks(side, w):
    """One network for masks and one for two points, of w and 2 w channels."""
    segment = nn.Sequential(
        conv(1, w), conv(w, w), nn.MaxPool2d(2), conv(w, 2 * w), conv(2 * w, 2 * w), nn.MaxPool2d(2),
        conv(2 * w, 2 * w), conv(2 * w, 2 * w), nn.Upsample(scale_factor=4, mode="bilinear"), conv(2 * w, w),
        nn.Conv2d(w, 3, 1),
    )  # fmt: skip
    locate = nn.Sequential(
        conv(1, w), nn.MaxPool2d(2), conv(w, 2 * w), conv(2 * w, 2 * w), nn.Flatten(),
        nn.Linear(2 * w * (side // 2) ** 2, 128), nn.ReLU(), nn.Linear(128, 4), nn.Unflatten(1, (2, 2)),
    )  # fmt: skip
    return segment, locate


def trained(network, images, target, loss_of, options):
    network.to(images.device).train()
    optimizer = torch.optim.AdamW(network.parameters(), lr=2e-3)
    steps, batch_size = (4, 32) if options.quick else (220, 48) if options.small else (1200, 256)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 2e-3 * min(1.0, 2 * (1 - step / steps))
        batch = torch.randint(len(images), (batch_size,), device=images.device)
        loss = loss_of(network(images[batch]), target[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network.eval()


def iou(predicted, true):
    both = [((predicted == k) & (true == k)).sum() / ((predicted == k) | (true == k)).sum() for k in (1, 2)]
    return 100 * float(sum(both) / 2)


@torch.no_grad()
def measured(segment, locate, example, finder=None, elements=None, form=None):
    """IoU and mean distance of the points: of the networks alone, behind a canonicalizer, or at given poses.

    At given poses, ``form`` says what becomes of the scores of the classes before they are carried back.
    """
    images, masks, points = example
    frame = images.shape[-2:]
    predicted, located = [], []
    for part in torch.arange(len(images), device=images.device).split(500):
        own = images[part]
        if finder is not None:
            adapted = canonicalize(segment, finder[0], finder[1], restores="mask")
            predicted.append(adapted(own).argmax(1))
            answer, pose = canonicalize(locate, *finder).with_pose(own)
            located.append(restore(answer, pose, "keypoints", frame=frame))
        elif elements is not None:
            upright = warp(own, elements[part])
            scores = segment(upright)
            back = restore(scores if form is None else form(scores), elements[part], "mask")
            predicted.append(back.argmax(1) if back.ndim == 4 else back)
            located.append(restore(locate(upright), elements[part], "keypoints", frame=frame))
        else:
            predicted.append(segment(own).argmax(1))
            located.append(locate(own))
    error = (torch.cat(located) - points).norm(dim=2)
    return {"iou": iou(torch.cat(predicted), masks), "pixels": float(error.mean()), "median": float(error.median())}


def experiment(name, options, seed):
    learnt, kept, upright, turned, poses = examples(name, options, seed)
    torch.manual_seed(seed)
    segment, locate = networks(learnt[0].shape[-1], 8 if options.small or options.quick else 32)
    segment = trained(segment, learnt[0], learnt[1], cross_entropy, options)
    locate = trained(locate, learnt[0], learnt[2], mse_loss, options)
    rows = [
        ("plain, upright", measured(segment, locate, upright)),
        ("plain, turned", measured(segment, locate, turned)),
    ]
    forms = {
        "true pose, turned": None,
        "the same, probabilities carried back": lambda scores: scores.softmax(1),
        "the same, classes carried back": lambda scores: scores.argmax(1),
    }
    rows += [(method, measured(segment, locate, turned, None, inverse(poses), form)) for method, form in forms.items()]
    abouts = []
    if not options.true_pose:
        more, about = behind_canonicalizer(segment, locate, (learnt[0], kept, upright, turned), poses, options, seed)
        rows += more
        abouts = [{"set": name, "seed": seed} | about]
        print(abouts, file=sys.stderr, flush=True)
    return [{"set": name, "seed": seed, "method": method} | row for method, row in rows], abouts


def behind_canonicalizer(segment, locate, example, poses, options, seed):
    """Train a canonicalizer; the rows of both networks behind it, and how well it finds the angles."""
    images, kept, upright, turned = example
    stages = (1, 1) if options.quick else (1, 1, 1) if options.small else (1, 2, 2)
    steps, batch_size = (4, 32) if options.quick else (400, 64) if options.small else (700, 512)
    start = time.perf_counter()
    scorer = fit_canonicalizer(
        None, images, canonicalizer=learned("so2", 1, width=6, stages=stages), steps=steps, batch_size=batch_size,
        device=options.device, random_state=seed,
    )  # fmt: skip
    seconds = time.perf_counter() - start
    gate = gate_threshold(scorer, kept, 0.99)
    with torch.no_grad():
        found = torch.cat([scorer(part).element for part in turned[0].split(500)])
    off = (found @ poses)[:, :2, :2]
    degrees = torch.atan2(off[:, 0, 1] - off[:, 1, 0], off[:, 0, 0] + off[:, 1, 1]).abs().rad2deg()
    rows = [
        ("learned, upright", measured(segment, locate, upright, (scorer, None))),
        ("learned, turned", measured(segment, locate, turned, (scorer, None))),
        ("learned, gate, upright", measured(segment, locate, upright, (scorer, gate))),
        ("learned, gate, turned", measured(segment, locate, turned, (scorer, gate))),
    ]
    return rows, {
        "fit_seconds": seconds, "median_degrees": float(degrees.median()),
        "within_20_degrees": 100 * float((degrees < 20).float().mean()),
        "beyond_160_degrees": 100 * float((degrees > 160).float().mean()),
    }  # fmt: skip


def report(files):
    """Print one row for each set and method: means over the seeds, and the largest deviation from them."""
    runs = [json.loads(file.read_text()) for file in files]
    rows, abouts = [row for run in runs for row in run["results"]], [about for run in runs for about in run["scorers"]]
    print("| set | | mean IoU | keypoints: mean error, pixels | median |\n|---|---|---|---|---|")
    for name in dict.fromkeys(row["set"] for row in rows):
        for method in dict.fromkeys(row["method"] for row in rows):
            own = [row for row in rows if row["set"] == name and row["method"] == method]
            cells = []
            for key, digits in (("iou", 1), ("pixels", 2), ("median", 2)):
                values = np.array([row[key] for row in own])
                spread = f" ± {np.abs(values - values.mean()).max():.{digits}f}" if len(own) > 1 else ""
                cells.append(f"{values.mean():.{digits}f}{spread}")
            print(f"| {name} | {method} | {' | '.join(cells)} |")
    print()
    for name in dict.fromkeys(about["set"] for about in abouts):
        own = [about for about in abouts if about["set"] == name]
        mean = {key: np.mean([about[key] for about in own]) for key in own[0] if key not in ("set", "seed")}
        print(
            f"{name}: angle of turned images within 20 degrees {mean['within_20_degrees']:.1f} %, beyond 160 degrees "
            f"{mean['beyond_160_degrees']:.1f} %, median error {mean['median_degrees']:.1f} degrees; "
            f"the canonicalizer was trained for {mean['fit_seconds']:.0f} s; seeds: {len(own)}"
        )
    for run in runs:
        about = run["about"]
        print(f"measured on {about['machine']}, torch {about['torch']}, in {about['seconds']:.0f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ["shapes", "garments", "digits"]
    parser.add_argument("--sets", nargs="+", default=names, choices=names)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("UNPOSE_DATA", ".")))
    parser.add_argument("--out", type=Path, default=Path("adapt-dense.json"))
    parser.add_argument("--report", type=Path, nargs="+", help="print the tables of these files")
    parser.add_argument("--small", action="store_true", help="fewer images and steps, for a CPU")
    parser.add_argument("--true-pose", action="store_true", help="train no canonicalizer")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.report:
        report(options.report)
        return
    torch.backends.cudnn.benchmark = True
    start, rows, abouts = time.perf_counter(), [], []
    for seed in range(options.seeds):
        for name in options.sets:
            found, about = experiment(name, options, seed)
            rows, abouts = rows + found, abouts + about
            machine = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.machine()
            used = {"machine": machine, "torch": torch.__version__, "seconds": time.perf_counter() - start}
            options.out.write_text(json.dumps({"about": used, "scorers": abouts, "results": rows}, indent=1))
    report([options.out])


if __name__ == "__main__":
    main()
