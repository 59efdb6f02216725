"""Does a network for dilations recognise digits at sizes it has never seen?

    UNPOSE_DATA=/path/to/arrays python benchmarks/scales.py [--out scales.json]

A thousand MNIST digits at one size (0.6 of their own, on a canvas of 44 pixels, shifted up to 2 pixels) teach
``scale_net`` with three scales and its twin with one scale and exactly as many parameters. 500 more at the same size
choose the epoch. 2,000 others test it, at that size and at sizes that neither network has seen. Three seeds.
"""

import argparse
import json
import os
import platform
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from unpose.data import Dataset, Split, load
from unpose.groups import scaling, translation
from unpose.images import as_batch, from_batch, warp
from unpose.nn import count_parameters
from unpose.train import accuracy, build_network, recipe_from, train

COUNTS = (1000, 500, 2000)
SEEN = 0.6
TIMES = (0.7, 1.0, 1.2, 1.4, 1.7, 2.0, 2.4, 2.8)
CANVAS = (44, 44)


def at_size(part: Split, chosen: np.ndarray, factor: float, seed: int) -> Split:
    """Digits enlarged by a factor and shifted, each resampled once."""
    batch = as_batch(part.images[chosen], dtype=torch.float64)
    shifts = 4 * torch.rand(len(chosen), 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 2
    poses = translation(shifts) @ scaling(torch.tensor(factor, dtype=torch.float64))
    images = warp(batch, poses, CANVAS).clamp(0, 1).float()
    return Split(from_batch(images, channels=False), part.labels[chosen])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="scales.json")
    options = parser.parse_args()
    mnist = load("mnist")
    results = []
    for seed in range(options.seeds):
        rng = np.random.default_rng(seed)
        parts = (mnist.train, mnist.validation, mnist.test)
        chosen = [rng.choice(len(part), count, replace=False) for part, count in zip(parts, COUNTS, strict=True)]
        at_seen = [at_size(part, rows, SEEN, seed) for part, rows in zip(parts, chosen, strict=True)]
        data = Dataset("digits at one size", f"{mnist.source}, seed {seed}", mnist.classes, *at_seen)
        recipe = recipe_from(
            {
                "epochs": options.epochs,
                "batch_size": 25,
                "seed": seed,
                "network": {"kind": "scale_net", "group": "dilations(3, 1.5)"},
                "optimizer": {"learning_rate": 0.01, "weight_decay": 0.02, "warmup_epochs": 1},
            }
        )
        one_scale = replace(recipe, network=replace(recipe.network, group="dilations(1)"))
        for name, each in (("three scales", recipe), ("one scale", one_scale)):
            start = time.perf_counter()
            network = train(data, each).network
            seconds = time.perf_counter() - start
            line = [accuracy(network, at_size(mnist.test, chosen[2], SEEN * times, 10 + seed)) for times in TIMES]
            parameters = count_parameters(build_network(each, data))
            results.append({"seed": seed, "network": name, "parameters": parameters, "accuracy": line})
            told = "  ".join(f"x{times:g} {right:.1%}" for times, right in zip(TIMES, line, strict=True))
            print(f"seed {seed}  {name:12} {parameters:,} parameters  {told}   ({seconds:.0f} s)", flush=True)
    print()
    for name in ("three scales", "one scale"):
        lines = np.array([row["accuracy"] for row in results if row["network"] == name])
        told = "  ".join(f"x{times:g} {m:.1%}" for times, m in zip(TIMES, lines.mean(0), strict=True))
        print(f"{name:12} {told}")
    about = {"machine": platform.machine(), "threads": torch.get_num_threads(), "cores": os.cpu_count()}
    settings = {"epochs": options.epochs, "counts": COUNTS, "seen": SEEN, "times": TIMES, "torch": torch.__version__}
    Path(options.out).write_text(json.dumps({"about": about, "settings": settings, "results": results}, indent=1))


if __name__ == "__main__":
    main()
