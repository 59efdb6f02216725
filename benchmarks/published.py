"""How often the published method clusters experiment 1 perfectly, and how long it takes, with two solvers.

    python benchmarks/published.py [--seeds 20] [--device cpu]

Three classes of six images each (a crab, a seven, a creature), rotated by up to 65 degrees either way as in the paper
and over the full circle, shifted by up to 10 pixels, two rounds of invariant attention with beta = 2. "descent" is our
reading of the published solver, "search" searches the whole orbit instead. Perfect means that the labels are the three
classes; agreement is the mean adjusted Rand index. Processor time is that of one run on one thread, the median.
"""

import argparse
import itertools
import math
import time

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from unpose.cluster.published import invariant_attention
from unpose.data.experiments import three_classes

SOLVERS = {"descent": "descent from the identity, our reading of the paper", "search": "the search of `unpose.align`"}


def run(seed, max_angle, solver, device):
    """The agreement with the classes, the number of clusters and the processor time of one run."""
    data = three_classes(seed, max_angle=math.radians(max_angle))
    start = time.process_time()
    result = invariant_attention(data.points, "se2", beta=2.0, n_iter=2, solver=solver, device=device)
    agreement = adjusted_rand_score(data.labels, result.labels)
    return agreement, int(result.labels.max()) + 1, time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| solver | rotations up to | perfect | agreement | clusters | CPU-seconds |")
    print("|---" * 6 + "|")
    for max_angle, solver in itertools.product((65.0, 180.0), SOLVERS):
        agreements, counts, seconds = zip(
            *(run(seed, max_angle, solver, options.device) for seed in range(options.seeds)), strict=True
        )
        perfect = sum(agreement == 1 for agreement in agreements)
        print(
            f"| {SOLVERS[solver]} | {max_angle:.0f} degrees | {perfect} of {options.seeds} | {np.mean(agreements):.2f} "
            f"| {min(counts)} to {max(counts)} | {np.median(seconds):.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
