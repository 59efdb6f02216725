"""Find the part that repeats at another angle, place and size: what the invariant block gains at equal cost.

    python benchmarks/moved_parts.py --matches [--seeds 3] [--out moved_parts.json]
    python benchmarks/moved_parts.py [--seeds 3] [--seconds 100] [--processes 2] [--out moved_parts.json]

The task of `invariant_block.py`, with parts that are also shifted by up to 1.5 pixels and scaled by up to 1.25 either
way, at any angle. Every method trains on the same 1,000 images for the same CPU time of one core, with the learning
rate falling to zero over that time, and is tested once at the end. Ordinary attention sees each image with every part
rotated, shifted and scaled anew in every step; the augmentation knows where the parts are. `--matches` trains nothing:
it counts how often the nearest other patch of a part that repeats is its twin.
"""

import argparse
import json
import math
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import invariant_block as task
from unpose.groups import area_change, rotation, scaling, transform, translation
from unpose.images import pixel_grid, smooth, warp
from unpose.nn import count_parameters, patch_net

SHIFT, SCALE = 1.5, 1.25
RADIUS = 0.6 / 0.85  # smaller parts, so that moved ones stay inside of their patch
METHODS = {
    "rotations": ("c12", {"neighbours": 3}),
    "rotations, shifts": ("c12", {"neighbours": 3, "shift": SHIFT}),
    "ordinary, augmented": ("c1", {"attention": "ordinary", "depth": 2}),
    "ordinary, orbit tokens, augmented": ("c12", {"attention": "ordinary", "depth": 2}),
}


def moves(count: int, generator: torch.Generator) -> Tensor:
    """Random rotations, shifts and scales: (count, 3, 3)."""
    turns = rotation(2 * math.pi * torch.rand(count, generator=generator))
    factors = torch.exp(math.log(SCALE) * (2 * torch.rand(count, generator=generator) - 1))
    shifts = SHIFT * (2 * torch.rand(count, 2, generator=generator) - 1)
    return translation(shifts) @ scaling(factors) @ turns


def scenes(kinds: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Images (count, 1, side, side) of parts at random places and poses, the kinds that repeat (count,), all kinds."""
    labels = torch.randint(len(kinds), (count,), generator=generator)
    chosen = torch.rand(count, len(kinds), generator=generator)
    others = chosen.scatter(1, labels[:, None], -1.0).argsort(1, descending=True)[:, : task.SIDE**2 - task.TIMES]
    parts = torch.cat([labels[:, None].expand(-1, task.TIMES), others], dim=1)
    parts = parts.gather(1, torch.rand(parts.shape, generator=generator).argsort(1))  # (count, SIDE^2)
    points = kinds[parts.flatten()] * RADIUS
    points = points + task.DEFORMATION * torch.randn(points.shape, generator=generator)
    points = transform(moves(len(points), generator), points * task.SIZE / 2) / (task.SIZE / 2)
    patches = torch.cat([task.draw_parts(chunk) for chunk in points.split(1000)])
    patches = patches + task.NOISE * torch.randn(patches.shape, generator=generator)
    return task.join_patches(patches, count)[:, None], labels, parts


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Every part rotated, shifted and scaled about its own centre."""
    patches = images.reshape(-1, task.SIDE, task.SIZE, task.SIDE, task.SIZE).transpose(2, 3)
    patches = patches.reshape(-1, 1, task.SIZE, task.SIZE)
    return task.join_patches(warp(patches, moves(len(patches), generator))[:, 0], len(images))[:, None]


def matches(seed: int, count: int = 100) -> list[dict]:
    """How often the nearest other patch of a part that repeats is its twin, without any training.

    Where poses scale, squared distances are divided by the square root of the change of area and the smaller one of
    both directions counts, because shrinking a patch would always bring it nearer.
    """
    generator = torch.Generator().manual_seed(seed)
    images, labels, parts = scenes(task.strokes(task.KINDS, generator), count, generator)
    patches = images[:, 0].reshape(-1, task.SIDE, task.SIZE, task.SIDE, task.SIZE).transpose(2, 3)
    disc = (task.SIZE / 2 - pixel_grid((task.SIZE, task.SIZE)).norm(dim=-1)).clamp(0, 1)
    flat = smooth(patches.flatten(1, 2) * disc, 1.0).flatten(2)  # (count, SIDE^2, SIZE^2)
    pixels = torch.eye(task.SIZE**2).reshape(-1, 1, task.SIZE, task.SIZE)
    is_twin, rows = parts == labels[:, None], []
    for name, turns, shift, scale in (
        ("none", 1, 0.0, 1.0), ("rotations", 12, 0.0, 1.0), ("rotations, shifts", 12, SHIFT, 1.0),
        ("rotations, scales", 12, 0.0, SCALE), ("rotations, shifts, scales", 12, SHIFT, SCALE),
    ):  # fmt: skip
        angles = rotation(torch.arange(turns) * (2 * math.pi / turns))
        grid = torch.tensor([0.0, -shift, shift] if shift else [0.0])
        factors = torch.tensor([1.0, 1 / scale, scale] if scale > 1 else [1.0])
        shifts = translation(torch.cartesian_prod(grid, grid))
        poses = (shifts[:, None, None] @ scaling(factors)[:, None] @ angles).flatten(0, 2)
        best = torch.full((count, task.SIDE**2, task.SIDE**2), math.inf)
        began = time.process_time()
        for pose in poses:
            moved = flat @ warp(pixels, pose).flatten(1)
            squared = moved.square().sum(-1)[:, None] + flat.square().sum(-1)[:, :, None] - 2 * flat @ moved.mT
            best = torch.minimum(best, squared / area_change(pose).sqrt())
        best = torch.minimum(best, best.mT) if scale > 1 else best
        found = (best + 1e9 * torch.eye(task.SIDE**2)).argmin(2)
        right = float(is_twin.gather(1, found)[is_twin].float().mean())
        seconds = round(time.process_time() - began, 2)
        rows.append({"seed": seed, "poses": name, "count": len(poses), "twin": right, "CPU seconds": seconds})
    return rows


def run(name: str, seed: int, seconds: float) -> dict:
    """Train one network for some CPU seconds and test it."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(seed)
    kinds = task.strokes(task.KINDS, generator)
    images, labels, _ = scenes(kinds, task.COUNTS[0], generator)
    tests, answers, _ = scenes(kinds, task.COUNTS[2], generator)
    group, options = METHODS[name]
    torch.manual_seed(seed)
    side = task.SIDE * task.SIZE
    network = patch_net(group, 1, task.KINDS, side, patch_size=task.SIZE, parameters=task.PARAMETERS, **options)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.02)
    began, steps = time.process_time(), 0
    while (share := (time.process_time() - began) / seconds) < 1:
        for each in optimizer.param_groups:
            each["lr"] = 0.003 * min(1.0, steps / 32 + 0.03) * 0.5 * (1 + math.cos(math.pi * share))
        chosen = torch.randint(len(images), (32,), generator=generator)
        batch = images[chosen]
        batch = augmented(batch, generator) if "augmented" in name else batch
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(batch), labels[chosen]).backward()
        optimizer.step()
        steps += 1
    network.eval()
    with torch.no_grad():
        found = [torch.cat([network(x).argmax(1) for x in each.split(50)]) for each in (tests, images)]
    right = [float((a == b).float().mean()) for a, b in zip(found, (answers, labels), strict=True)]
    row = {"seed": seed, "method": name, "parameters": count_parameters(network), "accuracy": right[0]}
    return row | {"training": right[1], "epochs": round(32 * steps / len(images), 1), "CPU seconds": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--matches", action="store_true", help="only compare patches, without training")
    parser.add_argument("--out", default="moved_parts.json")
    options = parser.parse_args()
    rows = []
    if options.matches:
        torch.set_num_threads(1)
        for seed in range(1, options.seeds + 1):
            rows += matches(seed)
            print(
                *(f"seed {seed}  {row['poses']:26} {row['twin']:.1%}  {row['CPU seconds']:.1f} s" for row in rows[-5:]),
                sep="\n",
            )
        Path(options.out).write_text(json.dumps({"matches": rows}, indent=1))
        return
    with ProcessPoolExecutor(options.processes) as pool:
        jobs = [
            pool.submit(run, name, seed, options.seconds)
            for seed in range(1, options.seeds + 1)
            for name in options.methods
        ]
        for job in jobs:
            rows.append(row := job.result())
            print(
                f"seed {row['seed']}  {row['method']:34} {row['accuracy']:.1%}  training images {row['training']:.1%}  "
                f"{row['epochs']:.0f} epochs",
                flush=True,
            )
            settings = {"machine": platform.machine(), "torch": torch.__version__, "shift": SHIFT, "scale": SCALE}
            Path(options.out).write_text(json.dumps({"settings": settings, "results": rows}, indent=1))
    for name in options.methods:
        found = np.array([row["accuracy"] for row in rows if row["method"] == name])
        print(f"{name:34} {found.mean():.1%} (+- {found.std():.1%})")


if __name__ == "__main__":
    main()
