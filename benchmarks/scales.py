"""Does a network for dilations recognise digits at sizes it has never seen?

    UNPOSE_DATA=/path/to/arrays python benchmarks/scales.py [--out scales.json]

A thousand MNIST digits at one size (18 pixels high, on a canvas of 56, shifted up to 2 pixels) teach ``scale_net`` with
five scales and its twin with one scale and exactly as many parameters. 500 more at the same size choose the epoch.
2,000 others test them, at that size and at sizes that neither has seen. Digits that are made smaller are smoothed
first. The last row is for comparison, and no test of unseen sizes: the twin taught with eight copies of every digit, at
sizes drawn from the whole range. Three seeds.
"""

import argparse
import json
import math
import os
import platform
import time
from pathlib import Path

import numpy as np
import torch

from unpose.data import Dataset, Split, load
from unpose.groups import scaling, translation
from unpose.images import as_batch, from_batch, smooth, warp
from unpose.nn import count_parameters
from unpose.train import Recipe, accuracy, recipe_from, train

COUNTS = (1000, 500, 2000)
SEEN = 0.9
TIMES = (0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.4, 1.7, 2.0, 2.4, 2.8)
CANVAS = (56, 56)
COPIES = 8
# The twin's kernels are as wide as the other's at its second scale, the coarser of the two that are favoured.
FIVE_SCALES, ONE_SCALE = ("dilations(5, 1.4142)", 5), ("dilations(1)", 7)
NAMES = ("five scales", "one scale", "one scale, taught all sizes")


def at_size(digits: Split, factors: np.ndarray, seed: int) -> Split:
    """Digits, each enlarged by its factor and shifted: smoothed where it shrinks, then resampled once."""
    generator = torch.Generator().manual_seed(seed)
    shifts = 4 * torch.rand(len(digits), 2, generator=generator, dtype=torch.float64) - 2
    factor = torch.from_numpy(factors)
    blurred = torch.stack(
        [
            smooth(image, 0.5 * math.sqrt(max(0.0, each**-2 - 1)))
            for image, each in zip(as_batch(digits.images, dtype=torch.float64), factors, strict=True)
        ]
    )
    images = warp(blurred, translation(shifts) @ scaling(factor), CANVAS).clamp(0, 1).float()
    return Split(from_batch(images, channels=False), digits.labels)


def at_one_size(digits: Split, times: float, seed: int) -> Split:
    return at_size(digits, np.full(len(digits), SEEN * times), seed)


def at_all_sizes(digits: Split, copies: int, seed: int) -> Split:
    """Copies of every digit, their sizes drawn evenly in the logarithm from the whole range of the test."""
    rows = np.tile(np.arange(len(digits)), copies)
    drawn = np.random.default_rng(seed).uniform(math.log(TIMES[0]), math.log(TIMES[-1]), len(rows))
    return at_size(digits.take(rows), SEEN * np.exp(drawn), seed)


def recipe_of(network: tuple[str, int], epochs: int, seed: int) -> Recipe:
    group, kernel_size = network
    return recipe_from(
        {
            "epochs": epochs,
            "batch_size": 25,
            "seed": seed,
            "network": {"kind": "scale_net", "group": group, "options": {"kernel_size": kernel_size}},
            "optimizer": {"learning_rate": 0.01, "weight_decay": 0.02, "warmup_epochs": 1},
        }
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", default="scales.json")
    options = parser.parse_args()
    mnist = load("mnist")
    results = []
    for seed in options.seeds:
        rng = np.random.default_rng(seed)
        parts = zip((mnist.train, mnist.validation, mnist.test), COUNTS, strict=True)
        digits = [part.take(rng.choice(len(part), count, replace=False)) for part, count in parts]
        about = f"{mnist.source}, seed {seed}"
        taught_one = Dataset("digits of one size", about, mnist.classes, *(at_one_size(d, 1.0, seed) for d in digits))
        taught_all = Dataset(
            "digits of all sizes",
            about,
            mnist.classes,
            at_all_sizes(digits[0], COPIES, seed),
            at_all_sizes(digits[1], 1, seed),
            taught_one.test,
        )
        tests = [at_one_size(digits[2], times, 10 + seed) for times in TIMES]
        for name, data, recipe in (
            (NAMES[0], taught_one, recipe_of(FIVE_SCALES, options.epochs, seed)),
            (NAMES[1], taught_one, recipe_of(ONE_SCALE, options.epochs, seed)),
            # Eight times the images in less than half the epochs: it sees three times as many.
            (NAMES[2], taught_all, recipe_of(ONE_SCALE, max(2, 2 * options.epochs // 5), seed)),
        ):
            start = time.process_time()
            network = train(data, recipe).network
            seconds = time.process_time() - start
            line = [accuracy(network, test) for test in tests]
            parameters = count_parameters(network)
            results.append(
                {"seed": seed, "network": name, "parameters": parameters, "accuracy": line, "cpu_seconds": seconds}
            )
            told = "  ".join(f"x{times:g} {right:.1%}" for times, right in zip(TIMES, line, strict=True))
            print(f"seed {seed}  {name:27} {parameters:,} parameters  {told}   ({seconds:.0f} CPU-s)", flush=True)
    print()
    for name in NAMES:
        lines = np.array([row["accuracy"] for row in results if row["network"] == name])
        told = "  ".join(f"x{times:g} {m:.1%}" for times, m in zip(TIMES, lines.mean(0), strict=True))
        print(f"{name:27} {told}")
    about = {"machine": platform.machine(), "threads": torch.get_num_threads(), "cores": os.cpu_count()}
    settings = {"epochs": options.epochs, "counts": COUNTS, "seen": SEEN, "times": TIMES, "torch": torch.__version__}
    Path(options.out).write_text(json.dumps({"about": about, "settings": settings, "results": results}, indent=1))


if __name__ == "__main__":
    main()
