"""Find the part that repeats at another angle: invariant attention among patches against ordinary attention.

    python benchmarks/invariant_block.py [--seeds 3]

An image has nine parts on a grid, each drawn from its strokes at a random angle, deformed and with noise. One of ten
kinds of part occurs twice, seven others once; the label is the kind that repeats. The networks are trained on 1,000
images with parts rotated by 0 to 180 degrees only, and the epoch is chosen on 400 more. They are tested on 1,000 images
at those angles and on 1,000 at angles from 180 to 360 degrees, which only the network with augmentation has seen.

All are `patch_net` with the same number of parameters to within one per cent:

- invariant: patches attend up to pose, tokens are the maximum responses over the orbit
- ordinary: a vision transformer with a linear patch embedding
- ordinary, turned: the same with augmentation: many copies of each image, every part rotated by a new random angle
- ordinary, orbit tokens: ordinary attention among the tokens of the first, to separate the effect of the attention
- kernel attention: the first without rotations, paper equation 2.1

Methods that train faster get more epochs. Settings were chosen on seed 0, so the measured seeds start at 1.
"""

import argparse
import math
import sys
import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from unpose.data import Dataset, Split
from unpose.groups import rotation, transform
from unpose.images import pixel_grid, warp
from unpose.nn import count_parameters
from unpose.train import accuracy, recipe_from, train

SIDE, SIZE, KINDS, TIMES = 3, 13, 10, 2
COUNTS = (1000, 400, 1000)
DEFORMATION, NOISE = 0.06, 0.15
COPIES = 24
GROUP = "c12"
PARAMETERS = 30_000
METHODS = {
    # group, options, epochs
    "invariant": (GROUP, {"attention": "invariant", "neighbours": 3}, 12),
    "ordinary": ("c1", {"attention": "ordinary", "depth": 2}, 32),
    "ordinary, turned": ("c1", {"attention": "ordinary", "depth": 2}, 12),
    "ordinary, orbit tokens": (GROUP, {"attention": "ordinary", "depth": 2}, 32),
    "kernel attention": ("c1", {"attention": "invariant", "neighbours": 3}, 24),
}


def strokes(kinds: int, generator: torch.Generator) -> Tensor:
    """Draw kinds of part: two Bezier curves of four points each, centred, in a disc of radius 0.85: (kinds, 8, 2)."""
    points = 2 * torch.rand(kinds, 8, 2, generator=generator) - 1
    points = points - points.mean(1, keepdim=True)
    return 0.85 * points / points.norm(dim=-1).amax(1)[:, None, None]


def draw_parts(points: Tensor) -> Tensor:
    """Render parts from their curves: (m, 8, 2) in units of half a patch -> (m, SIZE, SIZE)."""
    t = torch.linspace(0, 1, 9)[:, None]
    bernstein = torch.cat([(1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t**2 * (1 - t), t**3], dim=1)  # (9, 4)
    curves = bernstein @ points.unflatten(1, (2, 4)) * (SIZE / 2)  # (m, 2, 9, 2), pixels
    start, along = curves[:, :, :-1].flatten(1, 2), curves.diff(dim=2).flatten(1, 2)  # (m, 16, 2)
    gaps = pixel_grid((SIZE, SIZE)).flatten(0, 1)[:, None] - start[:, None]  # (m, pixels, 16, 2)
    length = along.square().sum(-1).clamp_min(1e-9)
    where = ((gaps * along[:, None]).sum(-1) / length[:, None]).clamp(0, 1)
    distance = (gaps - where[..., None] * along[:, None]).norm(dim=-1).amin(-1)  # (m, pixels)
    return (1.3 - distance).clamp(0, 1).unflatten(1, (SIZE, SIZE))


def scenes(kinds: Tensor, count: int, angles: tuple[float, float], generator: torch.Generator) -> Split:
    """Draw images of parts at random places and angles (degrees): one kind TIMES times, the label, and others once."""
    labels = torch.randint(len(kinds), (count,), generator=generator)
    chosen = torch.rand(count, len(kinds), generator=generator)
    others = chosen.scatter(1, labels[:, None], -1.0).argsort(1, descending=True)[:, : SIDE**2 - TIMES]
    parts = torch.cat([labels[:, None].expand(-1, TIMES), others], dim=1)  # (count, SIDE^2)
    parts = parts.gather(1, torch.rand(parts.shape, generator=generator).argsort(1)).flatten()
    low, high = map(math.radians, angles)
    turns = rotation(low + (high - low) * torch.rand(len(parts), generator=generator))
    points = kinds[parts]
    points = transform(turns, points + DEFORMATION * torch.randn(points.shape, generator=generator))
    patches = torch.cat([draw_parts(chunk) for chunk in points.split(1000)])
    patches = patches + NOISE * torch.randn(patches.shape, generator=generator)
    return Split(join_patches(patches, count).numpy(), labels.numpy())


def join_patches(patches: Tensor, count: int) -> Tensor:
    """(count * SIDE^2, SIZE, SIZE) -> (count, SIDE * SIZE, SIDE * SIZE)"""
    return patches.reshape(count, SIDE, SIDE, SIZE, SIZE).transpose(2, 3).flatten(3).flatten(1, 2)


def with_turned_parts(split: Split, copies: int, generator: torch.Generator) -> Split:
    """Copy images with every part rotated about its own centre: the augmentation that fits the task best."""
    images = torch.from_numpy(split.images).repeat(copies, 1, 1)
    patches = images.reshape(-1, SIDE, SIZE, SIDE, SIZE).transpose(2, 3).reshape(-1, 1, SIZE, SIZE)
    turned = warp(patches, rotation(2 * math.pi * torch.rand(len(patches), generator=generator)))[:, 0]
    return Split(join_patches(turned, len(images)).numpy(), np.tile(split.labels, copies))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for seed in range(1, options.seeds + 1):
        generator = torch.Generator().manual_seed(seed)
        kinds = strokes(KINDS, generator)
        names = tuple(f"kind {kind}" for kind in range(KINDS))
        parts = [scenes(kinds, count, (0, 180), generator) for count in COUNTS]
        unseen = scenes(kinds, COUNTS[2], (180, 360), generator)
        data = Dataset("repeated parts", f"drawn with seed {seed}", names, *parts)
        turned = [with_turned_parts(part, copies, generator) for part, copies in zip(parts, (COPIES, 4), strict=False)]
        for name in options.methods:
            group, network, epochs = METHODS[name]
            recipe = recipe_from(
                {
                    "epochs": epochs,
                    "batch_size": 32,
                    "seed": seed,
                    "network": {
                        "kind": "patch_net",
                        "group": group,
                        "options": {"patch_size": SIZE, "parameters": PARAMETERS} | network,
                    },
                    "optimizer": {"learning_rate": 0.003, "weight_decay": 0.02, "warmup_epochs": 1},
                }
            )
            seen = replace(data, train=turned[0], validation=turned[1]) if name == "ordinary, turned" else data
            start = time.process_time()
            outcome = train(seen, recipe)
            row = {
                "seed": seed,
                "method": name,
                "parameters": count_parameters(outcome.network),
                "accuracy": outcome.test_accuracy,
                "unseen": accuracy(outcome.network, unseen),
                "seconds": time.process_time() - start,
            }
            results.append(row)
            print(row, file=sys.stderr, flush=True)
    print("| network | parameters | angles of training | other angles | CPU s |\n|---|---|---|---|---|")
    for name in options.methods:
        rows = [row for row in results if row["method"] == name]
        seen, unseen = (100 * np.array([row[key] for row in rows]) for key in ("accuracy", "unseen"))
        cells = [f"{values.mean():.1f} % ± {values.std():.1f}" for values in (seen, unseen)]
        seconds = np.mean([row["seconds"] for row in rows])
        print(f"| {name} | {rows[0]['parameters']:,} | {' | '.join(cells)} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
