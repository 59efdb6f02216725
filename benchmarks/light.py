"""Light that varies inside the image: `light="ignore"` beside `light="local"`, and the rule that chooses.

    UNPOSE_DATA=/path/to/arrays python benchmarks/light.py [--only digits,plankton,...] [--seed 20] [--images 200]

Every set is used as it is and under artificial light: each image is multiplied by a random field (a slope and a wave in
a random direction) and gets a random bright spot. ACC is the accuracy at the true number of clusters under the best
one-to-one matching, NN the share of nearest neighbours of the same class, "more mutual" by how much local contrast
raises the number of mutual pairs among the eight nearest neighbours: the figure by which `light="auto"` decides.
Classes are used for ACC and NN only.
"""

import argparse

import numpy as np
import torch

from arrays import load
from cluster import canvas
from unpose import InvariantClustering
from unpose.align import Search
from unpose.cluster import agreement_with_classes
from unpose.cluster.light import MIN_LOCAL_GAIN, normalise_light
from unpose.cluster.neighbours import gain_of_local_contrast
from unpose.data import posed
from unpose.images import as_batch


def some(x, y, kinds, n, seed):
    """Up to n images of some of the kinds."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(np.unique(y), kinds, replace=False)
    rows = rng.permutation(np.flatnonzero(np.isin(y, chosen)))[:n]
    return x[rows], y[rows]


def turned(images, seed, shift=4.0):
    return posed(images, "se2", random_state=seed, max_shift=shift).images


def digits(n, seed, name="mnist.npz"):
    x, y = some(*load(name, "x_train", "y_train"), 10, n, seed)
    return turned(canvas(x, 40), seed), y


def clothes(n, seed):
    return digits(n, seed, "fashion_mnist.npz")


def silhouettes(n, seed):
    x, y = some(*load("mpeg7_shapes.npz", "x", "y"), 12, n, seed)
    return turned(canvas(x, 96).reshape(len(x), 48, 2, 48, 2).mean((2, 4)), seed, 3.0), y


def characters(n, seed):
    packed, y = some(*load("omniglot_8alphabets.npz", "x_packed", "y"), 12, n, seed)
    ink = canvas(np.unpackbits(packed, axis=2)[:, :, :105] * np.uint8(255), 106)
    half = ink.reshape(len(ink), 53, 2, 53, 2).mean((2, 4))
    return turned(canvas(half * 255, 72), seed)[:, 12:60, 12:60], y


def plankton(n, seed):
    x, y = some(*load("plankton_ndsb.npz", "x", "y"), 10, n, seed)
    return x / np.float32(255), y


def red_cells(n, seed):
    x, y = some(*load("chula_rbc.npz", "x", "y"), 13, n, seed)
    return x / np.float32(255), y


def outlines(n, seed):
    x, y = some(*load("osteosarcoma_cells.npz", "x", "cell_line"), 2, n, seed)
    return x.astype(np.float32) / max(1, x.max()), y


def photographs(n, seed):
    x, y = some(*load("cifar10_test.npz", "x_test", "y_test"), 10, n, seed)
    return x / np.float32(255), y


def lit(images, seed):
    """The images under light that varies inside each."""
    rng = np.random.default_rng(500 + seed)
    height, width = images.shape[1:3]
    y, x = np.mgrid[:height, :width]
    done = []
    for image in images:
        angle, (cx, cy) = rng.uniform(0, 2 * np.pi), rng.uniform(0.2, 0.8, 2)
        along = (np.cos(angle) * (x - width / 2) + np.sin(angle) * (y - height / 2)) / (width / 2)
        field = np.exp(rng.uniform(0.5, 1.2) * along + 0.6 * np.sin(rng.uniform(2, 4) * along + rng.uniform(0, 6)))
        spot = np.exp(-((x / width - cx) ** 2 + (y / height - cy) ** 2) / (2 * rng.uniform(0.08, 0.2) ** 2))
        value = (0.25 + 0.75 * image) * field / field.mean() + rng.uniform(0.5, 1.5) * spot
        done.append(value / value.max())
    return np.stack(done).astype(np.float32)


SETS = {
    "digits": digits, "clothes": clothes, "silhouettes": silhouettes, "characters": characters, "plankton": plankton,
    "red cells": red_cells, "cell outlines": outlines, "photographs": photographs,
}  # fmt: skip


def measure(images, classes, light):
    model = InvariantClustering(len(np.unique(classes)), light=light, features="pixels").fit(images)
    rows = np.flatnonzero(model.neighbours_.indices[:, 0] >= 0)
    place = np.full(len(images), -1)
    place[rows] = np.arange(len(rows))
    nearest = place[model.neighbours_.indices[rows, 0]]
    near = float((classes[rows][nearest] == classes[rows]).mean())
    accuracy = agreement_with_classes([str(each) for each in classes], model.labels_)["accuracy"]
    return accuracy, near


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SETS))
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--as-found", action="store_true", help="leave out the sets under artificial light")
    options = parser.parse_args()
    print("| set | ACC ignore | ACC local | NN ignore | NN local | more mutual | auto uses |")
    print("|---|---|---|---|---|---|---|")
    for name in options.only.split(","):
        images, classes = SETS[name](options.images, options.seed)
        variants = [(name, images)]
        if images.ndim == 3 and not options.as_found:
            variants.append((f"{name}, lit", lit(images, options.seed)))
        for shown, pixels in variants:
            ignore, local = (measure(pixels, classes, light) for light in ("ignore", "local"))
            pairs = [f"{value:.2f}" for both in zip(ignore, local, strict=True) for value in both]
            batch = normalise_light(as_batch(pixels, dtype=torch.float32), "ignore")
            gain = gain_of_local_contrast(batch, Search(group="se2", contrast="gain"))
            uses = "local" if gain > MIN_LOCAL_GAIN else "ignore"
            print(f"| {shown} | " + " | ".join([*pairs, f"{gain:+.0%}", uses]) + " |", flush=True)


if __name__ == "__main__":
    main()
