"""Many images: time, memory, disk, accuracy and recall of the search, from 10,000 images to a million.

    UNPOSE_DATA=/path/to/arrays python benchmarks/scale.py [--n 10000,30000,100000,300000] [--sets digits,plankton]
                                    [--threads 2] [--memory 2GB] [--device cuda] [--queries 100] [--deformation 1]
                                    [--out scale.json]

Images of 40 pixels are drawn again and again from a public set, each time at a new pose and deformed by smooth random
displacements of about one pixel (otherwise the neighbours of an image would be its own copies), and written to one
file of bytes, from which they are read in pieces. Every row is a process of its own: InvariantClustering at the true
number of classes, from the file to averages and poses; the search for neighbours is the first part of it. Time is
wall-clock and processor seconds; machines are shared, so the exponents are fitted to processor seconds. The peak is the
largest resident set of the process as the kernel counts it, the disk what the checkpoints take. ACC is the accuracy
under the best matching of clusters and classes. Recall is the share of the ten nearest of an exhaustive search over all
images and poses that the index finds, for some evenly spaced images, and the ratio that of the mean distances of the
ten: 1.02 means that what is found instead is 2 % farther away. The exhaustive search also ranks candidates on a grid of
poses before it refines some, so it misses neighbours, too: all pairs that either search lists are aligned anew, and the
share of the ten nearest of these is given for the index and for the exhaustive search. All of this is measured in a
process of its own.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from arrays import load
from unpose import InvariantClustering
from unpose.align import Search, align, nearest
from unpose.cluster import agreement_with_classes
from unpose.cluster.light import normalise_light
from unpose.groups import parse_continuous
from unpose.images import as_batch, sample, source_points

SIDE = 40
SEARCH = ("describe", "candidates", "compare", "descend0", "descend1", "refine")


def originals(name):
    """uint8 images and classes of a set."""
    if name == "plankton":
        x, y = load("plankton_ndsb.npz", "x", "y")
        frequent = np.argsort(-np.bincount(y), kind="stable")[:20]
        rows = np.isin(y, frequent)
        return x[rows], np.unique(y[rows], return_inverse=True)[1]
    parts = load("mnist.npz", "x_train", "x_test", "y_train", "y_test")
    return np.concatenate(parts[:2]), np.concatenate(parts[2:]).astype(np.int64)


def deformation(n, generator):
    """Smooth random displacements of the pixels, (n, SIDE, SIDE, 2), of unit variance."""
    small = torch.randn(n, 2, 9, 9, generator=generator)
    fine = torch.nn.functional.interpolate(small, size=(SIDE, SIDE), mode="bicubic", align_corners=True)
    return (fine / fine.std()).movedim(1, -1)


def write_posed(name, n, path, device, strength, seed=0):
    """Write n posed images to a file of bytes (n, SIDE, SIDE), and return their classes."""
    x, y = originals(name)
    rng, generator = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    rounds = [rng.permutation(len(x)) for _ in range(-(-n // len(x)))]
    chosen = np.concatenate(rounds)[:n]
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(n, SIDE, SIDE))
    for start in range(0, n, 2**13):
        rows = chosen[start : start + 2**13]
        poses = parse_continuous("se2").random(len(rows), generator=generator, dtype=torch.float64, max_shift=4.0)
        moves = strength * deformation(len(rows), generator).to(device)
        points = source_points(poses.to(device).float(), (SIDE, SIDE)) + moves
        batch = torch.from_numpy(x[rows])[:, None].to(device).float() / 255
        moved = sample(batch, points).clamp(0, 1) * 255
        out[start : start + len(rows)] = moved[:, 0].round().byte().cpu().numpy()
    out.flush()
    return y[chosen]


class Watched(InvariantClustering):
    """Says what its clusters are as soon as they are known, before averages."""

    def _set_averages(self, batch, rows, labels, *rest):
        self.on_labels(rows, labels)
        super()._set_averages(batch, rows, labels, *rest)


class Stopwatch:
    """Wall-clock and processor seconds of the stages that are reported, also written to a file as they come."""

    def __init__(self, path=None):
        self.path, self.spent, self.more = path, {}, {}
        self.last = time.time(), time.process_time()

    def __call__(self, stage, done, total):
        self.switch(stage)

    def switch(self, stage):
        now = time.time(), time.process_time()
        old = self.spent.setdefault(stage, [0.0, 0.0])
        for i in range(2):
            old[i] += now[i] - self.last[i]
        self.last = now
        if self.path:
            peaks = {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}
            peaks |= {"peak_device": torch.cuda.max_memory_allocated()} if torch.cuda.is_available() else {}
            Path(self.path).write_text(json.dumps({"stages": self.spent, **peaks, **self.more}))


class Folder:
    """Checkpoints in files."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def load(self, name):
        path = self.folder / f"{name}.npz"
        return dict(np.load(path)) if path.exists() else None

    def store(self, name, arrays):
        np.savez(self.folder / f"{name}.npz", **arrays)

    def size(self):
        return sum(path.stat().st_size for path in self.folder.iterdir())


def work(options):
    """Cluster one set of images, in this process."""
    images, classes = np.load(options.images, mmap_mode="r"), np.load(options.classes)
    torch.set_num_threads(options.threads)
    watch, folder = Stopwatch(options.partial), Folder(options.folder)
    model = Watched(
        int(classes.max()) + 1, features="pixels", memory=options.memory, device=options.device, n_jobs=options.threads
    )

    def on_labels(rows, labels):
        watch.more["acc"] = float(agreement_with_classes(classes[rows], labels)["accuracy"])
        watch.more["counted"] = len(rows)
        watch.switch("read out")

    model.on_labels = on_labels
    model.fit(images, progress=watch, checkpoints=folder if options.checkpoints else None)
    watch.switch("rest")
    near, queries = model.neighbours_, np.linspace(0, len(images) - 1, options.queries).astype(np.int64)
    np.savez(options.found, queries=queries, indices=near.indices[queries], distances=near.distances[queries])
    own = classes[near.indices] == classes[:, None]
    total = [sum(part[i] for name, part in watch.spent.items() if name in SEARCH) for i in range(2)]
    used = resource.getrusage(resource.RUSAGE_SELF)
    row = {
        "wall": round(sum(part[0] for part in watch.spent.values()), 1),
        "cpu": round(used.ru_utime + used.ru_stime, 1),
        "search": [round(each, 1) for each in total],
        "stages": {name: [round(each, 1) for each in part] for name, part in watch.spent.items()},
        "peak": used.ru_maxrss * 1024,
        "disk": folder.size(),
        "counted": watch.more["counted"],
        "acc": round(float(agreement_with_classes(classes, model.labels_)["accuracy"]), 4),
        "same_class": [round(float(own[:, :k].mean()), 4) for k in (1, 8)],
    }
    if torch.device(options.device).type == "cuda":
        row["peak_device"] = torch.cuda.max_memory_allocated()
    print(json.dumps(row))


def recall(options):
    """Compare with an exhaustive search for some of the images, in this process."""
    images, found = np.load(options.images, mmap_mode="r"), np.load(options.found)
    queries = found["queries"]
    search = Search(group="perspective", max_scale=1.0, contrast="gain", device=options.device, n_jobs=options.threads)
    light = [normalise_light(as_batch(each), "ignore").movedim(1, -1) for each in (images[queries], np.asarray(images))]
    exact = nearest(light[0], 11, others=light[1], search=search)  # as InvariantClustering searches by default
    others = np.stack([np.flatnonzero(near != query)[:10] for query, near in zip(queries, exact.indices, strict=True)])
    theirs, far = (np.take_along_axis(each, others, axis=1) for each in (exact.indices, exact.distances))
    mine, near = found["indices"][:, :10], found["distances"][:, :10]
    both = [np.union1d(*lists) for lists in zip(mine, theirs, strict=True)]
    at = np.repeat(np.arange(len(both)), [len(each) for each in both])
    again = align(light[1][np.concatenate(both)], light[0][at], search=search).distances
    best = [each[np.argsort(again[at == row], kind="stable")[:10]] for row, each in enumerate(both)]
    hits = [
        np.mean([np.isin(one, other).mean() for one, other in zip(*lists, strict=True)])
        for lists in ((theirs, mine), (best, mine), (best, theirs))
    ]
    ratio = (near.mean(1) / far.mean(1)).mean()
    shares = dict(zip(("recall", "index", "exhaustive"), (round(float(each), 4) for each in hits), strict=True))
    print(json.dumps(shares | {"ratio": round(float(ratio), 4)}))


def measure(name, n, options):
    """One row, from processes of their own."""
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        paths = {key: str(Path(folder) / f"{key}.np{'z' if key == 'found' else 'y'}") for key in PATHS}
        (Path(folder) / "checkpoints").mkdir()
        np.save(paths["classes"], write_posed(name, n, paths["images"], options.device, options.deformation))
        row = {"set": name, "n": n}
        for part in ("work", "recall") if options.queries else ("work",):
            command = [sys.executable, __file__, "--part", part, "--folder", str(Path(folder) / "checkpoints")]
            for key in ("threads", "device", "queries", "memory", "partial"):
                command += [f"--{key}", str(getattr(options, key))] if getattr(options, key) else []
            command += ["--checkpoints"] if options.checkpoints else []
            for key, path in paths.items():
                command += [f"--{key}", path]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                row[f"{part}_failed"] = (done.stderr or "killed").strip()[-2000:]
                print(f"{name} {n}: {part} failed: {row[f'{part}_failed']}", file=sys.stderr)
                break
            row |= json.loads(done.stdout.splitlines()[-1])
            print(json.dumps(row), file=sys.stderr, flush=True)  # a run that is ended early has said what it found
        return row


PATHS = ("images", "classes", "found")


def exponent(rows, seconds):
    """Exponent of processor seconds in the number of images, by least squares in the logarithms."""
    return round(float(np.polyfit(np.log([row["n"] for row in rows]), np.log([seconds(row) for row in rows]), 1)[0]), 3)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", default="10000,30000,100000,300000")
    parser.add_argument("--sets", default="digits,plankton")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--memory")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--deformation", type=float, default=1.0, help="standard deviation of displacements in pixels")
    parser.add_argument("--checkpoints", action="store_true", help="store checkpoints, and count their bytes")
    parser.add_argument("--partial", help="file for the stages of the row in progress")
    parser.add_argument("--scratch", help="folder for the images; by default that of temporary files")
    parser.add_argument("--out", default="scale.json")
    for name in ("part", "folder", *PATHS):
        parser.add_argument(f"--{name}", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        {"work": work, "recall": recall}[options.part](options)
        return
    about = {
        "machine": platform.machine(), "cores": os.cpu_count(), "threads": options.threads, "device": options.device,
        "memory": options.memory, "torch": torch.__version__, "command": " ".join(["python", *sys.argv]),
    }  # fmt: skip
    rows, exponents = [], {}
    columns = ["set", "images", "s (CPU s)", "of which search", "peak GB", "disk GB", "ACC", "recall of 10", "ratio"]
    columns += ["of both: index", "exhaustive"]
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    for name in options.sets.split(","):
        for n in map(int, options.n.split(",")):
            row = measure(name, n, options)
            rows.append(row)
            if "acc" in row:
                shown = [f"{row['wall']:.0f} ({row['cpu']:.0f})", f"{row['search'][0]:.0f} ({row['search'][1]:.0f})"]
                shown += [f"{row['peak'] / 1e9:.2f}", f"{row['disk'] / 1e9:.2f}", f"{row['acc']:.3f}"]
                shown += [f"{row[key]:.3f}" if key in row else "" for key in ("recall", "ratio", "index", "exhaustive")]
                print(f"| {name} | {n:,} | {' | '.join(shown)} |", flush=True)
            Path(options.out).write_text(json.dumps({"about": about, "rows": rows, "exponents": exponents}, indent=1))
        done = [row for row in rows if row["set"] == name and "acc" in row]
        if len(done) > 1:
            exponents[name] = [exponent(done, lambda row: row["cpu"]), exponent(done, lambda row: row["search"][1])]
            print(
                f"{name}: processor time grows with exponent {exponents[name][0]}, {exponents[name][1]} in the search"
            )
    Path(options.out).write_text(json.dumps({"about": about, "rows": rows, "exponents": exponents}, indent=1) + "\n")


if __name__ == "__main__":
    main()
