"""Measure how well a network for dilations recognises digits at sizes that it was not trained on.

    UNPOSE_DATA=/path/to/arrays python benchmarks/scales.py [--out docs/benchmarks/unseen-sizes.json]
    UNPOSE_DATA=/path/to/arrays python benchmarks/scales.py --only attention --device cuda [--epochs 40]

``scale_net`` with five scales, and with one scale and exactly as many parameters, are trained on 1,000 MNIST digits of
one size (18 pixels high, on a canvas of 56, shifted by up to 2 pixels). The epoch is chosen on 500 more of the same
size. Both are tested on 2,000 others, at that size and at sizes that neither has seen. Digits are smoothed before they
are made smaller. The last row is for comparison and is no test of unseen sizes: the network with one scale, trained on
eight copies of every digit at sizes drawn from the whole range. Three seeds; ``--out`` writes each run when it ends.

``--only attention`` trains dilation attention instead (appendix E of the group self-attention paper): ``gsa_net`` with
three scales of ratio 2, with four of ratio 1.41, and its translation-only baseline, by one recipe. A training step
takes much longer than one of ``scale_net``; use a GPU.
"""

import argparse
import datetime
import json
import math
import shlex
import sys
import time
from pathlib import Path

import numpy as np
import torch

from record import machine, versions
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
# The kernels of the network with one scale are as wide as those of the other at its second scale, the coarser of the
# two that training prefers.
FIVE_SCALES, ONE_SCALE = ("dilations(5, 1.4142)", 5), ("dilations(1)", 7)
NAMES = ("five scales", "one scale", "one scale, trained on all sizes")
# Likewise, the window of attention with one scale is that of the other network at its second scale.
ATTENTION = {
    "attention, three scales": ("dilations(3, 2)", 3),
    "attention, four scales": ("dilations(4, 1.4142)", 3),
    "attention, one scale": ("dilations(1)", 5),
}


def at_size(digits: Split, factors: np.ndarray, seed: int) -> Split:
    """Scale every digit by its factor and shift it: smooth it if it shrinks, then resample once."""
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
    """Copy every digit, with log-uniform sizes from the whole range of the test."""
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


def attention_recipe(network: tuple[str, int], epochs: int, seed: int) -> Recipe:
    """Dilation attention by the recipe that trains the rotated-MNIST network, without its random poses."""
    group, window = network
    config = {"lifted": 12, "stages": [[12], [16, 16]], "heads": 4, "window": window}
    config |= {"attention_dropout": 0.0, "value_dropout": 0.0}
    return recipe_from(
        {
            "epochs": epochs,
            "batch_size": 25,
            "label_smoothing": 0.1,
            "average": 0.99,
            "mixed_precision": True,
            "seed": seed,
            "network": {"kind": "gsa_net", "group": group, "initialization": "offsets", "options": {"config": config}},
            "optimizer": {"name": "muon", "learning_rate": 0.02, "warmup_epochs": 1},
        }
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=["convolution", "attention"], default="convolution")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    mnist = load("mnist")
    results = []
    for seed in options.seeds:
        rng = np.random.default_rng(seed)
        parts = zip((mnist.train, mnist.validation, mnist.test), COUNTS, strict=True)
        digits = [part.take(rng.choice(len(part), count, replace=False)) for part, count in parts]
        about = f"{mnist.source}, seed {seed}"
        one_size = Dataset("digits of one size", about, mnist.classes, *(at_one_size(d, 1.0, seed) for d in digits))
        all_sizes = Dataset(
            "digits of all sizes",
            about,
            mnist.classes,
            at_all_sizes(digits[0], COPIES, seed),
            at_all_sizes(digits[1], 1, seed),
            one_size.test,
        )
        tests = [at_one_size(digits[2], times, 10 + seed) for times in TIMES]
        runs = [
            (NAMES[0], one_size, recipe_of(FIVE_SCALES, options.epochs, seed)),
            (NAMES[1], one_size, recipe_of(ONE_SCALE, options.epochs, seed)),
            # Eight times the images in less than half the epochs: three times as many in total.
            (NAMES[2], all_sizes, recipe_of(ONE_SCALE, max(2, 2 * options.epochs // 5), seed)),
        ]
        if options.only == "attention":
            runs = [(name, one_size, attention_recipe(n, options.epochs, seed)) for name, n in ATTENTION.items()]
        for name, data, recipe in runs:
            start = time.process_time()
            network = train(data, recipe, device=options.device).network
            seconds = time.process_time() - start
            found = [accuracy(network, test) for test in tests]
            row = {"seed": seed, "network": name, "parameters": count_parameters(network), "accuracy": found}
            results.append(row | {"seconds": round(seconds, 1)})
            print(*results[-1].values(), file=sys.stderr, flush=True)
            if options.out:
                about = {
                    "command": shlex.join(["python", *sys.argv]),
                    "machine": machine(options.device == "cuda"),
                    "date": datetime.date.today().isoformat(),
                    "versions": versions(),
                }
                options.out.write_text(json.dumps({"about": about, "times": TIMES, "rows": results}, indent=1) + "\n")
    columns = ("size relative to training", *(f"{times:g}" for times in TIMES), "parameters", "CPU s")
    print(f"| {' | '.join(columns)} |\n|" + "---|" * len(columns))
    for name in NAMES if options.only == "convolution" else ATTENTION:
        rows = [row for row in results if row["network"] == name]
        means = (f"{mean:.1%}" for mean in np.mean([row["accuracy"] for row in rows], axis=0))
        seconds = np.mean([row["seconds"] for row in rows])
        print(f"| {name} | {' | '.join(means)} | {rows[0]['parameters']:,} | {seconds:.0f} |")


if __name__ == "__main__":
    main()
