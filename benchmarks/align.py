"""How often the search finds the right pose, how fast, in how much memory, and how stable its neighbours are.

    UNPOSE_DATA=/path/to/arrays python benchmarks/align.py [--only find,speed,memory,invariance,prune] [--quick]
                                                           [--out align.json]

find        success and accuracy of ``align`` on images at known random poses
speed       pairs per second on one core, beside our reading of the published descent and other registration packages
memory      peak memory and time of ``nearest`` on many images, in a separate process
invariance  fraction of every image's neighbours that stay when all images get new random poses
prune       recall and speed of the stage that compares centred images (``candidates``) against the exhaustive search

Success: with the moving image warped by the pose found, its NCC with the fixed image is at least 0.95 times that at the
true pose. Copies are resampled as in the search, so an original fits its copy exactly at the true pose; with "both
posed" it does not, and errors include those of sampling. Times are wall clock after a warm-up; methods that are
compared run in turn, and the median round is reported. Claims are ratios within one run. Packages that are not
installed, or fail, are listed with the reason.
"""

import argparse
import contextlib
import json
import math
import os
import platform
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numba
import numpy as np
import torch
from threadpoolctl import threadpool_limits

import peers
from arrays import load
from unpose.align import Search, align, nearest
from unpose.align.coarse import make_plan
from unpose.align.descent import Bounds, descend
from unpose.align.kernels.search_cpu import best_poses
from unpose.data import posed
from unpose.groups import parse
from unpose.images import as_batch, from_batch, warp

ROUNDS = 3
UPRIGHT_MATTERS = (2, 3, 4, 5, 7)
"""Digits without symmetry: only for these is an angle error meaningful."""
VIEWS, ANGLES = 49, 64
"""Size of the kernel benchmark: shifts on a grid of 7 x 7, and angles."""

# ------------------------------------------------------------------------------------------------------ data


def on_canvas(images, size):
    """Images as float32 in [0, 1], padded around the centre: (n, h, w[, c]) -> (n, size, size[, c])."""
    rows, columns = ((size - side) // 2 for side in images.shape[1:3])
    spread = [(0, 0), (rows, rows), (columns, columns), (0, 0)][: images.ndim]
    return np.pad(images.astype(np.float32) / 255, spread)


def digits(count):
    """Test digits evenly from the file, with training digits if there are too few, on 40 pixels; and their labels."""
    images, labels = load("mnist.npz", "x_test", "y_test")
    if count > len(images):
        more, names = load("mnist.npz", "x_train", "y_train")
        images, labels = np.concatenate([images, more[:count]]), np.concatenate([labels, names[:count]])
    pick = np.arange(count) * (len(images) // count)
    return on_canvas(images[pick], 40), labels[pick].astype(int)


def photographs(count):
    """Colour photographs in a disc with a soft edge, so that rotations lose nothing, on a canvas of 40 pixels."""
    (images,) = load("cifar10_test.npz", "x_test")
    radius = np.hypot(*(np.mgrid[:32, :32] - 15.5))
    disc = np.clip((15.5 - radius) / 3, 0, 1)
    return on_canvas(images[:count] * disc[..., None], 40)


def cluttered(count):
    """Digits among fragments of digits, 40 pixels on a canvas of 56."""
    (images,) = load("mnist_cluttered_translated.npz", "x_test")
    return on_canvas(images[:count], 56)


def reach(shift):
    """Length of the longest shift of up to `shift` pixels along each axis."""
    return math.ceil(10 * shift * math.sqrt(2)) / 10


# ---------------------------------------------------------------------------------------------------- shared


def warped_image(image, pose):
    """One image (h, w[, c]) warped by a pose."""
    warped = warp(as_batch(image[None]), torch.as_tensor(np.asarray(pose))[None])
    return from_batch(warped, channels=image.ndim == 3)[0]


def successes(moving, fixed, poses, true_poses):
    return np.array([peers.success(*pair, warped_image) for pair in zip(moving, fixed, poses, true_poses, strict=True)])


def claim(what, value, least=None, most=None):
    """A claimed value with its threshold, and whether it is met."""
    met = (least is None or value >= least) and (most is None or value <= most)
    bar = f">= {least:g}" if least is not None else f"<= {most:g}"
    return {"claim": what, "value": float(value), "bar": bar, "met": bool(met)}


def show(title, rows, claims):
    """Print one table; columns in the order in which rows first name them."""
    print(f"\n{title}")
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names] + [[_cell(row.get(name, "")) for name in names] for row in rows]
    widths = [max(len(line[i]) for line in cells) for i in range(len(names))]
    for line in cells:
        print("  " + "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())
    for entry in claims:
        verdict = "met" if entry["met"] else "MISSED"
        print(f"  {verdict:6s}  {entry['claim']}: {_cell(entry['value'])} (bar {entry['bar']})")


def _cell(value):
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"
    return str(value)


@contextlib.contextmanager
def one_core():
    """Limit torch, BLAS, OpenMP and numba to one thread."""
    before = torch.get_num_threads(), numba.get_num_threads()
    torch.set_num_threads(1)
    numba.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before[0])
        numba.set_num_threads(before[1])


def take_turns(methods, rounds=ROUNDS):
    """Time methods in turn: {name: call} -> {name: (result, seconds of each round, CPU seconds per second)}.

    The first call of each is its warm-up. The result of a method that fails is its exception.
    """
    taken = {name: (None, [], 0.0) for name in methods}
    for turn in range(rounds + 1):
        for name, call in methods.items():
            if isinstance(taken[name][0], Exception):
                continue
            start, cpu = time.perf_counter(), time.process_time()
            try:
                result = call()
            except Exception as error:  # reported in the table
                traceback.print_exc()
                taken[name] = (error, [], 0.0)
                continue
            seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
            taken[name] = (result, taken[name][1] + [seconds] * (turn > 0), cpu / seconds)
    return taken


# ------------------------------------------------------------------------------------------------------ find


def find(options):
    n, few = (200, 100) if options.quick else (2000, 1000)
    scene, labels = digits(n)
    rows, claims = [], []

    def task(name, images, group, shift, least, *, both=False, names=None, **scale):
        """Align originals to posed copies, or with `both` one copy to another, each moved half as far."""
        bounds = {"max_shift": shift / 2 if both else shift, **scale}
        copies = posed(images, group, random_state=1, **bounds)
        moving, true = images, copies.poses
        if both:
            first = posed(images, group, random_state=2, **bounds)
            moving, true = first.images, copies.poses @ np.linalg.inv(first.poses)
        settings = {"group": group, "max_shift": reach(shift), **scale}
        align(moving[:2], copies.images[:2], **settings)  # compiles
        start = time.perf_counter()
        found = align(moving, copies.images, **settings)
        seconds = time.perf_counter() - start
        good = successes(moving, copies.images, found.poses, true)
        row = {"task": name, "pairs": len(images), "success %": 100 * good.mean()}
        side = np.sign(np.linalg.det(found.poses)) == np.sign(np.linalg.det(true))
        if "mirror" in group:
            row["right side too %"] = 100 * (good & side).mean()
        claims.append(claim(f"{name}: success %", 100 * (good & side).mean(), least=least))
        row |= {"converged %": 100 * np.mean(found.converged), "pairs/s": len(images) / seconds}
        if names is not None:
            clear = np.isin(names, UPRIGHT_MATTERS)
            pairs = zip(found.poses[clear], true[clear], strict=True)
            angle, distance = np.array([peers.pose_error(*pair) for pair in pairs]).T
            median, tail, place = np.median(angle), np.percentile(angle, 95), np.median(distance)
            row |= {"angle error, median": median, "95th percentile": tail, "shift error, median": place}
            which = f"{name}, {', '.join(map(str, UPRIGHT_MATTERS))}"
            claims.append(claim(f"{which}: median angle error, degrees", median, most=0.5))
            claims.append(claim(f"{which}: 95th percentile of the angle error, degrees", tail, most=2.0))
            claims.append(claim(f"{which}: median shift error, pixels", place, most=0.1))
        rows.append(row)

    task("digits, se2", scene, "se2", 6.0, 99.0, names=labels)
    task("digits, se2, both posed", scene, "se2", 6.0, 99.0, both=True, names=labels)
    task("digits, similarity", scene, "similarity", 6.0, 97.0, max_scale=1 / 0.7)
    task("digits, se2+mirror", scene, "se2+mirror", 6.0, 98.0)
    task("photographs, colour", photographs(few), "se2", 3.0, 99.0)
    task("cluttered digits", cluttered(few), "se2", 6.0, 90.0)
    return rows, claims


# ----------------------------------------------------------------------------------------------------- speed


def kernel_problem(n, m):
    """Random coefficients for the all-pairs kernel: as many per angular frequency as the basis has for digits."""
    starts = np.cumsum([0, 7, 8, 8, 8, 7, 6, 6, 5, 5, 4, 3, 3, 2, 2, 1])
    rng = np.random.default_rng(0)

    def draw(*shape):
        parts = rng.standard_normal((2, *shape, int(starts[-1])), dtype=np.float32)
        return (parts[0] + 1j * parts[1]).astype(np.complex64)

    return draw(n, VIEWS), draw(m), starts, ANGLES


def run_descent(moving, fixed):
    """Our reading of the published descent from the identity: (n, h, w) twice -> poses (n, 3, 3)."""
    images, targets = (torch.from_numpy(part)[:, None] for part in (moving, fixed))
    problem, weights = torch.arange(len(images)), torch.ones(len(images))
    settings = {"n_steps": 30, "bounds": Bounds(15.0)}
    return descend(images, problem, weights, parse("se2"), targets=targets, **settings).poses.numpy()


def speed(options):
    n, given, few = (600, 200, 40) if options.quick else (1000, 500, 200)
    shift = 6.0
    scene, _ = digits(n)
    copies = posed(scene, "se2", random_state=1, max_shift=shift)
    fixed, true = copies.images, copies.poses
    common = {"group": "se2", "max_shift": reach(shift), "n_jobs": 1}

    def all_pairs(refine):
        return nearest(fixed, 1, others=scene, refine=refine, **common)

    def peer(function):
        pairs = zip(scene[:few], fixed[:few], strict=True)
        return np.stack([function(*pair) for pair in pairs])

    kernel = kernel_problem(*((128, 256) if options.quick else (256, 512)))
    methods = {
        "ours, all pairs": lambda: all_pairs(refine=False),
        "ours, all pairs, refined": lambda: all_pairs(refine=True),
        "ours, given pairs": lambda: align(scene[:given], fixed[:given], **common).poses,
        "published descent": lambda: run_descent(scene[:few], fixed[:few]),
    }
    pairs = dict(zip(methods, (n * n, n * n, given, few), strict=True))
    rows, claims, rates = [], [], {}
    for name, function in peers.available().items():
        if callable(function):
            methods[name], pairs[name] = (lambda function=function: peer(function)), few
        else:
            rows.append({"method": name, "note": f"not run: {function}"})
    kernels = {"kernel alone": lambda: best_poses(*kernel), "kernel in numpy": lambda: peers.numpy_best_poses(*kernel)}
    pairs |= dict.fromkeys(kernels, len(kernel[0]) * len(kernel[1]))
    with one_core():
        taken = take_turns(methods) | take_turns(kernels)
    for name, (result, seconds, cores) in taken.items():
        if isinstance(result, Exception):
            rows.append({"method": name, "note": f"failed: {type(result).__name__}: {result}"})
            continue
        rates[name] = pairs[name] / np.median(seconds)
        row = {"method": name, "pairs": pairs[name], "pairs/s": rates[name]}
        row |= {"slowest": pairs[name] / max(seconds), "fastest": pairs[name] / min(seconds), "cores": cores}
        if name in kernels:
            row["note"] = f"{VIEWS} views x {ANGLES} angles, random coefficients"
        elif name.startswith("ours, all"):
            own = result.indices[:, 0] == np.arange(n)
            good = successes(scene[result.indices[:, 0]], fixed, result.poses[:, 0], true)
            row |= {"success %": 100 * (own & good).mean(), "note": f"own original first {100 * own.mean():.1f} %"}
        else:
            count = len(result)
            row["success %"] = 100 * successes(scene[:count], fixed[:count], result, true[:count]).mean()
        rows.append(row)
    for name in ("ours, all pairs", "ours, all pairs, refined"):
        if name in rates and "imreg" in rates:
            claims.append(claim(f"{name}, against imreg_dft: times as fast", rates[name] / rates["imreg"], least=1000))
    if "kernel alone" in rates and "kernel in numpy" in rates:
        ratio = rates["kernel alone"] / rates["kernel in numpy"]
        claims.append(claim("kernel against numpy: times as fast", ratio, least=3))
        ours, theirs = (taken[name][0][0] for name in kernels)
        error = np.abs(ours - theirs).max() / np.abs(theirs).max()
        claims.append(claim("kernel against numpy: largest difference of scores, relative", error, most=1e-4))
    return rows, claims


# ---------------------------------------------------------------------------------------------------- memory


def peak_memory():
    """Largest resident size so far in bytes."""
    # ru_maxrss of a child process starts at its parent's value; VmHWM does not.
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def memory_child(count):
    """Run in the separate process: print one line of JSON."""
    images = posed(digits(count)[0], "se2", random_state=1, max_shift=4.0).images
    nearest(images[:64], 1, n_jobs=1)  # compiles
    before, start = peak_memory(), time.perf_counter()
    found = nearest(images, 50, max_shift=reach(2 * 4.0), memory="2GB")
    seconds = time.perf_counter() - start
    finite = bool(np.isfinite(found.distances).all())
    print(json.dumps({"before": before, "peak": peak_memory(), "seconds": seconds, "finite": finite}))


def memory(options):
    count = 2000 if options.quick else 20000
    command = [sys.executable, __file__, "--memory-child", str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured = json.loads(done.stdout.splitlines()[-1])
    row = {"images": count, "neighbours": 50, "before GB": measured["before"] / 1e9, "peak GB": measured["peak"] / 1e9}
    row |= {"seconds": measured["seconds"], "pairs/s": count**2 / measured["seconds"], "finite": measured["finite"]}
    return [row], [claim("peak memory, GB", measured["peak"] / 1e9, most=2.0)]


# ------------------------------------------------------------------------------------------------ neighbours


def overlap(first, second):
    """Mean fraction of the first neighbours that are among the second: (n, k), (n, k') index arrays."""
    return float(np.mean([len(set(a) & set(b)) / len(a) for a, b in zip(first.tolist(), second.tolist(), strict=True)]))


def invariance(options):
    n, k, shift = (300 if options.quick else 1000), 10, 4.0
    scene, labels = digits(n)
    sets, rows = {}, []
    for what, seed in (("before", 1), ("posed afresh", 2), ("upright", None)):
        images = scene if seed is None else posed(scene, "se2", random_state=seed, max_shift=shift).images
        start = time.perf_counter()
        found = nearest(images, k, max_shift=reach(2 * shift))
        row = {"images": what, "n": n, "seconds": time.perf_counter() - start}
        sets[what] = found.indices
        row["neighbours shared with before %"] = 100 * overlap(sets["before"], sets[what])
        rows.append(row | {"nearest is the same digit %": 100 * np.mean(labels[found.indices[:, 0]] == labels)})
    share = rows[1]["neighbours shared with before %"]
    return rows, [claim(f"neighbours of {k} that stay, %", share, least=95.0)]


def prune(options):
    n, count, k, shift = (3000 if options.quick else 20000), (50 if options.quick else 200), 10, 4.0
    images = posed(digits(n)[0], "se2", random_state=1, max_shift=shift).images
    queries = np.random.default_rng(0).choice(n, count, replace=False)
    n_views = len(make_plan(images.shape[1:], Search(max_shift=reach(2 * shift))).views)

    def search(candidates, wanted=k):
        start = time.perf_counter()
        # The query is among the images and its own first neighbour: search for one more, and drop the query.
        found = nearest(images[queries], wanted + 1, others=images, max_shift=reach(2 * shift), candidates=candidates)
        seconds = time.perf_counter() - start
        kept = [[j for j in row if j != i][:k] for i, row in zip(queries, found.indices.tolist(), strict=True)]
        return np.array(kept), seconds

    nearest(images[:64], 1)  # compiles
    # Refinement reorders: the true nearest are the first of a list ten times as long.
    truth, _ = search(None, 10 * k)
    exhaustive, whole = search(None)
    rows = [{"candidates": "all", "recall %": 100 * overlap(truth, exhaustive), "seconds": whole}]
    for candidates in (max(2 * k, n // share) for share in (80, 40, 20, 14, 10)):
        found, seconds = search(candidates)
        row = {"candidates": candidates, "recall %": 100 * overlap(truth, found), "seconds": seconds}
        row |= {"agrees with all %": 100 * overlap(exhaustive, found), "times faster": whole / seconds}
        # Five views of every image, then all views of those kept.
        rows.append(row | {"times fewer pairs x views": n * n_views / (5 * n + candidates * n_views)})
    claims = [claim("recall of the exhaustive search, %", rows[0]["recall %"], least=95.0)]
    for saving in ("times faster", "times fewer pairs x views"):
        best = max((row["recall %"] for row in rows[1:] if row[saving] >= 10), default=0.0)
        claims.append(claim(f"recall where at least 10 {saving}, %", best, least=95.0))
    return rows, claims


# ------------------------------------------------------------------------------------------------------ main

SECTIONS = {"find": find, "speed": speed, "memory": memory, "invariance": invariance, "prune": prune}


def processor():
    about = Path("/proc/cpuinfo")
    lines = about.read_text().splitlines() if about.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--quick", action="store_true", help="fewer images")
    parser.add_argument("--out", default="align.json")
    parser.add_argument("--memory-child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_child:
        memory_child(options.memory_child)
        return
    chosen = [name.strip() for name in options.only.split(",")]
    if unknown := set(chosen) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    report = {
        "machine": f"{processor()}, {os.cpu_count()} cores, {platform.system()}",
        "threads": torch.get_num_threads(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
        "quick": options.quick,
        "method": __doc__.strip().split("\n\n")[-1].replace("\n", " "),
        "sections": {},
    }
    print(f"Alignment on {report['machine']}, {report['threads']} threads (speed: one), torch {torch.__version__}")
    failed = False
    for name in chosen:
        try:
            rows, claims = SECTIONS[name](options)
        except Exception:  # the other sections still count
            traceback.print_exc()
            report["sections"][name], failed = {"error": traceback.format_exc(limit=1)}, True
            continue
        show(name, rows, claims)
        report["sections"][name] = {"rows": rows, "claims": claims}
        Path(options.out).write_text(json.dumps(report, indent=1, default=float))
    Path(options.out).write_text(json.dumps(report, indent=1, default=float))
    sys.exit(failed)


if __name__ == "__main__":
    main()
