"""Duplicates: recall by alteration, precision, speed and memory of ``unpose dedupe`` beside other methods.

    UNPOSE_DATA=/path/to/arrays python benchmarks/dedupe.py [--pictures 10000] [--copies 1000] [--out FILE.json]
                                                            [--montage FILE.png] [--set cifar|plankton|cells]
    UNPOSE_DATA=/path/to/arrays python benchmarks/dedupe.py --scaling 6250,12500,25000,50000

Pictures are CIFAR-10 (the test set) at four aspect ratios, enlarged to about 128 x 128, and tiles of 240 x 180 of five
photographs that scikit-image and scikit-learn bring. Nothing was chosen on them: `dedupe_fit.py` uses training batch 1
and five other photographs. Some pictures get an altered copy of each kind. All are JPEG files in one folder, which
every method reads. A copy is found if it is in one set with its original. Precision is that of pairs. CIFAR-10 contains
duplicates of its own; those that `unpose dedupe` finds were looked at and count as right, for all methods, those that
only another method finds count as false. "By name", all of them count as false. --montage shows and lists them.

unpose            DuplicateSearch, as `unpose dedupe` runs it, with one thread
phash             `imagehash.phash`, 64 bits, a distance of at most 10, which is the default of imagededup
phash8            the same for the eight orientations by quarter turns and mirrors of every picture
cnn               pooled features of an ImageNet network and a cosine of at least 0.9, as imagededup's CNN does it
... precise       the same with the largest distance whose precision on these pictures is 0.999: chosen on the answer

imagededup itself needs torchvision and builds from source only. So its perceptual hash stands here as imagehash's, and
its network, MobileNetV3-small, is replaced by that of the extra `unpose[features]`, EfficientNet-Lite0, which takes
seven times as many multiplications. Pictures are scaled to 256 x 256 and cut to 224 x 224 as there.

Every method runs in a process of its own, one after the other or, with --jobs, at once; memory is its peak. --scaling
measures signatures and candidates alone, on averages of two random pictures of CIFAR-10, of which there are as many as
one likes.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from altered_copies import ALTERATIONS, KEPT_APART, array_pictures, cifar, tiles

LIMITS = {"phash": 10, "phash8": 10, "cnn": 0.1}
"""Largest distances at which other methods call files duplicates: the defaults of imagededup."""
PRECISE = 0.999
SAME_PICTURE = {
    (473, 8031), (509, 3431), (730, 1128), (756, 1204), (772, 2119), (1335, 5394), (1434, 5278), (1436, 7919),
    (1562, 3530), (1567, 5719), (1712, 5164), (1712, 5880), (1777, 4268), (2260, 7452), (2369, 5394), (2505, 5444),
    (2510, 4268), (2801, 5976), (3033, 6086), (3045, 4259), (3268, 6929), (3293, 9496), (3478, 6087), (3520, 8356),
    (3723, 4766), (3802, 4039), (3802, 5606), (3802, 9020), (3813, 4881), (4039, 5606), (4039, 9020), (4226, 8935),
    (4339, 9458), (4370, 6702), (4424, 7052), (4809, 7652), (5075, 8822), (5224, 9633), (5606, 9020), (6394, 9644),
    (7315, 9860), (7809, 8447),
}  # fmt: skip
"""Pairs of test images of CIFAR-10 that show one picture, in other colours, mirrored or at another scale. All pairs of
pictures that ``unpose dedupe`` found were looked at (``--montage``); three in which one picture was retouched, a rider
behind leaves and a car with another grille, are not listed."""


def make_folder(folder: Path, name: str, n_pictures: int, n_copies: int, jobs: int = 1) -> dict[str, Any]:
    """Write originals and copies as JPEG files; returns the source and the kind of every file."""
    data = Path(os.environ["UNPOSE_DATA"])
    if name == "cifar":
        photographs = tiles(KEPT_APART)
        pictures = cifar(data, "test", n_pictures - len(photographs), seed=11) + photographs
    else:
        file = {"plankton": "plankton_ndsb.npz", "cells": "chula_rbc.npz"}[name]
        pictures = array_pictures(data, file, n_pictures)
    sources, kinds = {}, {}
    for i, picture in enumerate(pictures):
        file = f"{i:06}.jpg"
        picture.save(folder / file, quality=90)
        sources[file], kinds[file] = i, "original"
    order = np.random.default_rng(7).permutation(len(pictures))
    tasks = [
        (folder, number, [(pictures[i], int(i)) for i in order[np.arange(start, start + n_copies) % len(order)]])
        for number in range(len(ALTERATIONS))
        for start in [number * n_copies]
    ]
    with ProcessPoolExecutor(jobs) as pool:
        for number, files in enumerate(pool.map(write_copies, tasks) if jobs > 1 else map(write_copies, tasks)):
            for file, i in files.items():
                sources[file], kinds[file] = i, list(ALTERATIONS)[number]
    for step in range(n_copies):
        i = int(order[-1 - step])
        file = f"{i:06}-same.jpg"
        shutil.copyfile(folder / f"{i:06}.jpg", folder / file)
        sources[file], kinds[file] = i, "same bytes"
    return {"sources": sources, "kinds": kinds, "set": name}


def write_copies(task: tuple[Path, int, list[tuple[Image.Image, int]]]) -> dict[str, int]:
    """Write the copies of one kind, with random numbers of its own; returns the source of every file."""
    folder, number, originals = task
    alter, random = list(ALTERATIONS.values())[number], np.random.default_rng([7, number])
    written = {}
    for step, (picture, i) in enumerate(originals):
        file = f"{i:06}-{number}-{step}.jpg"
        alter(picture, random).save(folder / file, quality=int(random.uniform(75, 95)))
        written[file] = i
    return written


def unpose_pairs(folder: Path) -> list[tuple[str, str]]:
    from unpose.runs.duplicates import DuplicateSearch

    with tempfile.TemporaryDirectory() as out:
        found = DuplicateSearch(Path(out), jobs=1).run([folder])
    return [(pair.one.path.name, pair.two.path.name) for each in found.sets for pair in each.relations]


def hash_distances(folder: Path, ways: int) -> list[tuple[int, str, str]]:
    """Pairs of files with the distance of their hashes, up to the limit."""
    import imagehash

    names = sorted(file.name for file in folder.iterdir())
    hashes = np.zeros((len(names), ways), np.uint64)
    for k, name in enumerate(names):
        with Image.open(folder / name) as opened:
            picture = ImageOps.exif_transpose(opened)
            for way in range(ways):
                turned = picture.rotate(90 * (way % 4), expand=True)
                turned = ImageOps.mirror(turned) if way >= 4 else turned
                bits = imagehash.phash(turned).hash.ravel()
                hashes[k, way] = np.packbits(bits).view(">u8")[0]
    pairs = []
    for start in range(0, len(names), 256):
        block = hashes[start : start + 256, 0]
        distances = np.full((len(block), len(names)), 99, np.uint8)
        for way in range(ways):
            distances = np.minimum(distances, np.bitwise_count(block[:, None] ^ hashes[None, :, way]))
        for i, j in np.argwhere(distances <= LIMITS["phash"]):
            if start + i < j:
                pairs.append((int(distances[i, j]), names[start + i], names[j]))
    return pairs


def cnn_distances(folder: Path) -> list[tuple[float, str, str]]:
    """Pairs of files with one minus the cosine of their pooled features, up to the limit."""
    import torch

    from unpose.images.imagenet import extra_network

    network, lengths = extra_network("cpu")
    names = sorted(file.name for file in folder.iterdir())
    features = np.zeros((len(names), lengths[-2]), np.float32)
    for start in range(0, len(names), 32):
        batch = []
        for name in names[start : start + 32]:
            with Image.open(folder / name) as opened:
                picture = ImageOps.exif_transpose(opened).convert("RGB").resize((256, 256), Image.Resampling.BILINEAR)
            batch.append(np.asarray(picture)[16:-16, 16:-16] / np.float32(255))
        statistics = network(torch.from_numpy(np.stack(batch)).movedim(-1, 1))
        features[start : start + 32] = statistics.split(lengths, 1)[-2].numpy()  # the means of the last maps
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    pairs = []
    for start in range(0, len(names), 256):
        distances = 1 - features[start : start + 256] @ features.T
        for i, j in np.argwhere(distances <= LIMITS["cnn"]):
            if start + i < j:
                pairs.append((float(distances[i, j]), names[start + i], names[j]))
    return pairs


def sets_of(names: list[str], pairs: list[tuple[str, str]]) -> dict[str, str]:
    """The representative of each file's set."""
    parent = {name: name for name in names}

    def find(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for one, two in pairs:
        parent[find(one)] = find(two)
    return {name: find(name) for name in names}


def figures(truth: dict[str, Any], pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Recall of each kind and precision of pairs."""
    sources, kinds = truth["sources"], truth["kinds"]
    same_name = [pair for pair in pairs if sources[pair[0]] == sources[pair[1]]]
    right = [pair for pair in pairs if is_right(truth, *pair)]
    home = sets_of(list(sources), same_name)
    recall = {}
    for kind in ("same bytes", *ALTERATIONS):
        copies = [name for name in sources if kinds[name] == kind]
        recall[kind] = float(np.mean([home[name] == home[f"{sources[name]:06}.jpg"] for name in copies]))
    count = max(len(pairs), 1)
    precision = {"precision": len(right) / count, "precision by name": len(same_name) / count}
    return {"recall": recall, "pairs": len(pairs)} | precision


def is_right(truth: dict[str, Any], one: str, two: str) -> bool:
    """Whether two files show one picture: copies of one original, or originals that are known to be the same."""
    sources = truth["sources"]
    key = min(sources[one], sources[two]), max(sources[one], sources[two])
    return key[0] == key[1] or (truth["set"] == "cifar" and key in SAME_PICTURE)


def precise_limit(truth: dict[str, Any], pairs: list[tuple[float, str, str]]) -> float:
    """The largest distance whose pairs are right often enough; -1 if there is none."""
    distances = np.array([distance for distance, *_ in pairs])
    order = np.argsort(distances, kind="stable")
    right = np.cumsum([is_right(truth, *pairs[k][1:]) for k in order])
    last = np.flatnonzero(np.diff(distances[order], append=np.inf))  # the last pair of each distance
    precise = last[right[last] >= PRECISE * (last + 1)]
    return float(distances[order[precise[-1]]]) if len(precise) else -1


def child(method: str, folder: Path, out: Path) -> None:
    """Run one method and write pairs, seconds and peak memory."""
    began, used = time.perf_counter(), time.process_time()
    if method == "unpose":
        pairs: list[Any] = unpose_pairs(folder)
    elif method == "cnn":
        pairs = cnn_distances(folder)
    else:
        pairs = hash_distances(folder, 8 if method == "phash8" else 1)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    if (status := Path("/proc/self/status")).exists():  # getrusage also counts the process that started this one
        peak = 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    seconds = {"wall": time.perf_counter() - began, "cpu": time.process_time() - used}
    out.write_text(json.dumps({"pairs": pairs, "seconds": seconds, "memory": peak}))


def montage(folder: Path, truth: dict[str, Any], pairs: list[tuple[str, str]], file: Path) -> int:
    """Draw and list the pairs of different sources that were called duplicates; returns how many there are."""
    seen, shown = set(), []
    for one, two in pairs:
        key = tuple(sorted((truth["sources"][one], truth["sources"][two])))
        if key[0] != key[1] and key not in seen:
            seen.add(key)
            shown.append((one, two))
    side, columns = 96, 6
    rows = max(1, -(-len(shown) // columns))
    sheet = Image.new("RGB", (columns * 2 * side + columns * 8, rows * (side + 8)), "white")
    for k, pair in enumerate(shown):
        for half, name in enumerate(pair):
            place = ((k % columns) * (2 * side + 8) + half * side, (k // columns) * (side + 8))
            sheet.paste(ImageOps.fit(Image.open(folder / name), (side, side)), place)
    sheet.save(file)
    file.with_suffix(".csv").write_text("".join(f"{one},{two}\n" for one, two in shown))
    return len(shown)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pictures", type=int, default=10_000)
    parser.add_argument("--copies", type=int, default=1_000)
    parser.add_argument("--set", default="cifar", choices=("cifar", "plankton", "cells"))
    parser.add_argument("--methods", default="unpose,phash,phash8,cnn")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--montage", type=Path)
    parser.add_argument("--scaling")
    parser.add_argument("--jobs", type=int, default=1, help="processes: for the files, then one for each method")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child[0], Path(args.child[1]), Path(args.child[2]))
        return
    if args.scaling:
        scaling([int(count) for count in args.scaling.split(",")], args.out)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "pictures"
        folder.mkdir()
        truth = make_folder(folder, args.set, args.pictures, args.copies, args.jobs)
        n_files = len(truth["sources"])
        results: dict[str, Any] = {}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        methods = args.methods.split(",")
        files = {method: Path(name) / f"{method}.json" for method in methods}

        def run(method: str) -> None:
            command = [sys.executable, __file__, "--child", method, str(folder), str(files[method])]
            subprocess.run(command, check=True, env=environment)

        with ThreadPoolExecutor(1 if args.jobs == 1 else len(methods)) as pool:
            list(pool.map(run, methods))
        for method, file in files.items():
            measured = json.loads(file.read_text())
            about = {
                "per_second": n_files / measured["seconds"]["cpu"], "memory": measured["memory"],
                "seconds": measured["seconds"],
            }  # fmt: skip
            if method == "unpose":
                pairs = [tuple(pair) for pair in measured["pairs"]]
                results[method] = figures(truth, pairs) | about
                if args.montage:
                    results[method]["pairs of different sources"] = montage(folder, truth, pairs, args.montage)
            else:
                scored = [tuple(pair) for pair in measured["pairs"]]
                for label, limit in ((method, LIMITS[method]), (f"{method} precise", precise_limit(truth, scored))):
                    near = [(one, two) for distance, one, two in scored if distance <= limit]
                    results[label] = figures(truth, near) | about | {"limit": limit}
    table = {"machine": platform.machine(), "files": n_files, "pictures": args.pictures, "copies": args.copies,
             "set": args.set, "results": results}  # fmt: skip
    show(table)
    if args.out:
        args.out.write_text(json.dumps(table, indent=1))


def show(table: dict[str, Any]) -> None:
    results = table["results"]
    about = f"{table['files']:,} files of {table['pictures']:,} pictures ({table['set']}), {table['copies']:,} copies"
    print(f"{about} of each kind; processor time.\n")
    print("| recall | " + " | ".join(results) + " |\n|---|" + "---|" * len(results))
    for kind in ("same bytes", *ALTERATIONS):
        print(f"| {kind} | " + " | ".join(f"{each['recall'][kind]:.3f}" for each in results.values()) + " |")
    for what, shown in (("precision of pairs", "precision"), ("by name", "precision by name"), ("pairs", "pairs")):
        digits = "," if shown == "pairs" else ".4f"
        print(f"| {what} | " + " | ".join(f"{each[shown]:{digits}}" for each in results.values()) + " |")
    print("| files per second | " + " | ".join(f"{each['per_second']:.0f}" for each in results.values()) + " |")
    print("| peak memory, MB | " + " | ".join(f"{each['memory'] / 1e6:.0f}" for each in results.values()) + " |")


def scaling(counts: list[int], out: Path | None) -> None:
    """CPU time of signatures and candidates for collections of several sizes."""
    from unpose.dedupe import describe, find_candidates
    from unpose.dedupe.search import Entries

    data = Path(os.environ["UNPOSE_DATA"])
    with np.load(data / "cifar10_test.npz") as stored:
        pixels = stored["x_test"].astype(np.float32).mean(-1) / 255
    random = np.random.default_rng(3)
    rows = []
    parts: list[Entries] = []
    described, total = 0.0, 0
    for count in counts:
        began = time.process_time()
        while total < count:
            some = min(1000, count - total)
            both = random.integers(len(pixels), size=(2, some))
            mixed: NDArray = (pixels[both[0]] + pixels[both[1]][:, :, ::-1]) / 2
            part = describe([np.kron(image, np.ones((3, 3), np.float32)) for image in mixed])
            parts.append(Entries(part.owners + total, [], part.patches[:0], part.vectors))
            total += some
        described += time.process_time() - began
        owners = np.concatenate([part.owners for part in parts])
        vectors = {name: np.concatenate([part.vectors[name] for part in parts]) for name in parts[0].vectors}
        began = time.process_time()
        candidates = find_candidates(vectors, owners)
        row = {"pictures": count, "signatures_s": described, "candidates_s": time.process_time() - began,
               "candidates": len(candidates.queries),
               "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}  # fmt: skip
        rows.append(row)
        each = {key: row[key] / count * 1e3 for key in ("signatures_s", "candidates_s")}
        if len(rows) == 1:
            print("| pictures | signatures, ms each | candidates, ms each | peak memory, MB |\n|---|---|---|---|")
        line = f"| {count:,} | {each['signatures_s']:.2f} | {each['candidates_s']:.2f} | {row['memory'] / 1e6:.0f} |"
        print(line, flush=True)
    ends = [rows[0], rows[-1]]
    power = np.log(ends[1]["candidates_s"] / ends[0]["candidates_s"]) / np.log(counts[-1] / counts[0])
    print(f"\nCandidates: time grows with the number of pictures to the power {power:.2f}.")
    if out:
        out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
