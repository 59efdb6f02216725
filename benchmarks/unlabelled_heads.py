"""The head "gram" of learning without labels: does turning an image move its vector by a fixed orthogonal matrix?

    UNPOSE_DATA=/path/to/arrays python benchmarks/unlabelled_heads.py [--seeds 3] [--steps 600] [--device cuda]
                                                                      [--workers 1] [--small] [--out FILE]
    python benchmarks/unlabelled_heads.py --tables FILE       # the tables of a finished run

5,000 upright images of the test sets of Fashion-MNIST and MNIST are learnt without labels by a plain residual network
(group c1), with VICReg alone, with VICReg for 1.5 times the steps, which take as long, and with the head. An orthogonal
matrix for each turn, fitted on one half of the vectors of 5,000 others, must predict the turned vectors of the other
half clearly better than the identity does (squared distance of unit vectors), and better than without the head. Probes
are logistic regressions on the same halves: the class of upright images, and which of four quarter turns was applied.

`--small` takes half as many images of Fashion-MNIST, batches of 128 and a quarter of the channels, for a CPU.
"""

import argparse
import json
import multiprocessing
import platform
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from arrays import load
from unpose.train import predict_logits, recipe_from, train_unlabelled

SETS = ("fashion_mnist.npz", "mnist.npz")
# name -> (head, steps relative to the others)
RUNS = {"base": ("none", 1.0), "base, 1.5 times the steps": ("none", 1.5), "gram": ("gram", 1.0)}


def recipe(head, steps, seed, small):
    widths = [8, 16, 32] if small else [32, 64, 128]
    return recipe_from({
        "epochs": max(2, steps // 50), "batch_size": 128 if small else 256, "seed": seed, "keep": "last",
        "mixed_precision": not small,
        "network": {"kind": "group_resnet", "group": "c1", "options": {"widths": widths, "depths": [1, 1, 1]}},
        "optimizer": {"learning_rate": 0.001, "weight_decay": 0.001, "warmup_epochs": 1},
        "poses": {"max_angle": 10, "max_shift": 2, "max_scale": 1.25, "max_stretch": 1.1, "bend": 0.5},
        "unlabelled": {"loss": "vicreg", "steps": 50, "expander": 256 if small else 512, "contrast": 1.4,
                       "brightness": 0.08, "noise": 0.04, "head": head},
    })  # fmt: skip


def vectors(encoder, images, device):
    return predict_logits(encoder.to(device).eval(), np.ascontiguousarray(images)).double().numpy()


def probe(points, target):
    """Accuracy of logistic regression, fitted on one half and tested on the other."""
    half = len(points) // 2
    points = (points - points[:half].mean(0)) / (points[:half].std(0) + 1e-6)
    fitted = LogisticRegression(C=0.1, max_iter=150).fit(points[:half], target[:half])
    return round(float(fitted.score(points[half:], target[half:])), 4)


def moved_errors(encoder, images, device):
    """Squared distance of turned unit vectors from those moved by an orthogonal matrix, and from unmoved ones."""
    half = len(images) // 2
    still = vectors(encoder, images, device)
    mean, spread = still[:half].mean(0), still[:half].std(0) + 1e-6

    def unit(found):
        points = (found - mean) / spread
        return points / np.linalg.norm(points, axis=1, keepdims=True)

    before, errors = unit(still), []
    for turns in (1, 2, 3):
        after = unit(vectors(encoder, np.rot90(images, turns, (1, 2)), device))
        left, _, right = np.linalg.svd(before[:half].T @ after[:half])
        guesses = (before[half:] @ left @ right, before[half:])
        errors.append([np.square(guess - after[half:]).sum(1).mean() for guess in guesses])
    orthogonal, identity = np.mean(errors, axis=0)
    return {"orthogonal": round(float(orthogonal), 4), "identity": round(float(identity), 4)}


def run(task):
    name, seed, what, steps, device, small = task
    head, factor = RUNS[what]
    torch.set_num_threads(2)
    x, y = load(name, "x_test", "y_test")
    rows = np.random.default_rng(seed).permutation(len(x))[: 5000 if small else 10000]
    images, classes = x[rows].astype(np.float32) / 255, y[rows].astype(np.int64)
    count, steps = len(images) // 2, int(factor * steps)
    started = time.perf_counter()
    encoder = train_unlabelled(images[:count], recipe(head, steps, seed, small), device=device).encoder
    row = {"set": name, "seed": seed, "what": what, "steps": steps}
    row["training"] = round(time.perf_counter() - started, 1)
    rest, kinds = images[count:], classes[count:]
    turns = np.random.default_rng(seed + 9).integers(0, 4, len(rest))
    around = vectors(encoder, np.stack([np.rot90(image, k) for image, k in zip(rest, turns, strict=True)]), device)
    row["class, upright"], row["turn"] = probe(vectors(encoder, rest, device), kinds), probe(around, turns)
    row |= moved_errors(encoder, rest, device)
    return row


def tables(result):
    """One figure for each seed."""
    rows = [row for row in result["rows"] if "training" in row]
    print(f"{result['machine']}\n")
    keys = ("class, upright", "turn", "orthogonal", "identity", "training")
    print(
        "| images | run | steps | class, upright | turn | orthogonal matrix | identity | seconds |\n" + "|---" * 8 + "|"
    )
    for name in SETS:
        for what in RUNS:
            own = sorted(
                (row for row in rows if (row["set"], row["what"]) == (name, what)), key=lambda row: row["seed"]
            )
            cells = ["; ".join(f"{row[key]:.3g}" for row in own if key in row) or "-" for key in keys]
            if own:
                print(f"| {Path(name).stem} | {what} | {own[0]['steps']} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="trainings that run at the same time")
    parser.add_argument("--small", action="store_true", help="a smaller network and fewer images, for a CPU")
    parser.add_argument("--out", default="unlabelled-heads.json")
    parser.add_argument("--tables", metavar="FILE", help="print the tables of this file and end")
    options = parser.parse_args()
    if options.tables:
        tables(json.loads(Path(options.tables).read_text()))
        return
    machine = torch.cuda.get_device_name() if options.device == "cuda" else platform.platform()
    result = {"machine": f"{machine}, {options.workers} processes at the same time", "rows": []}
    names = SETS[:1] if options.small else SETS
    tasks = [(name, seed, what, options.steps, options.device, options.small)
             for name in names for seed in range(options.seeds) for what in RUNS]  # fmt: skip
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for row in pool.imap_unordered(run, tasks):
            result["rows"].append(row)
            print(json.dumps(row), flush=True)
            Path(options.out).write_text(json.dumps(result, indent=1))
    tables(result)


if __name__ == "__main__":
    main()
