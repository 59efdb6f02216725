"""Clustering in the wild: cells, plankton, silhouettes, characters, clothes and photographs, with the same settings.

    UNPOSE_DATA=/path/to/arrays python benchmarks/wild.py [--only cells,plankton,...] [--seeds 3] [--device cuda]
                                                          [--workers 1] [--out FILE]
    python benchmarks/wild.py --show FILE...     # the tables of finished runs, in Markdown
    python benchmarks/wild.py --cost             # processor time of features beside that of pixels
    python benchmarks/wild.py --numbers [--only cells,plankton,...]    # numbers of clusters that are found
    python benchmarks/wild.py --plain [--only cells,...] [--seeds 3]   # the default without the extra, 600 images each

Needs the extra `unpose[features]`. Every seed draws other images, or other poses where there is one set of images. Only
what a user knows is given: the group of poses, and the number of classes (`plankton-all` and `found` excepted). ACC is
the accuracy under the best one-to-one matching of clusters and classes; NN the share of images whose nearest neighbour
is of their class. Classes are used for nothing else, except for the rows with labels. Peers in the same run:

raw                  spectral clustering of the raw pixels
features, k-means    the last layer of the same network on the image as it is, and k-means: what one would do instead
features, HDBSCAN    the same features, UMAP to ten dimensions where umap-learn is installed, and HDBSCAN
pixels               pixels over the orbit, `features="pixels"`
both                 the default with the extra: pixels and features over the orbit

`labels 10` is the accuracy of `probabilities_` on the other images after ten random labels of each kind, `suggest 10`
and `suggest 5` after as many and half as many labels of images that `suggest` asked for, a tenth at a time.
"""

import argparse
import json
import multiprocessing
import os
import platform
import time
import traceback
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import HDBSCAN, KMeans, SpectralClustering
from sklearn.metrics import normalized_mutual_info_score

from arrays import load
from cluster import bulls_eye, canvas, digits, omniglot, silhouettes
from unpose import InvariantClustering
from unpose.cluster import agreement_with_classes, estimator, joint_graph
from unpose.cluster.features import EXTRA_NETWORK, feature_network, orbit_features, orbit_poses
from unpose.cluster.labels import class_probabilities, most_instructive
from unpose.cluster.readout import partition, read_out
from unpose.cluster.stability import subset_stability
from unpose.data import posed
from unpose.images.imagenet import has_extra_network

_PEER_IMAGES = 3000
"""More images are not given to the peers whose cost is quadratic."""


def drawn(name, n, seed, keys=("x", "y")):
    x, y = load(name, *keys)
    chosen = np.random.default_rng(seed).choice(len(x), n, replace=False)
    return x[chosen] / np.float32(255), y[chosen]


def plankton(seed):
    """The 20 largest kinds, 100 images of each."""
    x, y = load("plankton_ndsb.npz", "x", "y")
    largest = np.argsort(-np.bincount(y), kind="stable")[:20]
    rng = np.random.default_rng(seed)
    rows = np.concatenate([rng.choice(np.flatnonzero(y == kind), 100, replace=False) for kind in largest])
    return x[rows] / np.float32(255), np.unique(y[rows], return_inverse=True)[1]


def all_plankton(seed):
    x, y = load("plankton_ndsb.npz", "x", "y")
    return x / np.float32(255), y


def osteosarcoma(seed):
    x, y = load("osteosarcoma_cells.npz", "x", "cell_line")
    return posed(x / np.float32(255), "se2+mirror", random_state=seed, max_shift=3.0).images, y


def clothes(seed):
    x, y = load("fashion_mnist.npz", "x_test", "y_test")
    chosen = np.random.default_rng(seed).choice(len(x), 2000, replace=False)
    return posed(canvas(x[chosen], 40), "se2", random_state=seed, max_shift=4.0).images, y[chosen]


def photographs(seed):
    x, y = load("cifar10_test.npz", "x_test", "y_test")
    chosen = np.random.default_rng(seed).choice(3000, 2000, replace=False)
    padded = np.pad(x[chosen] / np.float32(255), ((0, 0), (7, 7), (7, 7), (0, 0)))
    return posed(padded, "se2", random_state=seed, max_shift=3.0).images, y[chosen]


SETS = {
    "plankton-all": (all_plankton, None, {}),
    "digits-20000": (lambda seed: digits(20000, seed), 10, {}),
    "cells": (lambda seed: drawn("chula_rbc.npz", 3000, seed), 13, {"group": "se2+mirror"}),
    "plankton": (plankton, 20, {"group": "se2+mirror"}),
    "silhouettes": (silhouettes, 65, {"group": "similarity+mirror", "max_scale": 1.6}),
    "omniglot": (omniglot, 30, {}),
    "clothes": (clothes, 10, {}),
    "photographs": (photographs, 10, {}),
    "osteosarcoma": (osteosarcoma, 2, {"group": "se2+mirror"}),
    "digits": (lambda seed: digits(2000, seed), 10, {}),
}
"""Name -> images and classes of a seed, number of clusters, settings."""
LARGE = ("plankton-all", "digits-20000")
"""Sets that are run once, and only if they are named."""


def measures(labels, classes):
    found = agreement_with_classes(classes, labels)
    nmi = float(normalized_mutual_info_score(classes, labels))
    return {"ACC": found["accuracy"], "purity": found["purity"], "NMI": nmi, "groups": int(labels.max()) + 1}


def fit(images, n_clusters, settings, device):
    """The fitted model, its joined neighbours and the graph that they were diffused over."""
    seen = {}

    def keep(function, name, of):
        def kept(*args, **options):
            result = function(*args, **options)
            seen[name] = of(args, result)
            return result

        return kept

    fitting, diffusing = joint_graph.fit_features, joint_graph.diffused_neighbours
    estimator.fit_features = keep(fitting, "near", lambda args, result: result[0])
    joint_graph.diffused_neighbours = keep(diffusing, "graph", lambda args, result: args[0])
    start = time.perf_counter()
    model = InvariantClustering(n_clusters, features=EXTRA_NETWORK, device=device, **settings).fit(images)
    seconds = time.perf_counter() - start
    estimator.fit_features, joint_graph.diffused_neighbours = fitting, diffusing
    return model, seen["near"], seen["graph"], seconds


def labelled(weights, points, point_share, classes, per_class, seed):
    """Accuracies with random labels, and with the same number and half of it by suggestion."""
    n_classes, rng = int(classes.max()) + 1, np.random.default_rng(seed)

    def accuracy(known):
        given = np.full(len(classes), -1)
        given[known] = classes[known]
        probabilities = class_probabilities(weights, given, n_classes, points, point_share)
        others = given < 0
        return float((probabilities.argmax(1) == classes)[others].mean()), probabilities

    random = np.concatenate([
        rng.permutation(np.flatnonzero(classes == kind))[:per_class] for kind in range(n_classes)
    ])  # fmt: skip
    result = {f"labels {per_class}": accuracy(random)[0]}
    known, uncertainty, total = np.zeros(0, np.int64), np.ones(len(classes)), per_class * n_classes
    for step in range(10):
        more = most_instructive(weights, known, uncertainty, (step + 1) * total // 10 - len(known))
        known = np.append(known, more)
        score, probabilities = accuracy(known)
        uncertainty = 1 - probabilities.max(1)
        if step in (4, 9):
            result[f"suggest {(step + 1) * per_class // 10}"] = score
    return result


def without_orbit(images, device):
    """The last layer of the network on the whole images as they are, at 160 pixels, (n, 1280)."""
    batch = torch.from_numpy(np.ascontiguousarray(images if images.ndim == 4 else images[..., None])).movedim(-1, 1)
    network = replace(feature_network(EXTRA_NETWORK, batch, device), side=160, middle=None)
    vectors = orbit_features(batch, network, orbit_poses("translation"), device)
    return vectors[:, -2560:-1280]


def run(job):
    """All rows of one set and seed."""
    name, seed, device = job
    torch.set_num_threads(2)
    make, n_clusters, settings = SETS[name]
    images, classes = make(seed)
    rows = []

    def row(method, **values):
        rows.append({"set": name, "seed": seed, "n": len(images), "method": method} | values)
        said = (f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items())
        print("  ".join(said), flush=True)

    model, near, graph, seconds = fit(images, n_clusters, settings, device)
    counted, weights = model._counted_graph()
    kinds = classes[counted]
    row(
        "both", **measures(model.labels_, classes), NN=float((kinds[near[0][:, 0]] == kinds).mean()),
        pixel_share=model.features_.pixel_share, pose_change=model.features_.pose_change, seconds=seconds,
    )  # fmt: skip
    pixels = model.neighbours_
    back = np.full(len(images), -1)
    back[counted] = np.arange(len(counted))
    found = back[pixels.indices[counted]], pixels.distances[counted]
    pixel_labels = read_out(*found, n_clusters, np.random.RandomState(0))[0]
    row("pixels", **measures(pixel_labels, kinds), NN=float((kinds[found[0][:, 0]] == kinds).mean()))
    plain, count = without_orbit(images, device), n_clusters or model.n_clusters_
    starts = 3 if len(images) <= _PEER_IMAGES else 1
    k_means = KMeans(count, n_init=starts, random_state=seed).fit_predict(plain)
    row("features, k-means", **measures(k_means, classes))
    if len(images) <= _PEER_IMAGES:
        if name == "silhouettes":
            row("both", bulls_eye=bulls_eye(joint_graph.diffused_neighbours(graph, 39)[0], kinds))
        row("both, found", **measures(read_out(*near, None, np.random.RandomState(0))[0], kinds))
        found, numbered = model.features_, np.unique(kinds, return_inverse=True)[1]
        row("both, labels", **labelled(weights, found.points, 1 - found.pixel_share, numbered, 10, seed))
        raw = SpectralClustering(n_clusters, affinity="nearest_neighbors", n_neighbors=10, random_state=seed)
        row("raw", **measures(raw.fit_predict(images.reshape(len(images), -1)), classes))
        if find_spec("umap"):
            import umap

            plain = umap.UMAP(n_components=10, n_neighbors=15, min_dist=0.0, random_state=seed).fit_transform(plain)
        name_of_peer = "features, UMAP + HDBSCAN" if find_spec("umap") else "features, HDBSCAN"
        row(name_of_peer, **measures(HDBSCAN(min_cluster_size=10, copy=True).fit_predict(plain), classes))
    return rows


def show(results):
    """Print the tables of finished runs: means over the seeds, with the smallest and the largest value."""
    values = {}
    for each in (row for result in results for row in result["rows"]):
        for key, value in each.items():
            if isinstance(value, int | float) and key not in ("seed", "n"):
                values.setdefault((each["set"], each["method"], key), []).append(value)

    def cell(name, method, key):
        found = values.get((name, method, key))
        if found is None:
            return ""
        digits = 0 if key == "groups" else 3
        spread = f" ({min(found):.{digits}f} to {max(found):.{digits}f})" if len(found) > 1 else ""
        return f"{np.mean(found):.{digits}f}{spread}"

    def table(title, names, columns):
        lines = [(name, [cell(name, *column) for column in columns.values()]) for name in names]
        lines = [f"| {name} | {' | '.join(cells)} |" for name, cells in lines if any(cells)]
        if lines:
            print(title)
            print(f"| set | {' | '.join(columns)} |")
            print("|---" * (len(columns) + 1) + "|")
            print(*lines, "", sep="\n")

    for result in results:
        names = ", ".join(dict.fromkeys(each["set"] for each in result["rows"]))
        print(f"{names} on {result['machine']}; {len(result['failures'])} failed.")
    print()
    names = [name for name in SETS if name not in LARGE]
    peers = ("raw", "features, k-means", "features, HDBSCAN", "features, UMAP + HDBSCAN", "pixels", "both")
    table(
        "Accuracy at the true number of clusters (HDBSCAN finds its own number)",
        names, {peer: (peer, "ACC") for peer in peers},
    )  # fmt: skip
    table(
        "Share of nearest neighbours of the same class; weight of pixels; change of the features under a rotation",
        names,
        {
            "pixels": ("pixels", "NN"), "both": ("both", "NN"), "weight of pixels": ("both", "pixel_share"),
            "change": ("both", "pose_change"), "bull's-eye": ("both", "bulls_eye"),
        },
    )  # fmt: skip
    table(
        "Accuracy with a few labels: 10 of each class at random, as many by suggestion, and half as many",
        names, {key: ("both, labels", key) for key in ("labels 10", "suggest 10", "suggest 5")},
    )  # fmt: skip
    table(
        "Number of clusters that is found if it is not given",
        names, {key: ("both, found", key) for key in ("groups", "purity", "NMI")},
    )  # fmt: skip
    for method in ("both", "pixels", "features, k-means"):
        table(
            f"Large sets, once: {method}",
            LARGE, {key: (method, key) for key in ("ACC", "purity", "NMI", "groups", "seconds")},
        )  # fmt: skip


def cost():
    """Print what 1,000 silhouettes of 64 pixels cost: the fit by pixels, and the features over eight angles."""
    images = load("mpeg7_shapes.npz", "x", "y")[0][:1000] / np.float32(255)
    some = torch.from_numpy(images[::10, None])  # the cost of features is the same for every image
    network, poses = feature_network(EXTRA_NETWORK, some), orbit_poses("se2")
    InvariantClustering(3, features="pixels").fit(images[::25])  # compiles
    orbit_features(some[:3], network, poses)
    moments = [time.process_time()]
    InvariantClustering(50, features="pixels").fit(images)
    moments.append(time.process_time())
    orbit_features(some, network, poses)
    moments.append(time.process_time())
    pixels, features = np.diff(moments) * (1, 10)
    print("| fit by pixels, CPU-seconds | features | ratio |", "|---|---|---|", sep="\n")
    print(f"| {pixels:.0f} | {features:.0f} | {features / pixels:.1f} |")


def numbers(names, device, seed=3, n_images=1000):
    """Print the numbers of clusters that are found in 1,000 images of each set, and those at fixed resolutions."""
    columns = (
        "set | kinds | by | found | in subsets | ACC | purity | NMI | ACC, kinds given | resolution 1 | ACC | 2 | ACC"
    )
    print(f"| {columns} |")
    print("|---" * 13 + "|")
    for name in names:
        make, n_clusters, settings = SETS[name]
        images, classes = make(seed)
        chosen = np.random.default_rng(seed).permutation(len(images))[:n_images]
        images, classes = images[chosen], classes[chosen]
        model, near, _, _ = fit(images, None, settings, device)
        counted, _ = model._counted_graph()
        kinds, back = classes[counted], np.full(len(images), -1)
        back[counted] = np.arange(len(counted))
        pixels = back[model.neighbours_.indices[counted]], model.neighbours_.distances[counted]
        for by, graph in (("pixels", pixels), ("both", near)):
            labels, weights, chosen = read_out(*graph, None, np.random.RandomState(0))
            low, high = subset_stability(*graph, labels, None, chosen, np.random.RandomState(0)).n_clusters
            found = measures(labels, kinds)
            given = measures(read_out(*graph, n_clusters, np.random.RandomState(0))[0], kinds)
            fixed = [
                measures(partition(weights, None, np.random.RandomState(0), resolution=each)[0], kinds)
                for each in (1.0, 2.0)
            ]
            print(
                f"| {name} | {n_clusters} | {by} | {found['groups']} | {low} to {high} | {found['ACC']:.3f} "
                f"| {found['purity']:.3f} | {found['NMI']:.3f} | {given['ACC']:.3f} | "
                + " | ".join(f"{each['groups']} | {each['ACC']:.3f}" for each in fixed) + " |",
                flush=True,
            )  # fmt: skip


def plain(names, seeds, n_images=600):
    """Print what the default without the extra finds in 600 images of each set, beside pixels: means over the seeds."""
    if has_extra_network():
        raise SystemExit("the extra `features` is installed: this measures what those get who do not have it")
    print("| set | kinds | pixels, NN | ACC | default, NN | ACC | statistics joined | CPU-seconds, pixels | default |")
    print("|---" * 9 + "|")
    for name in names:
        make, n_clusters, settings = SETS[name]
        rows = []
        for seed in range(seeds):
            images, classes = make(seed)
            chosen = np.random.default_rng(seed).permutation(len(images))[:n_images]
            images, classes, row = images[chosen], classes[chosen], []
            for features in ("pixels", "auto"):
                seen, reading = {}, estimator.read_out
                estimator.read_out = partial(_kept, reading, seen)
                began = time.process_time()
                model = InvariantClustering(n_clusters, features=features, **settings).fit(images)
                seconds = time.process_time() - began
                estimator.read_out = reading
                kinds = classes[model._counted_rows()]
                nearest = float((kinds[seen["indices"][:, 0]] == kinds).mean())
                row += [nearest, measures(model.labels_, classes)["ACC"], seconds]
            rows.append([*row, model.features_ is not None])
        found = np.array(rows, float)
        means, spread = found.mean(0), [f"{found[:, i].min():.3f} to {found[:, i].max():.3f}" for i in (1, 4)]
        print(
            f"| {name} | {n_clusters} | {means[0]:.3f} | {means[1]:.3f} ({spread[0]}) | {means[3]:.3f} "
            f"| {means[4]:.3f} ({spread[1]}) | {found[:, 6].sum():.0f} of {seeds} | {means[2]:.0f} | {means[5]:.0f} |",
            flush=True,
        )


def _kept(function, seen, indices, *rest):
    """Call ``read_out``, and keep the neighbours that clusters are read from."""
    seen["indices"] = indices
    return function(indices, *rest)


def guarded(job):
    try:
        return job, run(job), None
    except Exception:  # the other sets still count
        return job, [], traceback.format_exc()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only", default=",".join(name for name in SETS if name not in ("plankton-all", "digits-20000"))
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=1, help="sets and seeds that run at the same time")
    parser.add_argument("--out", default="wild.json")
    parser.add_argument("--show", nargs="+", help="print the tables of these files instead of measuring")
    parser.add_argument("--cost", action="store_true", help="print what features cost beside pixels instead")
    parser.add_argument("--numbers", action="store_true", help="print the numbers of clusters that are found instead")
    parser.add_argument("--plain", action="store_true", help="measure the default without the extra instead")
    options = parser.parse_args()
    if options.plain:
        plain(options.only.split(","), options.seeds)
        return
    if options.numbers:
        numbers(options.only.split(","), options.device)
        return
    if options.cost:
        cost()
        return
    if options.show:
        show([json.loads(Path(file).read_text()) for file in options.show])
        return
    names = options.only.split(",")
    jobs = [(name, seed, options.device) for seed in range(options.seeds) for name in names]
    jobs = [job for job in jobs if job[0] not in LARGE or job[1] == 0]
    machine = torch.cuda.get_device_name() if options.device == "cuda" else platform.platform()
    result = {"machine": machine, "workers": options.workers, "method": __doc__, "rows": [], "failures": []}
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for job, rows, failure in pool.imap_unordered(guarded, jobs):
            result["rows"] += rows
            if failure is not None:
                result["failures"].append({"set": job[0], "seed": job[1], "error": failure})
                print(job[:2], failure, flush=True)
            Path(options.out).write_text(json.dumps(result, indent=1, default=float))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    main()
