"""How often the published method clusters experiment 1 perfectly, and how long it takes, with two solvers.

    python benchmarks/published.py [--seeds 20] [--device cpu] [--out published.json]

Three classes of six images each (a crab, a seven, a creature), rotated by up to 65 degrees either way as in the paper
and over the full circle, shifted by up to 10 pixels, two rounds of invariant attention with beta = 2. "descent" is our
reading of the published solver, "search" searches the whole orbit instead. Perfect means that the labels are the three
classes.
"""

import argparse
import itertools
import json
import math
import platform
import time

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from unpose.cluster.published import invariant_attention
from unpose.data.experiments import three_classes


def run(seed, max_angle, solver, device):
    data = three_classes(seed, max_angle=math.radians(max_angle))
    start = time.perf_counter()
    result = invariant_attention(data.points, "se2", beta=2.0, n_iter=2, solver=solver, device=device)
    return {
        "seed": seed,
        "max_angle": max_angle,
        "solver": solver,
        "seconds": time.perf_counter() - start,
        "clusters": int(result.labels.max()) + 1,
        "agreement": adjusted_rand_score(data.labels, result.labels),
        "contractions": result.contractions.tolist(),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="published.json")
    options = parser.parse_args()
    where = torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"Invariant Attention as published, experiment 1, {options.seeds} seeds, {where}, torch {torch.__version__}")
    rows = []
    for solver, max_angle in itertools.product(("descent", "search"), (65.0, 180.0)):
        part = [run(seed, max_angle, solver, options.device) for seed in range(options.seeds)]
        perfect = [row["agreement"] == 1 for row in part]
        seconds = [row["seconds"] for row in part]
        print(
            f"{solver:8} +-{max_angle:3.0f} degrees: perfect {sum(perfect)}/{len(part)}"
            f" (seeds {[row['seed'] for row, ok in zip(part, perfect, strict=True) if ok]}),"
            f" mean agreement (ARI) {np.mean([row['agreement'] for row in part]):.2f},"
            f" clusters {min(r['clusters'] for r in part)} to {max(r['clusters'] for r in part)},"
            f" {np.median(seconds):.1f} s a run (median; {min(seconds):.1f} to {max(seconds):.1f})"
        )
        rows += part
    with open(options.out, "w") as file:
        json.dump({"machine": platform.machine(), "where": where, "runs": rows}, file, indent=1)


if __name__ == "__main__":
    main()
