"""New images: the votes of their neighbours beside the nearest average, confidences, and images of unseen kinds.

    UNPOSE_DATA=/path/to/arrays python benchmarks/assign.py [--only digits,clothes,...] [--seed 11] [--features auto]

Two kinds of every set are left out of the fit. Of the others, 65 % of the images are fitted and 35 % are new. "Joint"
is the share of new images that get the cluster that a fit of fitted and new images together gives them; "class" is the
share whose cluster has their class as its most frequent one. ECE is the expected calibration error of the confidence
against "joint", in eight bins of equal size. An image is called foreign if its p-value is below 0.05: "false alarms" is
the share of new images of known kinds, "found" the share of images of the two kinds left out. Beside it is the rule
that calls an image foreign if it is farther from the nearest average than 99 % of the members of the cluster. With
``--features auto`` and the extra `features`, images are compared by pixels and by features, and p-values are those of
what counts more.
"""

import argparse

import numpy as np
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone

from light import SETS
from unpose import InvariantClustering

IMAGES = {"silhouettes": 240, "characters": 240}


def calibration_error(confidences, right, bins=8):
    parts = np.array_split(np.argsort(confidences, kind="stable"), bins)
    return sum(len(part) * abs(confidences[part].mean() - right[part].mean()) for part in parts) / len(right)


def measure(images, classes, features):
    kinds, classes = np.unique(classes, return_inverse=True)
    unseen = np.flatnonzero(classes < 2)
    seen = np.random.default_rng(0).permutation(np.flatnonzero(classes >= 2))
    fitted, new = np.split(seen, [int(0.65 * len(seen))])
    count = len(kinds) - 2
    model = InvariantClustering(count, features=features).fit(images[fitted])
    joint = clone(model).fit(images[np.concatenate([fitted, new])]).labels_
    table = np.zeros((count, count))
    np.add.at(table, (model.labels_, joint[: len(fitted)]), 1)
    as_joint = linear_sum_assignment(-table)[1]
    most = np.array([np.bincount(classes[fitted][model.labels_ == k]).argmax() for k in range(count)])
    found, foreign = model.assign(images[new]), model.assign(images[unseen])
    distances, own, away = (model.transform(images[rows]) for rows in (new, fitted, unseen))
    limits = np.array([np.quantile(own[model.labels_ == k, k], 0.99) for k in range(count)])
    nearest = distances.argmin(1)
    is_joint = as_joint[found.labels] == joint[len(fitted) :]
    return [
        np.mean(is_joint), np.mean(as_joint[nearest] == joint[len(fitted) :]),
        np.mean(most[found.labels] == classes[new]), np.mean(most[nearest] == classes[new]),
        found.confidences.mean(), calibration_error(found.confidences, is_joint),
        np.mean(found.p_values < 0.05), np.mean(foreign.p_values < 0.05),
        np.mean(distances.min(1) > limits[nearest]), np.mean(away.min(1) > limits[away.argmin(1)]),
    ]  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="digits,clothes,silhouettes,characters,plankton")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--features", default="pixels", choices=("pixels", "auto"))
    options = parser.parse_args()
    columns = [
        "set", "joint, votes", "joint, average", "class, votes", "class, average", "confidence", "ECE", "false alarms",
        "found", "false alarms, average", "found, average",
    ]  # fmt: skip
    print("| " + " | ".join(columns) + " |\n|" + "---|" * len(columns))
    for name in options.only.split(","):
        figures = measure(*SETS[name](IMAGES.get(name, 420), options.seed), options.features)
        print(f"| {name} | " + " | ".join(f"{figure:.2f}" for figure in figures) + " |", flush=True)


if __name__ == "__main__":
    main()
