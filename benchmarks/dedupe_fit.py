"""Fits the numbers of ``unpose dedupe`` and writes them to ``src/unpose/dedupe/fitted.npz``.

    UNPOSE_DATA=/path/to/arrays python benchmarks/dedupe_fit.py [--only-probability]

1. The linear maps of the signatures. Pictures of CIFAR-10 (training batch 1, the first 3,000) and tiles of five
   photographs are altered; the differences of the invariants of a copy and its original give the covariance within,
   all pictures the covariance between. The maps are those of linear discriminant analysis.
2. The weights of the probability, a logistic regression on how pairs compare: altered copies of other pictures (the
   next 3,000 of the same batch), of 1,000 plankton images and of 1,000 red cells, and all candidates among different
   pictures. CIFAR-10 and the red cells contain a few duplicates of their own, which are left out and listed: pairs of
   different pictures with a residual of at most 0.05 and a spread of contrast of at most 0.1. Looked at, they were the
   same photographs and the same cells.

``benchmarks/dedupe.py`` measures on other pictures.
"""

import os
import sys
from pathlib import Path

import numpy as np
import scipy.linalg
from numpy.typing import NDArray
from PIL import Image
from sklearn.linear_model import LogisticRegression

from altered_copies import ALTERATIONS, DEVELOPMENT, array_pictures, as_jpeg, cifar, tiles
from unpose.dedupe import chunks, describe, extract_patch, find_candidates, find_regions, grey_frame, search, signature
from unpose.dedupe.pixels import features as comparison_features

COPIES = 200
PICTURES = 3000
OTHERS = 1000
RIDGE = 1e-3
DOUBTFUL = 0.05, 0.11  # residual and, plus 0.01 as the model sees it, spread of contrast
FILE = Path(signature.__file__).with_name("fitted.npz")


def grey_of(picture: Image.Image) -> NDArray:
    return grey_frame(np.asarray(picture) / np.float32(255))


def patches_of(picture: Image.Image) -> list[NDArray]:
    grey = grey_of(picture)
    return [extract_patch(grey, region) for region in find_regions(grey)]


def altered(
    pictures: list[Image.Image], random: np.random.Generator, copies: int = COPIES
) -> list[tuple[int, Image.Image]]:
    """Copies of all kinds, each with the index of its original."""
    order = random.permutation(len(pictures))
    return [
        (i, as_jpeg(alter(pictures[i], random), int(random.uniform(75, 95))))
        for number, alter in enumerate(ALTERATIONS.values())
        for i in order[np.arange(number * copies, (number + 1) * copies) % len(order)]
    ]


def fit_maps(data: Path) -> dict[str, NDArray]:
    pictures = cifar(data, "train_batch1", PICTURES) + tiles(DEVELOPMENT)
    originals = [patches_of(picture) for picture in pictures]
    pairs = [(originals[i], patches_of(copy)) for i, copy in altered(pictures, np.random.default_rng(0))]
    maps = {}
    for layer in signature.LAYERS:

        def features(patches: list[NDArray], layer: signature.Layer = layer) -> NDArray:
            return signature.invariants(signature.projected(signature.ranks(np.stack(patches)), layer), layer)

        differences = []
        for original, copy in pairs:
            theirs = features(original)  # (hypotheses, views, D)
            ours = features(copy)[:, list(layer.queries)]
            apart = (theirs[:, :, None, None] - ours).reshape(-1, theirs.shape[-1])
            keep = 1 if layer is signature.WHOLE else 3
            differences.append(apart[np.abs(apart).sum(1).argsort()[:keep]])
        within = np.concatenate(differences)
        views = features([patches[0] for patches in originals])[:, :: max(1, len(layer.views) // 3)]
        between = views.reshape(-1, views.shape[-1])
        between = between - between.mean(0)
        covariance = within.T @ within / len(within)
        covariance += RIDGE * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        _, directions = scipy.linalg.eigh(between.T @ between / len(between), covariance)
        maps[layer.name] = directions[:, ::-1][:, : layer.size].astype(np.float32)
        lengths = np.sqrt(((within @ maps[layer.name]) ** 2).sum(1))
        print(layer.name, maps[layer.name].shape, "distances of copies", np.quantile(lengths, [0.5, 0.9, 0.99, 0.995]))
    return maps


def pairs_of(pictures: list[Image.Image], copies: int, seed: int) -> tuple[NDArray, NDArray, NDArray]:
    """What the model sees of all pairs that are compared, which of them are copies, and their sources (pairs, 2)."""
    changed = altered(pictures, np.random.default_rng(seed), copies)
    sources = np.array([*range(len(pictures)), *(i for i, _ in changed)])
    frames = [grey_of(picture) for picture in [*pictures, *(copy for _, copy in changed)]]
    entries = describe(frames)
    found = []
    for part in chunks(entries.owners, find_candidates(entries.vectors, entries.owners)):
        found += search.check(entries, part, lambda which: [frames[i] for i in which])
    both = np.array([[sources[match.one], sources[match.two]] for match in found])
    return np.stack([comparison_features(match.comparison) for match in found]), both[:, 0] == both[:, 1], both


def fit_probability(data: Path) -> NDArray:
    photographs = cifar(data, "train_batch1", PICTURES, start=PICTURES) + tiles(DEVELOPMENT)
    sets = {"photographs": pairs_of(photographs, COPIES, 1)}
    for name, file, start in (("plankton", "plankton_ndsb.npz", 15000), ("cells", "chula_rbc.npz", 5000)):
        sets[name] = pairs_of(array_pictures(data, file, OTHERS, start=start), COPIES // 2, 1)
    used = {}
    for name, (rows, is_same, sources) in sets.items():
        is_doubtful = ~is_same & (rows[:, 0] <= np.log(DOUBTFUL[0])) & (rows[:, 1] <= np.log(DOUBTFUL[1]))
        is_doubtful &= name != "plankton"
        print(name, "left out:", sources[is_doubtful].tolist())
        used[name] = ~is_doubtful
    rows = np.concatenate([sets[name][0][used[name]] for name in sets])
    is_same = np.concatenate([sets[name][1][used[name]] for name in sets])
    model = LogisticRegression(C=10.0, max_iter=5000).fit(rows, is_same)
    for name, (its_rows, its_same, _) in sets.items():
        probabilities = model.predict_proba(its_rows)[:, 1]
        for threshold in (0.5, 0.8, 0.9, 0.95, 0.99):
            above = (probabilities >= threshold) & used[name]
            right, false = (above & its_same).sum(), (above & ~its_same).sum()
            print(f"{name}: p >= {threshold}: {right} of {its_same.sum()} copies, {false} false")
    return np.concatenate([model.intercept_, model.coef_[0]]).astype(np.float32)


def main() -> None:
    data = Path(os.environ["UNPOSE_DATA"])
    stored = dict(np.load(FILE)) if FILE.exists() else {"probability": np.zeros(6, np.float32)}
    if "--only-probability" not in sys.argv:
        stored |= fit_maps(data)
        np.savez(FILE, **stored)
        signature.fitted.cache_clear()
    stored["probability"] = fit_probability(data)
    np.savez(FILE, **stored)
    print("probability", stored["probability"])


if __name__ == "__main__":
    main()
