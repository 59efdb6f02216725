"""Does a group network learn more from a thousand posed digits than its translation-only baseline?

    UNPOSE_DATA=/path/to/arrays python benchmarks/learn.py [--augment]

A group convolution network and its translation-only baseline are trained on a thousand MNIST digits, each at one random
pose (any angle, shifts up to 2 pixels). The baseline is widened until it has at least as many parameters. 500 more
digits choose the epoch, and 5,000 others, at random poses too, are used once for testing. Each of three seeds draws its
own digits, poses and weights. With ``--augment`` every training image is also rotated by a new random angle in each
epoch, for both networks, which favours the baseline.
"""

import argparse
import sys
import time
from dataclasses import replace

import numpy as np

from unpose.data import Dataset, Split, load, posed
from unpose.nn import count_parameters
from unpose.train import Recipe, baseline_description, build_network, recipe_from, train

GROUPS = ("c4", "c8", "d4")
COUNTS = (1000, 500, 5000)


def posed_digits(mnist: Dataset, seed: int) -> Dataset:
    """Training, validation and test digits, all different, each at one random pose."""
    rng = np.random.default_rng(seed)
    parts = []
    for number, (part, count) in enumerate(zip((mnist.train, mnist.validation, mnist.test), COUNTS, strict=True)):
        chosen = rng.choice(len(part), count, replace=False)
        copies = posed(part.images[chosen], "se2", max_shift=2.0, random_state=3 * seed + number)
        parts.append(Split(copies.images, part.labels[chosen]))
    return Dataset("posed digits", f"{mnist.source}, seed {seed}", mnist.classes, *parts)


def recipe_of(group: str, epochs: int, seed: int, augment: bool) -> Recipe:
    return recipe_from(
        {
            "epochs": epochs,
            "batch_size": 25,
            "seed": seed,
            "network": {"group": group, "options": {"parameters": 12_000, "stages": [1, 2, 1]}},
            "optimizer": {"learning_rate": 0.01, "weight_decay": 0.02, "warmup_epochs": 1},
            "poses": {"max_angle": 180.0 if augment else 0.0},
        }
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=24)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--groups", nargs="+", default=GROUPS)
    parser.add_argument("--augment", action="store_true")
    options = parser.parse_args()
    mnist = load("mnist")
    results = []
    for seed in range(options.seeds):
        data = posed_digits(mnist, seed)
        for group in options.groups:
            own = recipe_of(group, options.epochs, seed, options.augment)
            description = baseline_description(build_network(own, data).description)
            widened = {name: description[name] for name in ("width", "stages", "kernel_size")}
            row = {"seed": seed, "group": group}
            for name, recipe in (
                ("network", own),
                ("baseline", replace(own, network=replace(own.network, group="c1", options=widened))),
            ):
                start = time.process_time()
                result = train(data, recipe)
                row[name] = {
                    "parameters": count_parameters(result.network),
                    "accuracy": result.test_accuracy,
                    "seconds": time.process_time() - start,
                }
            results.append(row)
            print(row, file=sys.stderr, flush=True)
    print("| group | parameters | CPU s | accuracy | baseline's parameters | CPU s | accuracy | better in |")
    print("|---|---|---|---|---|---|---|---|")
    for group in options.groups:
        rows, cells = [row for row in results if row["group"] == group], []
        for name in ("network", "baseline"):
            accuracy = 100 * np.array([row[name]["accuracy"] for row in rows])
            seconds = np.mean([row[name]["seconds"] for row in rows])
            cells += [f"{rows[0][name]['parameters']:,}", f"{seconds:.0f}"]
            cells.append(f"{accuracy.mean():.1f} % ± {accuracy.std():.1f}")
        wins = sum(row["network"]["accuracy"] > row["baseline"]["accuracy"] for row in rows)
        print(f"| {group} | {' | '.join(cells)} | {wins} of {len(rows)} |")


if __name__ == "__main__":
    main()
