"""Heads of learning without labels: does each do what it is for?

    UNPOSE_DATA=/path/to/arrays python benchmarks/unlabelled_heads.py [--seeds 3] [--steps 600] [--device cuda]
                                                                      [--workers 1] [--out FILE]
    python benchmarks/unlabelled_heads.py --tables FILE       # the tables of a finished run

5,000 upright images of the test sets of Fashion-MNIST and MNIST are learnt without labels by a plain residual network
(group c1), with VICReg alone and with each head. Probes are logistic regressions on the vectors of 5,000 others, fitted
on one half and tested on the other:

turn    which of four quarter turns was applied: the linear probe of the class must be above that of VICReg alone with
        the same and with 1.5 times the steps, which take as long
split   one half of the entries for the class, the other for the turn, for images at random quarter turns: each probe
        must be good on its own part and poor on the other
gram    cosines that turning keeps: an orthogonal matrix for each turn, fitted on one half of the vectors, must predict
        the turned vectors of the other half clearly better than the identity does (squared distance of unit vectors)
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
COUNT = 5000
# name -> (head, largest angle of the views in degrees, steps relative to the others)
RUNS = {
    "base": ("none", 10, 1.0),
    "base, 1.5 times the steps": ("none", 10, 1.5),
    "turn": ("turn", 10, 1.0),
    "gram": ("gram", 10, 1.0),
    "split": ("split", 180, 1.0),
}


def recipe(head, angle, steps, seed):
    return recipe_from({
        "epochs": max(2, steps // 50), "batch_size": 256, "seed": seed, "keep": "last", "mixed_precision": True,
        "network": {"kind": "group_resnet", "group": "c1", "options": {"widths": [32, 64, 128], "depths": [1, 1, 1]}},
        "optimizer": {"learning_rate": 0.001, "weight_decay": 0.001, "warmup_epochs": 1},
        "poses": {"max_angle": angle, "max_shift": 2, "max_scale": 1.25, "max_stretch": 1.1, "bend": 0.5},
        "unlabelled": {"loss": "vicreg", "steps": 50, "expander": 512, "contrast": 1.4, "brightness": 0.08,
                       "noise": 0.04, "head": head},
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
    name, seed, what, steps, device = task
    head, angle, factor = RUNS[what]
    torch.set_num_threads(2)
    x, y = load(name, "x_test", "y_test")
    rows = np.random.default_rng(seed).permutation(len(x))[: 2 * COUNT]
    images, classes = x[rows].astype(np.float32) / 255, y[rows].astype(np.int64)
    count, steps = len(images) // 2, int(factor * steps)
    started = time.perf_counter()
    encoder = train_unlabelled(images[:count], recipe(head, angle, steps, seed), device=device).encoder
    row = {"set": name, "seed": seed, "what": what, "steps": steps}
    row["training"] = round(time.perf_counter() - started, 1)
    rest, kinds = images[count:], classes[count:]
    turns = np.random.default_rng(seed + 9).integers(0, 4, len(rest))
    around = vectors(encoder, np.stack([np.rot90(image, k) for image, k in zip(rest, turns, strict=True)]), device)
    row["class, upright"], row["turn"] = probe(vectors(encoder, rest, device), kinds), probe(around, turns)
    if head == "split":
        for part, start in (("one", 0), ("two", 1)):
            row[f"part {part}: class"] = probe(around[:, start::2], kinds)
            row[f"part {part}: turn"] = probe(around[:, start::2], turns)
    if head in ("gram", "none"):
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
    parts = [f"part {part}: {target}" for part in ("one", "two") for target in ("class", "turn")]
    print("\n| images at quarter turns | " + " | ".join(parts) + " |\n" + "|---" * 5 + "|")
    for name in SETS:
        own = [row for row in rows if (row["set"], row["what"]) == (name, "split")]
        if own:
            cells = ["; ".join(f"{row[key]:.3f}" for row in own) for key in parts]
            print(f"| {Path(name).stem} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="trainings that run at the same time")
    parser.add_argument("--out", default="unlabelled-heads.json")
    parser.add_argument("--tables", metavar="FILE", help="print the tables of this file and end")
    options = parser.parse_args()
    if options.tables:
        tables(json.loads(Path(options.tables).read_text()))
        return
    machine = torch.cuda.get_device_name() if options.device == "cuda" else platform.platform()
    result = {"machine": f"{machine}, {options.workers} processes at the same time", "rows": []}
    tasks = [(name, seed, what, options.steps, options.device)
             for name in SETS for seed in range(options.seeds) for what in RUNS]  # fmt: skip
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for row in pool.imap_unordered(run, tasks):
            result["rows"].append(row)
            print(json.dumps(row), flush=True)
            Path(options.out).write_text(json.dumps(result, indent=1))
    tables(result)


if __name__ == "__main__":
    main()
