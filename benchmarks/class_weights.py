"""Train a small network on classes of unequal size, with and without ``class_weights = "balanced"``.

    UNPOSE_DATA=/path/to/arrays python benchmarks/class_weights.py [--epochs 14] [--out class_weights.json]

Two sets: 1,000 red blood cells of five kinds, five times as many of the most frequent as of the rarest, and the
outlines of 650 osteosarcoma cells under three treatments. Images are 24 pixels wide, half are for training. The network
is a ``group_cnn`` (c4, 5,000 parameters), trained by the recipe ``folder`` otherwise: small, so that two cores finish
in a minute. The table says what is gained for the rare classes and what is lost for the others.
"""

import argparse
import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import torch

from unpose.data import Dataset, Split
from unpose.data.splits import random_split
from unpose.train import named_recipe, train

RED_CELLS = (0, 1, 2, 7, 10)


def red_cells(folder):
    arrays = np.load(folder / "chula_rbc.npz")
    chosen = np.flatnonzero(np.isin(arrays["y"], RED_CELLS))
    chosen = chosen[np.random.default_rng(0).permutation(len(chosen))[:1000]]
    return arrays["x"][chosen], np.unique(arrays["y"][chosen], return_inverse=True)[1]


def osteosarcoma(folder):
    arrays = np.load(folder / "osteosarcoma_cells.npz")
    return arrays["x"], arrays["treatment"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--out", default="class_weights.json")
    options = parser.parse_args()
    folder, rows = Path(os.environ["UNPOSE_DATA"]), []
    print("| set | training images by class | class weights | accuracy | mean recall | worst recall |")
    print("|---|---|---|---|---|---|")
    for read in (red_cells, osteosarcoma):
        images, labels = read(folder)
        small = torch.nn.functional.interpolate(torch.from_numpy(images).float()[:, None] / 255, (24, 24), mode="area")
        classes = tuple(map(str, range(int(labels.max()) + 1)))
        parts = random_split(Split(small[:, 0].numpy(), labels.astype(np.int64)), (0.1, 0.4), classes)
        dataset = Dataset(read.__name__, str(folder), classes, *parts)
        for weights in ("none", "balanced"):
            recipe = named_recipe("folder").changed(epochs=options.epochs, group="c4", class_weights=weights)
            network = dataclasses.replace(recipe.network, options={"stages": [1, 1, 1], "parameters": 5000})
            figures = train(dataset, dataclasses.replace(recipe, network=network)).by_class
            found = figures.accuracy, figures.balanced_accuracy, float(figures.recall.min())
            rows.append({"set": read.__name__, "class_weights": weights} | figures.as_dictionary())
            counts = " ".join(map(str, np.bincount(dataset.train.labels)))
            shares = " | ".join(f"{each:.3f}" for each in found)
            print(f"| {read.__name__} | {counts} | {weights} | {shares} |", flush=True)
    Path(options.out).write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
