"""Encoders learnt without labels: neighbours of the same class, beside pixels, SimCLR and ImageNet features.

    UNPOSE_DATA=/path/to/arrays python benchmarks/unlabelled.py [--only cells,plankton,...] [--seeds 3] [--device cuda]
                                                                [--workers 1] [--epochs N] [--out FILE]
    python benchmarks/unlabelled.py --tables FILE       # the tables of a finished run

Every seed draws other images, or other poses where there is one set of images, and other weights. Labels are used for
the figures alone. 20-NN is the accuracy of the twenty nearest neighbours among all other images of the set (leave one
out), with votes exp(10 cos), 5-NN that of five and 1-NN that of the nearest; `linear` that of logistic regression in
five folds. All networks are compared in the same space: vectors averaged over eight rotations (and mirror images), 128
principal directions scaled to the square root of their spread, as `unpose cluster` does. In the same run:

encoder             unpose.train.train_unlabelled, the recipe `unlabelled`
encoder, one view   the same vectors without the average over rotations
SimCLR              the same network, views, number of steps and optimizer, with the loss of SimCLR
random              the same network, not trained
pixels              the nearest images over the orbit (unpose.align.nearest), votes of equal weight
ImageNet            EfficientNet-Lite0 (the extra unpose[features], where it is installed)
both                the vectors of the encoder and of the ImageNet network side by side

Every set has a fixed number of epochs of 100 steps, such that a training ends within five minutes on an H200 where two
others run beside it. `cells-apart` and `clothes` were not used to choose anything. Recipe and vectors were chosen on
red cells of the smears with even numbers and on the 21st to 40th largest kinds of plankton, which are not in the set
`plankton`.
"""

import argparse
import json
import multiprocessing
import os
import platform
import time
import traceback
from pathlib import Path

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from torch.nn.functional import cross_entropy, normalize

from arrays import load
from unpose.align import nearest
from unpose.audit import equivariance_error
from unpose.cluster.features import (
    EXTRA_NETWORK,
    FeatureNetwork,
    cosine_neighbours,
    feature_network,
    fit_space,
    has_extra_network,
    orbit_features,
    orbit_poses,
)
from unpose.data import posed
from unpose.train import build_network, train_unlabelled, unlabelled_recipe
from unpose.train.loop import optimize
from unpose.train.unlabelled import Unlabelled, _unlabelled_dataset

_TEMPERATURE = 0.2
_NEIGHBOURS = (20, 5, 1)


def cells(seed, smears=None, n=3000):
    x, y, smear = load("chula_rbc.npz", "x", "y", "image_id")
    pool = np.arange(len(x)) if smears is None else np.flatnonzero(smear % 2 == smears)
    rows = np.random.default_rng(seed).choice(pool, n, replace=False)
    return x[rows] / np.float32(255), y[rows].astype(np.int64)


def plankton(seed, first=0):
    """Twenty kinds, 100 images of each; the largest ones are those that `benchmarks/wild.py` takes."""
    x, y = load("plankton_ndsb.npz", "x", "y")
    kinds = np.argsort(-np.bincount(y), kind="stable")[first : first + 20]
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.choice(np.flatnonzero(y == kind), 100, replace=False) for kind in kinds])
    return x[rows] / np.float32(255), np.unique(y[rows], return_inverse=True)[1]


def drawn_and_posed(name, seed, n=10_000):
    x, y = load(name, "x_test", "y_test")
    rows = np.random.default_rng(seed).permutation(len(x))[:n]
    padded = np.pad(x[rows], ((0, 0), (6, 6), (6, 6))) / np.float32(255)  # 40 x 40
    return posed(padded, "se2", random_state=seed, max_shift=4.0).images, y[rows].astype(np.int64)


SETS = {
    "cells": (cells, "se2+mirror", 20),
    "plankton": (plankton, "se2+mirror", 14),
    "digits": (lambda seed: drawn_and_posed("mnist.npz", seed), "se2", 15),
    "clothes": (lambda seed: drawn_and_posed("fashion_mnist.npz", seed), "se2", 15),
    "cells-apart": (lambda seed: cells(seed, 1), "se2+mirror", 20),
}
"""Name -> images and classes of a seed, the group, and the epochs of a training."""
DEVELOPMENT = {
    "cells-development": (lambda seed: cells(seed, 0), "se2+mirror", 20),
    "plankton-development": (lambda seed: plankton(seed, 20), "se2+mirror", 14),
}
"""Sets on which recipe and vectors were chosen."""


class SimCLR(Unlabelled):
    """The normalized temperature-scaled cross entropy of two views (Chen et al. 2020), temperature 0.2."""

    def loss(self, outputs, labels):
        points = normalize(outputs, dim=1)
        scores = points @ points.T / _TEMPERATURE
        scores = scores.masked_fill(torch.eye(len(scores), dtype=torch.bool, device=scores.device), -1e9)
        n = len(labels)
        partners = torch.arange(2 * n, device=scores.device).roll(n)
        return cross_entropy(scores, partners) * n, torch.zeros((), device=outputs.device)


def votes(indices, weights, classes):
    """The share of images whose neighbours (n, k) vote for their class."""
    counts = np.zeros((len(classes), int(classes.max()) + 1))
    np.add.at(counts, (np.arange(len(classes))[:, None], classes[indices]), weights)
    return float((counts.argmax(1) == classes).mean())


def measured(vectors, classes, blocks=None):
    points = fit_space(vectors, blocks)(vectors)
    indices, distances = cosine_neighbours(points, None, max(_NEIGHBOURS))
    probe = LogisticRegression(C=10.0, max_iter=300)
    linear = float(cross_val_score(probe, points * points.shape[1] ** 0.5, classes, cv=5).mean())
    return by_neighbours(indices, np.exp(10 * (1 - distances**2 / 2)), classes) | {"linear": linear}


def by_neighbours(indices, weights, classes):
    return {f"{k}-NN": votes(indices[:, :k], weights[:, :k], classes) for k in _NEIGHBOURS}


def vectors_of(network, images, poses, device):
    batch = torch.from_numpy(images[:, None])
    network = network.to(device).eval()
    with torch.no_grad():
        return orbit_features(batch, FeatureNetwork("encoder", network), poses, device)


def run(job, rows):
    """All rows of one set, seed and method, appended to ``rows``."""
    name, seed, method, device, epochs = job
    torch.set_num_threads(2)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = True
    make, group, usual = (SETS | DEVELOPMENT)[name]
    images, classes = make(seed)
    images = np.ascontiguousarray(images, np.float32)
    poses = orbit_poses(group)

    def row(method, started, **values):
        about = {"set": name, "seed": seed, "n": len(images), "method": method}
        rows.append(about | {key: float(f"{float(value):.4g}") for key, value in values.items()})
        rows[-1]["seconds"] = round(time.perf_counter() - started, 1)
        print("  ".join(f"{key} {value}" for key, value in rows[-1].items()), flush=True)

    recipe = unlabelled_recipe(group, epochs=epochs or usual, seed=seed)
    steps = recipe.epochs * recipe.unlabelled.steps
    blocks = tuple(width for width in recipe.network.options["widths"] for _ in range(4))
    if method == "encoder":
        start = time.perf_counter()
        result = train_unlabelled(images, recipe, device=device)
        if device == "cuda":
            torch.cuda.synchronize()
        trained = time.perf_counter() - start
        own = vectors_of(result.encoder, images, poses, device)
        last = result.history[-1]
        gauges = {key: last[key] for key in ("effective_rank", "tree_length")}
        row("encoder", start, training=trained, steps=steps, **measured(own, classes, blocks),
            loss=last["train_loss"], **gauges)  # fmt: skip
        start = time.perf_counter()
        one = vectors_of(result.encoder, images, poses[:1], device)
        few = torch.from_numpy(images[:32, None])
        report = equivariance_error(result.encoder.cpu(), few, recipe.network.group)
        row("encoder, one view", start, **measured(one, classes, blocks), invariance_error=report.worst_exact,
            control_error=report.control_error)  # fmt: skip
        if has_extra_network():
            start = time.perf_counter()
            network = feature_network(EXTRA_NETWORK, torch.from_numpy(images[:, None]), device)
            theirs = orbit_features(torch.from_numpy(images[:, None]), network, poses, device)
            row("ImageNet", start, **measured(theirs, classes, network.blocks))
            start = time.perf_counter()
            both = np.concatenate([own, theirs], axis=1)
            row("both", start, **measured(both, classes, (*blocks, *network.blocks)))
    if method == "simclr":
        start = time.perf_counter()
        state = optimize(_unlabelled_dataset(images, name), recipe, kind=SimCLR, device=device)
        encoder = state.best_network().encoder
        trained = time.perf_counter() - start
        own = vectors_of(encoder, images, poses, device)
        row("SimCLR", start, training=trained, steps=steps, **measured(own, classes, blocks))
    if method == "others":
        start = time.perf_counter()
        network = build_network(recipe, _unlabelled_dataset(images, name))
        network.train()(torch.from_numpy(images[:256, None]))  # statistics of the norms
        row("random", start, **measured(vectors_of(network, images, poses, device), classes, blocks))
        start = time.perf_counter()
        near = nearest(images, max(_NEIGHBOURS), quick=True, group=group, contrast="offset", device=device).indices
        falling = np.broadcast_to(1 - 1e-3 * np.arange(near.shape[1]), near.shape)  # the nearer one settles a draw
        row("pixels", start, **by_neighbours(near, falling, classes))


def guarded(job):
    rows = []
    try:
        run(job, rows)
    except Exception:  # the other sets still count
        return job, rows, traceback.format_exc()
    return job, rows, None


def run_all(jobs, workers, out, machine):
    result = {"machine": machine, "workers": workers, "method": __doc__, "rows": [], "failures": []}
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for job, rows, failure in pool.imap_unordered(guarded, jobs):
            result["rows"] += rows
            if failure is not None:
                result["failures"].append({"set": job[0], "seed": job[1], "error": failure})
                print(job[:2], failure, flush=True)
            Path(out).write_text(json.dumps(result, indent=1, default=float))


def tables(result):
    """What was measured, as Markdown: a figure for each seed; the proofs of invariance; what failed."""
    rows = [row for row in result["rows"] if "set" in row]
    places = {name: place for place, name in enumerate(SETS | DEVELOPMENT)}
    found = {}
    for row in rows:
        found.setdefault((row["set"], row["method"]), {})[row["seed"]] = row
    print(f"{result['machine']}, {result['workers']} processes at the same time")
    print("\n| images | vectors | 20-NN | 5-NN | 1-NN | linear probe | steps | seconds of training |")
    print("|---|---|---|---|---|---|---|---|")
    scores = (*(f"{k}-NN" for k in _NEIGHBOURS), "linear")
    order = sorted(found, key=lambda key: (places[key[0]], -max(row["5-NN"] for row in found[key].values())))
    for name, method in order:
        own = [found[name, method][seed] for seed in sorted(found[name, method])]
        cells = ["; ".join(f"{row[key]:.3f}" for row in own if key in row) or "-" for key in scores]
        cells += ["; ".join(f"{row[key]:,.0f}" for row in own if key in row) or "-" for key in ("steps", "training")]
        print(f"| {name} ({own[0]['n']:,}) | {method} | {' | '.join(cells)} |")
    print("\n| images | seed | change of a vector by the group | by a transformation that is not in it |")
    print("|---|---|---|---|")
    for row in sorted(rows, key=lambda row: (places[row["set"]], row["seed"])):
        if "invariance_error" in row:
            print(f"| {row['set']} | {row['seed']} | {row['invariance_error']:.1e} | {row['control_error']:.1e} |")
    for failure in result["failures"]:
        print(failure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SETS), help=f"of {', '.join(SETS | DEVELOPMENT)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="trainings that run at the same time")
    parser.add_argument("--epochs", type=int, help="of 100 steps, instead of the set's")
    parser.add_argument("--methods", default="encoder,simclr,others")
    parser.add_argument("--out", default="unlabelled.json")
    parser.add_argument("--tables", metavar="FILE", help="print the tables of this file and end")
    options = parser.parse_args()
    if options.tables:
        tables(json.loads(Path(options.tables).read_text()))
        return
    machine = torch.cuda.get_device_name() if options.device == "cuda" else platform.platform()
    jobs = [
        (name, seed, method, options.device, options.epochs)
        for name in options.only.split(",")
        for seed in range(options.seeds)
        for method in options.methods.split(",")
    ]
    run_all(jobs, options.workers, options.out, machine)
    tables(json.loads(Path(options.out).read_text()))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    main()
