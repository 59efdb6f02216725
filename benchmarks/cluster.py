"""Clustering of images at unknown pose by their pixels: accuracy beside methods that do not align, and confidence.

    UNPOSE_DATA=/path/to/arrays python benchmarks/cluster.py [--only digits,clothes,...] [--seeds 3] [--images 1000]
                                                             [--device cpu]

One line for each set: ACC is the accuracy under the best one-to-one matching of clusters and classes, NN the share of
images whose nearest neighbour is of their class; classes are used for nothing else. Every seed draws other images and
poses. All sets have the same settings; only what a user knows is given: the group of poses, its bounds where they are
known, and the number of classes. The rules were chosen on seeds 10 to 12. Peers get the same images and the true number
of classes, and compare them without alignment. Sets without kinds are divided into five clusters: there, confidence and
stability should be low.
"""

import argparse
import math
import sys
import time
import warnings

import numpy as np
from scipy.ndimage import gaussian_filter
from sklearn.cluster import KMeans, SpectralClustering

from arrays import load
from unpose import InvariantClustering
from unpose.cluster import agreement_with_classes
from unpose.data import posed


def canvas(images, size):
    """uint8 images on a black canvas of this size, in [0, 1]."""
    n, height, width = images.shape
    out = np.zeros((n, size, size), np.float32)
    top, left = (size - height) // 2, (size - width) // 2
    out[:, top : top + height, left : left + width] = images / np.float32(255)
    return out


def digits(n, seed, *, upright=False, name="mnist.npz", kind=None):
    x, y = load(name, "x_train", "y_train")
    rows = np.arange(len(x)) if kind is None else np.flatnonzero(y == kind)
    chosen = np.random.default_rng(seed).choice(rows, n, replace=False)
    images = canvas(x[chosen], 40)
    return (images if upright else posed(images, "se2", random_state=seed, max_shift=4.0).images), y[chosen]


def silhouettes(seed):
    x, y = load("mpeg7_shapes.npz", "x", "y")
    turned = posed(canvas(x, 96), "similarity+mirror", random_state=seed, max_shift=6.0, max_scale=1.25)
    return turned.images, y


def omniglot(seed, characters=30):
    packed, y = load("omniglot_8alphabets.npz", "x_packed", "y")
    rows = np.isin(y, np.random.default_rng(seed).choice(y.max() + 1, characters, replace=False))
    ink = canvas(np.unpackbits(packed[rows], axis=2)[:, :, :105] * np.uint8(255), 106)
    half = ink.reshape(len(ink), 53, 2, 53, 2).mean((2, 4))
    return posed(canvas(half * 255, 72), "se2", random_state=seed, max_shift=4.0).images, y[rows]


def cells(n, seed):
    x, y = load("chula_rbc.npz", "x", "y")
    chosen = np.random.default_rng(seed).choice(len(x), n, replace=False)
    return x[chosen] / np.float32(255), y[chosen]


def lit(images, seed):
    """A random gain, offset and linear ramp on every image."""
    rng = np.random.default_rng(1000 + seed)
    n, height, width = images.shape
    gain, offset = rng.uniform(0.5, 1.5, n), rng.uniform(-0.3, 0.3, n)
    right, down = rng.uniform(-0.5, 0.5, (2, n))  # from one side of the frame to the other
    ramp = right[:, None, None] * np.linspace(-0.5, 0.5, width) + (
        down[:, None, None] * np.linspace(-0.5, 0.5, height)[:, None]
    )
    return (gain[:, None, None] * images + offset[:, None, None] + ramp).astype(np.float32)


def lit_digits(n, seed):
    images, classes = digits(n, seed)
    return lit(images, seed), classes


def smooth_noise(n, seed):
    noise = np.random.default_rng(seed).normal(size=(n, 40, 40))
    return gaussian_filter(noise, (0, 2, 2)).astype(np.float32), None


def bulls_eye(neighbours, classes):
    """Share of the other 19 of a class among an image's 39 nearest; with itself that is the usual score of 40."""
    same = (classes[neighbours] == classes[:, None]).sum(1)
    return float((same + 1).mean() / np.bincount(classes).max())


# name -> (images and classes of a number and a seed, number of clusters, settings)
SETS = {
    "digits": (digits, 10, {}),
    "digits, each under other light": (lit_digits, 10, {}),
    "digits, number of clusters not given": (digits, None, {}),
    "digits upright, turns up to 20 degrees": (
        lambda n, seed: digits(n, seed, upright=True), 10, {"max_angle": math.radians(20), "max_shift": 3.0},
    ),
    "clothes": (lambda n, seed: digits(n, seed, name="fashion_mnist.npz"), 10, {}),
    "silhouettes": (lambda n, seed: silhouettes(seed), 65, {"group": "similarity+mirror", "max_scale": 1.6}),
    "characters": (lambda n, seed: omniglot(seed), 30, {}),
    "red cells": (cells, 13, {}),
    "red cells, light kept": (cells, 13, {"light": "keep"}),
    "no kinds: the digit 2": (lambda n, seed: (digits(n, seed, kind=2)[0], None), 5, {}),
    "no kinds: smooth noise": (smooth_noise, 5, {}),
}  # fmt: skip


def raw_pixels(images, classes, n_clusters, seed):
    """Accuracies of spectral clustering and of k-means on the pixels as they are."""
    rows = images.reshape(len(images), -1)
    spectral = SpectralClustering(n_clusters, affinity="nearest_neighbors", n_neighbors=10, random_state=seed)
    means = KMeans(n_clusters, n_init=5, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a graph of neighbours that falls apart is a result
        return [agreement_with_classes(classes, each.fit_predict(rows))["accuracy"] for each in (spectral, means)]


def measure(name, images, classes, n_clusters, settings, device, seed):
    """Figures of one seed."""
    began = time.process_time()
    model = InvariantClustering(n_clusters, features="pixels", device=device, **settings).fit(images)
    figures = {"clusters": model.n_clusters_, "CPU s": time.process_time() - began}
    figures |= {"confidence": model.confidences_.mean(), "stability": model.stability_}
    if classes is not None:
        figures |= agreement_with_classes(classes, model.labels_)
        first = model.neighbours_.indices[:, 0]  # -1 for copies of another image
        figures["NN"] = (classes[first] == classes)[first >= 0].mean()
        if name in PEERS and len(images) <= 5000:
            figures |= zip(("raw spectral", "raw k-means"), raw_pixels(images, classes, n_clusters, seed), strict=True)
    print(f"{name}, seed {seed}: {figures}", file=sys.stderr, flush=True)
    return figures


PEERS = ("digits", "clothes", "silhouettes", "characters", "red cells")
COLUMNS = ("NN", "confidence", "stability", "raw spectral", "raw k-means")


def line(name, n, seeds):
    """One line of the table: means over the seeds, and the worst seed of the accuracy."""
    clusters = sorted({figures["clusters"] for figures in seeds})
    cells = [name, f"{n:,}", ", ".join(map(str, clusters))]
    accuracy = [figures.get("accuracy", math.nan) for figures in seeds]
    if len(clusters) > 1 or SETS[name][1] is None:
        cells.append(f"purity {np.mean([figures['purity'] for figures in seeds]):.3f}")
    else:
        cells.append("" if math.isnan(accuracy[0]) else f"{np.mean(accuracy):.3f} ({min(accuracy):.3f})")
    for column in COLUMNS:
        cells.append(f"{np.mean([figures[column] for figures in seeds]):.2f}" if column in seeds[0] else "")
    cells.append(f"{np.mean([figures['CPU s'] for figures in seeds]):.0f}")
    return f"| {' | '.join(cells)} |"


def pose_errors(device):
    """Posed copies of one image of each kind: median errors of the poses, up to one common pose of each cluster."""
    x, y = load("mnist.npz", "x_train", "y_train")
    rng = np.random.default_rng(0)
    # Digits without rotational symmetry; the angle of the others is ambiguous.
    originals = canvas(np.stack([x[rng.choice(np.flatnonzero(y == k))] for k in (2, 3, 4, 5, 7)]), 40)
    copies = posed(originals, "se2", copies=30, random_state=0, max_shift=4.0)
    model = InvariantClustering(5, features="pixels", device=device).fit(copies.images)
    angles, shifts = [], []
    for k in range(5):
        rows = np.flatnonzero(model.labels_ == k)
        together = model.poses_[rows] @ copies.poses[rows]
        middle = together[np.argmin(np.abs(together - np.median(together, axis=0)).sum((1, 2)))]
        apart = np.linalg.inv(middle) @ together
        angles += np.degrees(np.abs(np.arctan2(apart[:, 0, 1], apart[:, 0, 0]))).tolist()
        shifts += np.hypot(apart[:, 0, 2], apart[:, 1, 2]).tolist()
    return np.median(angles), np.median(shifts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="sets whose name begins with one of these, separated by commas")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--images", type=int, default=1000, help="of the sets that have more")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    columns = ["set", "images", "clusters", "ACC, mean (worst seed)", *COLUMNS, "CPU s"]
    print(f"| {' | '.join(columns)} |\n|" + "---|" * len(columns), flush=True)
    for name, (make, n_clusters, settings) in SETS.items():
        if not name.startswith(tuple(options.only.split(","))):
            continue
        seeds = []
        for seed in range(options.seeds):
            images, classes = make(options.images, seed)
            seeds.append(measure(name, images, classes, n_clusters, settings, options.device, seed))
        print(line(name, len(images), seeds), flush=True)
    angle, shift = pose_errors(options.device)
    print(f"\nmedian error of the poses of 150 copies of five digits: {angle:.3f} degrees, {shift:.4f} px")


if __name__ == "__main__":
    main()
