"""Cross-validate the quick classifier of ``unpose train --quick`` on labelled images, beside classifiers of pixels.

    python benchmarks/quick.py chula_rbc.npz plankton_ndsb.npz osteosarcoma_cells.npz:treatment [--images 3000]
    python benchmarks/quick.py --out quick.json SET.npz[:LABELS[:GROUPS]] ...
    python benchmarks/quick.py --network osteosarcoma_cells.npz:treatment --images 650

A set is an ``.npz`` file, below the folder that ``UNPOSE_DATA`` names, with images ``x`` and labels ``y`` or of another
name; images of one group (``image_id`` of red blood cells) stay in one fold. Every classifier is fitted to two
thirds of the images and tested on the rest, upright and turned by random angles. The peers are a support vector
machine with radial basis functions on pixels, and the same after adding three quarter turns to the training images.
The balanced classifier takes all classes to be equally frequent.

With ``--network`` the network of ``unpose train`` is a method, too, and there is one division of images of 32 pixels
for all methods: half for training, a sixth to choose the epoch of the network, a third for the test.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.svm import SVC

from unpose.data import Dataset, Split
from unpose.groups import rotation
from unpose.images import border_level, warp
from unpose.train import named_recipe, train, train_quick
from unpose.train.cost import fit_to_cpu

FOLDS = 3
SIDE = 32
"""Of the images that the network sees."""


def turned(images):
    """The images at random angles, with corners of the brightness of their border."""
    batch = torch.from_numpy(images)[:, None]
    background = torch.from_numpy(border_level(batch.numpy()))[..., None, None]
    angles = 2 * np.pi * torch.rand(len(images), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return (warp(batch - background, rotation(angles)) + background)[:, 0].numpy()


def figures(answers, labels):
    recall = np.array([(answers[labels == k] == k).mean() for k in np.unique(labels)])
    return {
        "accuracy": float((answers == labels).mean()),
        "mean recall": float(recall.mean()),
        "never right": int((recall == 0).sum()),
    }


def with_pixels(dataset, augmented):
    images, labels = dataset.train.images, dataset.train.labels
    if augmented:
        images, labels = np.concatenate([np.rot90(images, k, (1, 2)) for k in range(4)]), np.tile(labels, 4)
    model = SVC(C=10.0).fit(images.reshape(len(images), -1), labels)
    tested = dataset.test.images
    return [model.predict(part.reshape(len(part), -1)) for part in (tested, turned(tested))]


def with_network(dataset):
    recipe = fit_to_cpu(named_recipe("folder"), len(dataset.train), 1, len(dataset.classes), SIDE, may_resize=False)
    return answers_of(train(dataset, recipe).network, dataset.test.images)


def answers_of(network, images):
    network.eval()
    with torch.no_grad():
        return [network(torch.from_numpy(part)[:, None]).argmax(1).numpy() for part in (images, turned(images))]


METHODS = {
    "always the most frequent": lambda dataset: np.bincount(dataset.train.labels).argmax(),
    "pixels, SVM": lambda dataset: with_pixels(dataset, False),
    "pixels, SVM, quarter turns added": lambda dataset: with_pixels(dataset, True),
    "quick": lambda dataset: answers_of(train_quick(dataset).network, dataset.test.images),
    "quick, balanced": lambda dataset: answers_of(
        train_quick(dataset, class_weights="balanced").network, dataset.test.images
    ),
}


def read(name, most, side):
    file, _, rest = name.partition(":")
    key, _, groups = rest.partition(":")
    arrays = np.load(Path(os.environ.get("UNPOSE_DATA", ".")) / file)
    key = key or "y"
    images, (_, labels) = arrays["x"], np.unique(arrays[key], return_inverse=True)
    together = arrays[groups] if groups else np.arange(len(labels))
    chosen = np.sort(np.random.default_rng(0).permutation(len(labels))[:most])
    small = torch.from_numpy(images[chosen]).float()[:, None] / 255
    if small.shape[-1] > side:
        small = torch.nn.functional.adaptive_avg_pool2d(small, side)
    _, labels = np.unique(labels[chosen], return_inverse=True)
    return small[:, 0].numpy(), labels.astype(np.int64), together[chosen]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sets", nargs="+")
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--network", action="store_true")
    parser.add_argument("--out", default="quick.json")
    options = parser.parse_args()
    methods = METHODS | {"network": with_network} if options.network else METHODS
    rows = []
    print("| set | images | classes | method | accuracy | turned | mean recall | classes never right | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in options.sets:
        images, labels, together = read(name, options.images, SIDE if options.network else 48)
        classes = tuple(map(str, range(int(labels.max()) + 1)))
        kinds, member = np.unique(together, return_inverse=True)
        sixths = (np.random.default_rng(0).permutation(len(kinds)) % (2 * FOLDS))[member]
        folds, validation = sixths % FOLDS, (sixths == 1) & options.network
        tested = folds == 0 if options.network else folds >= 0
        for method, fit in methods.items():
            started, answers = time.process_time(), np.empty((2, len(labels)), dtype=np.int64)
            for fold in np.unique(folds[tested]):
                held = folds == fold
                masks = ~held & ~validation, validation if options.network else held, held
                parts = (Split(images[mask], labels[mask]) for mask in masks)
                answers[:, held] = fit(Dataset("set", "", classes, *parts))
            seconds = time.process_time() - started
            upright, rotated = (figures(each[tested], labels[tested]) for each in answers)
            rows.append({"set": name, "method": method, "upright": upright, "turned": rotated, "seconds": seconds})
            shares = f"{upright['accuracy']:.3f} | {rotated['accuracy']:.3f} | {upright['mean recall']:.3f}"
            counts = f"{upright['never right']} | {seconds:.0f}"
            print(f"| {name} | {len(labels):,} | {len(classes)} | {method} | {shares} | {counts} |", flush=True)
    about = {"machine": platform.machine(), "threads": torch.get_num_threads(), "folds": FOLDS}
    Path(options.out).write_text(json.dumps({"about": about, "results": rows}, indent=1))


if __name__ == "__main__":
    main()
