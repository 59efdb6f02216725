"""Point clouds: registration beside closest points from the identity, and a classifier of turned solids.

    python benchmarks/points.py register [--trials 40] [--jobs 1] [--seed 0] [--only "5 % noise"] [--out register.json]
    python benchmarks/points.py shapes   [--seeds 1] [--steps 600] [--device cpu] [--out shapes.json]

`register`: shapes without symmetry (benchmarks/solids.py) are moved by a random rigid motion over all of SO(3). The
peer is iterated closest points from the identity after both centroids are brought together, made of scikit-learn's
NearestNeighbors and SciPy's Rotation, 100 iterations. Noise is the standard deviation of each coordinate, sizes are
root mean square distances from the centroid. Success is an error below 5 degrees and 5 % of the size. The bound is the
root mean square of the Cramer-Rao bounds of the angle if correspondence were known; `known` is the median angle that
orthogonal Procrustes reaches in the same trials when it is told which points correspond. Without correspondence less is
possible: a turn of a nearly round body moves its points along its surface, where they cannot be told apart. `from
truth` is the median angle at the maximum of the likelihood without correspondence, found from the true motion and the
true noise: the error that remains when the search cannot fail.

`shapes`: twelve kinds of parametric solids, 60 upright examples of each to train on; tested on 50 others of each,
upright and turned at random. `egnn` beside PointNet-like networks (`DeepSet` on coordinates) of as many parameters:
trained on the upright examples, on examples turned at random, and on invariant coordinates.
"""

import argparse
import json
import math
import multiprocessing
import re
import time

import numpy as np

from solids import KINDS, cloud, rotation, shape

CASES = {
    "same points, no noise": {"n": 1000},
    "same points, 1 % noise": {"n": 1000, "noise": 0.01},
    "same points, 5 % noise": {"n": 1000, "noise": 0.05},
    "same points, 5 % noise, n = 300": {"n": 300, "noise": 0.05},
    "same points, 5 % noise, n = 4,000": {"n": 4000, "noise": 0.05},
    "same points, 5 % noise, n = 10,000": {"n": 10_000, "noise": 0.05},
    "same points, 5 % noise, n = 30,000": {"n": 30_000, "noise": 0.05},
    "same points, 5 % noise, n = 100,000": {"n": 100_000, "noise": 0.05},
    "10 points, no noise": {"n": 10},
    "30 points, 1 % noise": {"n": 30, "noise": 0.01},
    "other points of the surface, 1 % noise": {"n": 1000, "noise": 0.01, "resampled": True},
    "20 % outliers, 1 % noise": {"n": 1000, "noise": 0.01, "outliers": 0.2},
    "70 % overlap, 1 % noise": {"n": 1000, "noise": 0.01, "overlap": 0.7},
    "100,000 points, 1 % noise": {"n": 100_000, "noise": 0.01},
}


def pair(seed, n, noise=0.0, resampled=False, outliers=0.0, overlap=1.0):
    """Two clouds, the motion between them, the size of the first, and the points of b in the order of those of a."""
    rng = np.random.default_rng(seed)
    points = shape(rng, 2 * n if resampled else n)
    a, b = (points[:n], points[n:]) if resampled else (points, points)
    size = math.sqrt(np.square(a - a.mean(0)).sum(1).mean())
    turn, shift = rotation(rng), rng.uniform(-3, 3, 3)
    ordered = b @ turn.T + shift + noise * size * rng.normal(size=b.shape)
    b = ordered[rng.permutation(len(ordered))]
    count = round(outliers * len(b))
    b[:count] = rng.uniform(b.min(0) - size, b.max(0) + size, (count, 3))
    if overlap < 1:
        b = b[np.argsort(b @ rng.normal(size=3))[: round(overlap * len(b))]]
    return a, b, turn, shift, size, ordered


def closest_points(a, b, steps=100):
    """Iterated closest points from the identity: scikit-learn's neighbours, SciPy's rotation of matched vectors."""
    from scipy.spatial.transform import Rotation
    from sklearn.neighbors import NearestNeighbors

    near = NearestNeighbors(n_neighbors=1).fit(b)
    turn, shift, last = np.eye(3), b.mean(0) - a.mean(0), math.inf
    for _ in range(steps):
        distance, index = near.kneighbors(a @ turn.T + shift)
        matched = b[index[:, 0]]
        turn = Rotation.align_vectors(matched - matched.mean(0), a - a.mean(0))[0].as_matrix()
        shift = matched.mean(0) - turn @ a.mean(0)
        if abs(last - distance.mean()) < 1e-7:
            break
        last = distance.mean()
    return turn, shift


def known_correspondence(a, b):
    """The motion by orthogonal Procrustes if row k of a and row k of b correspond."""
    from scipy.spatial.transform import Rotation

    turn = Rotation.align_vectors(b - b.mean(0), a - a.mean(0))[0].as_matrix()
    return turn, b.mean(0) - turn @ a.mean(0)


def likeliest(a, b, turn, shift, noise, size):
    """The rotation of the largest likelihood without correspondence, found from the true motion and the true noise."""
    from unpose.rigid.correspondence import Fit, Mixture

    truth = np.eye(4)
    truth[:3, :3] = turn
    a, b = (a - a.mean(0)) / size, (b - turn @ a.mean(0) - shift) / size
    fit = Mixture(a, b, noise).maximise(Fit(truth, noise**2, 1e-4), steps=60, one_to_one=True)
    return fit.pose[:3, :3]


def bound(a, noise):
    """The Cramer-Rao bound of the angle in degrees with known correspondence, noise in units of length."""
    local = a - a.mean(0)
    information = np.square(local).sum() * np.eye(3) - local.T @ local  # of a rotation vector, times the variance
    return math.degrees(noise * math.sqrt(np.trace(np.linalg.inv(information))))


def errors(turn, shift, true_turn, true_shift, a, size):
    angle = 2 * math.degrees(math.asin(min(1.0, np.linalg.norm(turn - true_turn) / math.sqrt(8))))
    centre = a.mean(0)
    return angle, float(np.linalg.norm((turn - true_turn) @ centre + shift - true_shift)) / size


def trial(job):
    from unpose.points import register

    seed, settings, with_peer = job
    a, b, turn, shift, size, ordered = pair(seed, **settings)
    began = time.process_time()
    found = register(a, b)
    seconds = time.process_time() - began
    ours = errors(found.pose[:3, :3], found.pose[:3, 3], turn, shift, a, size)
    peer = errors(*closest_points(a, b), turn, shift, a, size) if with_peer else (math.nan, math.nan)
    is_copy = set(settings) <= {"n", "noise"}
    known = errors(*known_correspondence(a, ordered), turn, shift, a, size)[0] if is_copy else math.nan
    noise = settings.get("noise", 0.0)
    least = bound(a, noise * size) if is_copy else math.nan
    is_soft = is_copy and noise > 0
    told = errors(likeliest(a, b, turn, shift, noise, size), shift, turn, shift, a, size)[0] if is_soft else math.nan
    return (*ours, found.reliable, seconds, *peer, known, least, told)


def run_register(options):
    print(f"{options.trials} motions for each line, seeds from {options.seed}")
    columns = {
        "success": ".2f", "median angle": ".3f", "95 %": ".3f", "from truth": ".3f", "its 95 %": ".3f", "known": ".3f",
        "bound": ".3f", "within 0.1°": ".2f", "known within 0.1°": ".2f", "median shift": ".2%", "within 0.5 %": ".2f",
        "reliable": ".2f", "right among them": ".2f", "CPU s": ".1f", "peer's success": ".2f",
    }  # fmt: skip
    print(f"| clouds | {' | '.join(columns)} |\n|" + "---|" * (len(columns) + 1))
    table = {}
    for name, settings in CASES.items():
        if not re.search(options.only, name):
            continue
        trials = options.trials if settings["n"] < 5000 else max(2, options.trials // 2)
        jobs = [(options.seed + k, settings, settings["n"] <= 10_000) for k in range(trials)]
        with multiprocessing.Pool(options.jobs) as workers:
            rows = np.array(workers.map(trial, jobs, chunksize=1), float)
        angle, shift, reliable, seconds, peer_angle, peer_shift, known, least, told = rows.T
        good, peer_good = (angle < 5) & (shift < 0.05), (peer_angle < 5) & (peer_shift < 0.05)
        is_told = np.isfinite(known[0])
        values = (
            good.mean(), np.median(angle), np.quantile(angle, 0.95), np.median(told), np.quantile(told, 0.95),
            np.median(known), math.sqrt(np.square(least).mean()), (angle <= 0.1).mean(),
            (known <= 0.1).mean() if is_told else math.nan, np.median(shift),
            (shift <= 0.005).mean(), reliable.mean(), good[reliable > 0].mean() if reliable.any() else math.nan,
            seconds.mean(), peer_good.mean() if np.isfinite(peer_angle[0]) else math.nan,
        )  # fmt: skip
        table[name] = dict(zip(columns, map(float, values), strict=True))
        cells = [format(value, columns[column]) for column, value in table[name].items()]
        print(f"| {name} | {' | '.join('–' if cell.startswith('nan') else cell for cell in cells)} |", flush=True)
    return table


def solids(per_kind, seed, n=192):
    rng = np.random.default_rng(seed)
    clouds = [cloud(kind, rng, n) for kind in KINDS for _ in range(per_kind)]
    return np.stack(clouds).astype(np.float32), np.repeat(np.arange(len(KINDS)), per_kind)


def fit(net, prepare, x, y, steps, device, seed, turn):
    import torch

    rng = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, total_steps=steps)
    net.train()
    for _ in range(steps):
        rows = rng.choice(len(x), 64, replace=False)
        batch = x[rows]
        if turn:
            batch = np.stack([points @ rotation(rng).T for points in batch])
        points = torch.tensor(batch, dtype=torch.float32, device=device)
        loss = torch.nn.functional.cross_entropy(net(prepare(points)), torch.tensor(y[rows], device=device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return net.eval()


def accuracy(net, prepare, x, y, device):
    import torch

    with torch.no_grad():
        parts = [net(prepare(torch.tensor(x[k : k + 100], dtype=torch.float32, device=device))).argmax(1).cpu()
                 for k in range(0, len(x), 100)]  # fmt: skip
    return float((torch.cat(parts).numpy() == y).mean())


def run_shapes(options):
    import torch

    from unpose.points import DeepSet, egnn, invariant_coordinates

    def plain():
        return DeepSet(3, len(KINDS), width=88)

    def own_frame(points):
        return invariant_coordinates(points).points

    def same(points):
        return points

    methods = {
        "egnn, upright": (lambda: egnn(len(KINDS)), same, False),
        "PointNet-like, upright": (plain, same, False),
        "PointNet-like, turned examples": (plain, same, True),
        "PointNet-like, invariant coordinates": (plain, own_frame, False),
    }
    table = {}
    print("| trained on | parameters | upright | turned | loss |\n|---|---|---|---|---|")
    for name, (make, prepare, turn) in methods.items():
        results = []
        for seed in range(options.seeds):
            torch.manual_seed(seed)
            x, y = solids(60, 100 + seed)
            test, labels = solids(50, 900 + seed)
            rng = np.random.default_rng(seed)
            turned = np.stack([points @ rotation(rng).T for points in test]).astype(np.float32)
            net = fit(make().to(options.device), prepare, x, y, options.steps, options.device, seed, turn)
            results.append([accuracy(net, prepare, each, labels, options.device) for each in (test, turned)])
        upright, tilted = np.mean(results, 0)
        count = sum(parameter.numel() for parameter in net.parameters())
        table[name] = {"parameters": count, "upright": upright, "turned": tilted, "runs": results}
        print(
            f"| {name} | {count:,} | {upright:.3f} | {tilted:.3f} | {100 * (upright - tilted):.1f} points |", flush=True
        )
    return table


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["register", "shapes"])
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="lines of the table whose name this regular expression matches")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out")
    options = parser.parse_args()
    table = {"register": run_register, "shapes": run_shapes}[options.what](options)
    if options.out:
        with open(options.out, "w") as file:
            json.dump(table, file, indent=1)


if __name__ == "__main__":
    main()
