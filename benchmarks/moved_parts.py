"""Is the twin of a part that repeats at another angle, place and size its nearest patch? Which poses must be compared?

    python benchmarks/moved_parts.py [--seeds 3]

The images of `invariant_block.py`, with parts that are also shifted by up to 1.5 pixels and scaled by up to 1.25 either
way, at any angle. Nothing is trained: it counts how often the nearest other patch of a part that repeats is its twin,
one in eight by chance.
"""

import argparse
import math
import time

import numpy as np
import torch
from torch import Tensor

import invariant_block as task
from unpose.groups import area_change, rotation, scaling, transform, translation
from unpose.images import pixel_grid, smooth, warp

SHIFT, SCALE = 1.5, 1.25
RADIUS = 0.6 / 0.85  # smaller parts, so that moved ones stay inside of their patch


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


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for seed in range(1, options.seeds + 1) for row in matches(seed)]
    print("| compared at | poses | twin found, mean | by seed | CPU s |\n|---|---|---|---|---|")
    for name in dict.fromkeys(row["poses"] for row in rows):
        own = [row for row in rows if row["poses"] == name]
        twins = [row["twin"] for row in own]
        cells = [name, str(own[0]["count"]), f"{np.mean(twins):.1%}", ", ".join(f"{twin:.1%}" for twin in twins)]
        print(f"| {' | '.join(cells)} | {np.mean([row['CPU seconds'] for row in own]):.1f} |")


if __name__ == "__main__":
    main()
