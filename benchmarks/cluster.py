"""Clustering of images at unknown pose: accuracy beside other methods, and cost.

    UNPOSE_DATA=/path/to/arrays python benchmarks/cluster.py [--only digits,upright,fashion,silhouettes,omniglot,cells,
                                                                     light,pose,noise,ablation,cost] [--seeds 3]
                                                             [--sizes 1000,5000,20000] [--device cuda] [--out FILE]

ACC is the accuracy under the best one-to-one matching of clusters and classes, purity the share of images in the
largest class of their cluster. Classes are used for nothing else. Every seed draws other images and poses. All sets
use the same settings; only what a user knows is given: the group of poses, its bounds where they are known, and the
number of classes (`K`) or nothing (`auto`). The rules were chosen on seeds 10 to 12; seeds 0, 1 and 2 were not used for
that. Peers get the same images, at most 1,000 of them, and the true K if they take one. Peers that compare images
without alignment show the effect of pose.
"""

import argparse
import json
import platform
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import torch
from sklearn.cluster import HDBSCAN, KMeans, MeanShift, SpectralClustering

import peers
from arrays import load
from unpose import InvariantClustering
from unpose.align import Search, nearest
from unpose.cluster import agreement_with_classes, neighbours, readout
from unpose.cluster.graph import attention_matrix
from unpose.cluster.light import normalise_light
from unpose.cluster.modularity import merge_clusters
from unpose.cluster.published import kernel_attention
from unpose.data import posed
from unpose.images import as_batch

# ------------------------------------------------------------------------------------------------------ data


def canvas(images, size):
    """uint8 images on a black canvas of this size, in [0, 1]."""
    n, height, width = images.shape
    out = np.zeros((n, size, size), np.float32)
    top, left = (size - height) // 2, (size - width) // 2
    out[:, top : top + height, left : left + width] = images / np.float32(255)
    return out


def digits(n, seed, *, upright=False, name="mnist.npz"):
    x, y = load(name, "x_train", "y_train")
    chosen = np.random.default_rng(seed).choice(len(x), n, replace=False)
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


# --------------------------------------------------------------------------------------------------- measures


def accuracy(labels, classes):
    return agreement_with_classes(classes, labels)["accuracy"]


def purity(labels, classes):
    return agreement_with_classes(classes, labels)["purity"]


def bulls_eye(neighbours, classes):
    """Share of the other 19 of a class among an image's 39 nearest; with itself that is the usual score of 40."""
    same = (classes[neighbours] == classes[:, None]).sum(1)
    return float((same + 1).mean() / np.bincount(classes).max())


# ------------------------------------------------------------------------------------------------------ peers


def peers_of(images, n_clusters, seed):
    """name -> labels, for methods that compare images without alignment."""
    rows = images.reshape(len(images), -1)
    drawn_together = kernel_attention(rows, beta=_bandwidth(rows) ** -2, n_iter=5)[-1]
    methods = {
        "k-means": lambda: KMeans(n_clusters, n_init=5, random_state=seed).fit_predict(rows),
        "spectral": lambda: SpectralClustering(
            n_clusters, affinity="nearest_neighbors", n_neighbors=10, random_state=seed
        ).fit_predict(rows),
        "HDBSCAN": lambda: HDBSCAN(min_cluster_size=10, copy=True).fit_predict(rows),
        "MeanShift": lambda: MeanShift(bin_seeding=True, max_iter=50).fit_predict(rows),
        "kernel attention": lambda: KMeans(n_clusters, n_init=5, random_state=seed).fit_predict(drawn_together),
    }
    found = {}
    for name, method in methods.items():
        try:
            found[name] = method()
        except Exception as error:  # a peer that fails is a result
            print(f"   {name} failed: {type(error).__name__}: {error}")
    return found


def _bandwidth(rows):
    sample = rows[:: max(1, len(rows) // 300)]
    return float(np.median(np.linalg.norm(sample[:, None] - sample, axis=-1)))


# ---------------------------------------------------------------------------------------------------- running


class Report:
    def __init__(self, options):
        self.options, self.rows, self.claims = options, [], []

    def row(self, **values):
        self.rows.append(values)
        said = (f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}" for k, v in values.items())
        print("  ", "  ".join(said), flush=True)

    def claim(self, what, value, *, least=None, most=None):
        met = (least is None or value >= least) and (most is None or value <= most)
        self.claims.append({"claim": what, "value": value, "least": least, "most": most, "met": bool(met)})
        bound = f">= {least}" if least is not None else f"<= {most}"
        print(f"   {'met' if met else 'NOT MET'}: {what} = {value:.4g} ({bound})", flush=True)

    def fit(self, images, n_clusters, **settings):
        start = time.perf_counter()
        model = InvariantClustering(n_clusters, device=self.options.device, **settings).fit(images)
        return model, time.perf_counter() - start

    def seeds(self, what, make, n_clusters, least=None, *, with_peers=True, spread=0.03, **settings):
        """The same set for every seed: ACC of ours and of the peers, mean and spread."""
        scores = []
        for seed in range(self.options.seeds):
            images, classes = make(seed)
            model, seconds = self.fit(images, n_clusters, **settings)
            scores.append(accuracy(model.labels_, classes))
            first = model.neighbours_.indices[:, 0]
            row = {"set": what, "n": len(images), "seed": seed, "ACC": scores[-1]}
            row |= {"purity": purity(model.labels_, classes), "groups": model.n_clusters_}
            self.row(**row, nearest=float((classes[first] == classes).mean()), seconds=seconds)
            if with_peers and len(images) <= 1500:
                some = slice(0, 1000)
                for name, labels in peers_of(images[some], n_clusters or 10, seed).items():
                    extra = {"ACC": accuracy(labels, classes[some]), "purity": purity(labels, classes[some])}
                    self.row(set=what, method=name, n=len(labels), seed=seed, **extra, groups=int(labels.max()) + 1)
        mean = float(np.mean(scores))
        if least is not None:
            self.claim(f"{what}: mean ACC", mean, least=least)
            self.claim(
                f"{what}: furthest seed from the mean", float(np.abs(np.array(scores) - mean).max()), most=spread
            )
        return mean


def run_digits(report):
    for n, least in ((1000, 0.90), (5000, 0.94), (20000, 0.95)):
        if n in report.options.sizes:
            report.seeds(f"digits {n}", lambda seed, n=n: digits(n, seed), 10, least)
    if 5000 in report.options.sizes:
        shares, counts = [], []
        for seed in range(report.options.seeds):
            images, classes = digits(5000, seed)
            model, _ = report.fit(images, None)
            shares.append(purity(model.labels_, classes))
            counts.append(model.n_clusters_)
            report.row(set="digits 5000, auto", seed=seed, groups=counts[-1], purity=shares[-1])
        mean = float(np.mean(shares))
        report.claim("digits 5000, auto: mean purity", mean, least=0.94)
        report.claim("digits 5000, auto: furthest seed from the mean", float(np.abs(shares - mean).max()), most=0.03)
        report.claim("digits 5000, auto: fewest groups", min(counts), least=8)
        report.claim("digits 5000, auto: most groups", max(counts), most=20)


def run_upright(report):
    n = 5000 if 5000 in report.options.sizes else 1000
    bounds = {"max_angle": np.radians(20), "max_shift": 3.0}
    report.seeds(f"upright digits {n}", lambda seed: digits(n, seed, upright=True), 10, 0.975, **bounds)


def run_fashion(report):
    n = 5000 if 5000 in report.options.sizes else 1000
    report.seeds(f"fashion {n}", lambda seed: digits(n, seed, name="fashion_mnist.npz"), 10, 0.60, spread=0.05)


def run_silhouettes(report):
    settings = {"group": "similarity+mirror", "max_scale": 1.6}
    first, eye = [], []
    for seed in range(report.options.seeds):
        images, classes = silhouettes(seed)
        batch = normalise_light(as_batch(images), "ignore")
        search = Search(contrast="gain", device=report.options.device, **settings)
        # The same neighbours as the estimator's, but 39 of them for the bull's-eye score.
        kept, neighbours.N_NEIGHBOURS = neighbours.N_NEIGHBOURS, 39
        found = neighbours.find_neighbours(batch, search, None, None).neighbours
        neighbours.N_NEIGHBOURS = kept
        first.append(float((classes[found.indices[:, 0]] == classes).mean()))
        eye.append(bulls_eye(found.indices, classes))
        report.row(set="silhouettes", seed=seed, nearest=first[-1], bulls_eye=eye[-1])
    report.claim("silhouettes: nearest neighbour is of the class", float(np.mean(first)), least=0.97)
    report.seeds("silhouettes", silhouettes, 65, 0.86, **settings)


def run_omniglot(report):
    report.seeds("omniglot, 30 characters", omniglot, 30)


def run_cells(report):
    report.seeds("red cells", lambda seed: cells(1000, seed), 13)
    report.seeds("red cells, light kept", lambda seed: cells(1000, seed), 13, with_peers=False, light="keep")


def run_light(report):
    """Gain, offset and ramp on every image, default settings."""
    sizes = [n for n in (1000, 5000, 20000) if n in report.options.sizes]
    pairs = [(f"digits {n}", lambda seed, n=n: digits(n, seed), 10, {}) for n in sizes]
    settings = {"group": "similarity+mirror", "max_scale": 1.6}
    pairs.append(("silhouettes", silhouettes, 65, settings))
    for what, make, n_clusters, settings in pairs:
        clean = report.seeds(what, make, n_clusters, with_peers=False, **settings)

        def changed(seed, make=make):
            images, classes = make(seed)
            return lit(images, seed), classes

        changed_mean = report.seeds(f"{what}, lit", changed, n_clusters, with_peers=False, **settings)
        report.claim(f"{what}: ACC lost to light, points", 100 * (clean - changed_mean), most=5.0)


def run_pose(report):
    """Posed copies of one image per class: errors of the poses, up to one common pose per cluster."""
    x, y = load("mnist.npz", "x_train", "y_train")
    for seed in range(report.options.seeds):
        rng = np.random.default_rng(seed)
        # Digits without rotational symmetry; the angle of the others is ambiguous.
        originals = canvas(np.stack([x[rng.choice(np.flatnonzero(y == k))] for k in (2, 3, 4, 5, 7)]), 40)
        copies = posed(originals, "se2", copies=30, random_state=seed, max_shift=4.0)
        model, _ = report.fit(copies.images, 5)
        angles, shifts = [], []
        for k in range(5):
            rows = np.flatnonzero(model.labels_ == k)
            together = model.poses_[rows] @ copies.poses[rows]
            middle = together[np.argmin(np.abs(together - np.median(together, axis=0)).sum((1, 2)))]
            apart = np.linalg.inv(middle) @ together
            angles += np.degrees(np.abs(np.arctan2(apart[:, 0, 1], apart[:, 0, 0]))).tolist()
            shifts += np.hypot(apart[:, 0, 2], apart[:, 1, 2]).tolist()
        report.row(set="copies", seed=seed, ACC=accuracy(model.labels_, copies.sources),
                   angle=float(np.median(angles)), shift=float(np.median(shifts)))  # fmt: skip
        report.claim(f"copies, seed {seed}: median angle error, degrees", float(np.median(angles)), most=0.5)
        report.claim(f"copies, seed {seed}: median shift error, pixels", float(np.median(shifts)), most=0.1)


def run_noise(report):
    """Does averaging neighbours help for noisy images, and does its rule leave it out for others?"""
    for noise in (0.0, 0.3, 0.6):
        for allowed in (0, neighbours.MAX_ROUNDS):
            kept, neighbours.MAX_ROUNDS = neighbours.MAX_ROUNDS, allowed
            for seed in range(report.options.seeds):
                images, classes = digits(1000, seed)
                images = images + np.random.default_rng(seed).normal(0, noise, images.shape).astype(np.float32)
                model, _ = report.fit(images, 10)
                taken = sum(each.averaged for each in model.history_)
                report.row(set="noisy digits 1000", noise=noise, allowed=allowed, taken=taken, seed=seed,
                           ACC=accuracy(model.labels_, classes))  # fmt: skip
            neighbours.MAX_ROUNDS = kept


def run_ablation(report):
    """The effect of each rule: digits and fashion, one change at a time."""
    n = 5000 if 5000 in report.options.sizes else 1000
    sets = {
        f"digits {n}": (lambda seed: digits(n, seed), 10, {"group": "perspective", "max_scale": 1.0}),
        f"fashion {n}": (lambda seed: digits(n, seed, name="fashion_mnist.npz"), 10,
                         {"group": "perspective", "max_scale": 1.0}),
    }  # fmt: skip
    for what, (make, n_clusters, settings) in sets.items():
        for seed in range(report.options.seeds):
            images, classes = make(seed)
            for name, group, contrast in (
                ("as shipped", "perspective", "gain"), ("affine tolerance", "affine", "gain"),
                ("no tolerance", "se2", "gain"), ("distances that see light", "perspective", "none"),
            ):  # fmt: skip
                found = nearest(
                    images, 12, **(settings | {"group": group}), contrast=contrast, device=report.options.device
                )
                labels, graph = readout.read_out(
                    found.indices, found.distances, n_clusters, np.random.RandomState(seed)
                )
                report.row(set=what, seed=seed, change=name, ACC=accuracy(labels, classes))
                if name != "as shipped":
                    continue
                for other, spoilt in _readouts(found, graph, n_clusters, seed).items():
                    report.row(set=what, seed=seed, change=other, ACC=accuracy(spoilt, classes))


def _readouts(found, graph, n_clusters, seed):
    """Simpler read-outs of the same neighbours."""
    rng = np.random.RandomState(seed)
    plain = list(readout._spectral(graph, n_clusters, rng))
    dense = found.distances.copy()
    dense[:] = np.median(dense)  # equal weights
    flat = attention_matrix(found.indices, dense)
    return {
        "spectral with K groups": plain[0],
        "spectral with 1.25 K, joined": plain[2],
        "spectral with 2 K, joined": plain[-1],
        "communities, joined": merge_clusters(graph, readout._consensus(graph, rng), n_clusters),
        "unweighted graph, spectral with K": next(iter(readout._spectral(flat, n_clusters, rng))),
    }


def run_cost(report):
    """CPU time of a fit against one plain numpy pass over all pairs, growth with n, peak memory."""
    images, _ = digits(1000, 0)
    InvariantClustering(2, n_jobs=1).fit(images[:60])  # compiles
    start = time.process_time()
    InvariantClustering(10).fit(images)
    fitting = time.process_time() - start
    rng = np.random.default_rng(0)
    starts = np.cumsum([0, 7, 8, 8, 8, 7, 6, 6, 5, 5, 4, 3, 3, 2, 2, 1])
    shape = (1000, 49, int(starts[-1]))
    views = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(np.complex64)
    start = time.process_time()
    for first in range(0, 1000, 100):
        peers.numpy_best_poses(views[first : first + 100], views[:, 0], starts, 64)
    plain = time.process_time() - start
    report.row(set="cost", n=1000, fit_cpu_seconds=fitting, numpy_pass_cpu_seconds=plain)
    report.claim("fit of 1,000 in numpy passes over all pairs, CPU time", fitting / plain, most=1.0)
    times = {}
    for n in (2000, 20000):
        if n > max(report.options.sizes):
            continue
        images, classes = digits(n, 0)
        start = time.perf_counter()
        model = InvariantClustering(10, memory="4GB").fit(images)
        times[n] = time.perf_counter() - start
        peak = 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
        report.row(set="cost", n=n, seconds=times[n], peak_gb=peak / 1e9, ACC=accuracy(model.labels_, classes))
    if len(times) == 2:
        report.claim("growth from 2,000 to 20,000, exponent", float(np.log10(times[20000] / times[2000])), most=1.3)
        report.claim("peak memory at 20,000, GB", peak / 1e9, most=4.0)


SECTIONS = {name.removeprefix("run_"): part for name, part in list(globals().items()) if name.startswith("run_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sizes", default="1000,5000,20000")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="cluster.json")
    options = parser.parse_args()
    options.sizes = [int(size) for size in options.sizes.split(",")]
    result = {"machine": platform.platform(), "device": options.device, "method": __doc__, "sections": {}}
    if options.device == "cuda":
        result["machine"] = torch.cuda.get_device_name()
    failed = False
    for name in options.only.split(","):
        print(name, flush=True)
        report = Report(options)
        start = time.perf_counter()
        try:
            SECTIONS[name](report)
        except Exception:  # the other sections still count
            traceback.print_exc()
            failed = True
        result["sections"][name] = {
            "rows": report.rows,
            "claims": report.claims,
            "seconds": time.perf_counter() - start,
        }
        Path(options.out).write_text(json.dumps(result, indent=1, default=float))
    sys.exit(failed)


if __name__ == "__main__":
    main()
