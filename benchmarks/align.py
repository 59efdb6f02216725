"""How often the search finds the right pose, how fast, and how stable its neighbours are.

    UNPOSE_DATA=/path/to/arrays python benchmarks/align.py [--only find,speed,invariance] [--quick]

find        success and accuracy of ``align`` on images at known random poses
speed       pairs per second on one core, beside our reading of the published descent and other registration packages
invariance  fraction of every image's neighbours that stay when all images get new random poses

Success: with the moving image warped by the pose found, its NCC with the fixed image is at least 0.95 times that at the
true pose. Copies are resampled as in the search, so an original fits its copy exactly at the true pose; with "both
posed" it does not, and errors include those of sampling. Rates are pairs per second of processor time after a warm-up;
methods that are compared run in turn, and the median round is reported. Compare ratios within one run. Packages that
are not installed, or fail, are listed with the reason.
"""

import argparse
import contextlib
import math
import time
import traceback

import numba
import numpy as np
import torch
from threadpoolctl import threadpool_limits

import peers
from arrays import load
from unpose.align import align, nearest
from unpose.align.descent import Bounds, descend
from unpose.data import posed
from unpose.groups import parse
from unpose.images import as_batch, from_batch, warp

ROUNDS = 3
UPRIGHT_MATTERS = (2, 3, 4, 5, 7)
"""Digits without symmetry: only for these is an angle error meaningful."""

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


def show(rows):
    """Print one Markdown table; columns in the order in which rows first name them."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    print(f"\n| {' | '.join(names)} |\n|" + "---|" * len(names))
    for row in rows:
        print(f"| {' | '.join(_cell(row.get(name, '')) for name in names)} |")


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
    """Time methods in turn: {name: call} -> {name: (result, CPU seconds of each round)}.

    The first call of each is its warm-up. The result of a method that fails is its exception.
    """
    taken = {name: (None, []) for name in methods}
    for turn in range(rounds + 1):
        for name, call in methods.items():
            if isinstance(taken[name][0], Exception):
                continue
            start = time.process_time()
            try:
                result = call()
            except Exception as error:  # reported in the table
                traceback.print_exc()
                taken[name] = (error, [])
                continue
            taken[name] = (result, taken[name][1] + [time.process_time() - start] * (turn > 0))
    return taken


# ------------------------------------------------------------------------------------------------------ find


def find(options):
    n, few = (200, 100) if options.quick else (2000, 1000)
    scene, labels = digits(n)
    rows = []

    def task(name, images, group, shift, *, both=False, names=None, **scale):
        """Align originals to posed copies, or with `both` one copy to another, each moved half as far."""
        bounds = {"max_shift": shift / 2 if both else shift, **scale}
        copies = posed(images, group, random_state=1, **bounds)
        moving, true = images, copies.poses
        if both:
            first = posed(images, group, random_state=2, **bounds)
            moving, true = first.images, copies.poses @ np.linalg.inv(first.poses)
        settings = {"group": group, "max_shift": reach(shift), **scale}
        align(moving[:2], copies.images[:2], **settings)  # compiles
        found = align(moving, copies.images, **settings)
        good = successes(moving, copies.images, found.poses, true)
        row = {"task": name, "pairs": len(images), "success %": 100 * good.mean()}
        side = np.sign(np.linalg.det(found.poses)) == np.sign(np.linalg.det(true))
        if "mirror" in group:
            row["right side too %"] = 100 * (good & side).mean()
        if names is not None:
            clear = np.isin(names, UPRIGHT_MATTERS)
            pairs = zip(found.poses[clear], true[clear], strict=True)
            angle, distance = np.array([peers.pose_error(*pair) for pair in pairs]).T
            median, tail, place = np.median(angle), np.percentile(angle, 95), np.median(distance)
            row |= {"median angle error (degrees)": median, "95th percentile": tail, "median shift error (px)": place}
        rows.append(row)

    task("digits, se2", scene, "se2", 6.0, names=labels)
    task("digits, se2, both posed", scene, "se2", 6.0, both=True, names=labels)
    task("digits, similarity", scene, "similarity", 6.0, max_scale=1 / 0.7)
    task("digits, se2+mirror", scene, "se2+mirror", 6.0)
    task("photographs, colour", photographs(few), "se2", 3.0)
    task("cluttered digits", cluttered(few), "se2", 6.0)
    return rows


# ----------------------------------------------------------------------------------------------------- speed


def run_descent(moving, fixed):
    """Our reading of the published descent from the identity: (n, h, w) twice -> poses (n, 3, 3)."""
    images, targets = (torch.from_numpy(part)[:, None] for part in (moving, fixed))
    problem, weights = torch.arange(len(images)), torch.ones(len(images))
    settings = {"n_steps": 30, "bounds": Bounds(15.0)}
    return descend(images, problem, weights, parse("se2"), targets=targets, **settings).poses.numpy()


def _rate(pairs, taken):
    return pairs / np.median(taken[1]) if taken[1] else math.nan


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

    methods = {
        "ours, all pairs": lambda: all_pairs(refine=False),
        "ours, all pairs, refined": lambda: all_pairs(refine=True),
        "ours, given pairs": lambda: align(scene[:given], fixed[:given], **common).poses,
        "published descent": lambda: run_descent(scene[:few], fixed[:few]),
    }
    pairs = dict(zip(methods, (n * n, n * n, given, few), strict=True))
    rows = []
    for name, function in peers.available().items():
        if callable(function):
            methods[name], pairs[name] = (lambda function=function: peer(function)), few
        else:
            rows.append({"method": name, "note": f"not run: {function}"})
    with one_core():
        taken = take_turns(methods)
    base = _rate(pairs["imreg"], taken["imreg"]) if "imreg" in taken else math.nan
    for name, (result, seconds) in taken.items():
        if isinstance(result, Exception):
            rows.append({"method": name, "note": f"failed: {type(result).__name__}: {result}"})
            continue
        row = {"method": name, "pairs": pairs[name], "pairs/s": pairs[name] / np.median(seconds)}
        row["times imreg_dft"] = row["pairs/s"] / base
        if name.startswith("ours, all"):
            own = result.indices[:, 0] == np.arange(n)
            good = successes(scene[result.indices[:, 0]], fixed, result.poses[:, 0], true)
            row |= {"success %": 100 * (own & good).mean(), "note": f"own original first {100 * own.mean():.1f} %"}
        else:
            count = len(result)
            row["success %"] = 100 * successes(scene[:count], fixed[:count], result, true[:count]).mean()
        rows.append(row)
    return rows


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
        found = nearest(images, k, max_shift=reach(2 * shift))
        row = {"images": what, "n": n}
        sets[what] = found.indices
        row["neighbours shared with before %"] = 100 * overlap(sets["before"], sets[what])
        rows.append(row | {"nearest is the same digit %": 100 * np.mean(labels[found.indices[:, 0]] == labels)})
    return rows


# ------------------------------------------------------------------------------------------------------ main

SECTIONS = {"find": find, "speed": speed, "invariance": invariance}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections, separated by commas")
    parser.add_argument("--quick", action="store_true", help="fewer images")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    for name in chosen:
        show(SECTIONS[name](options))


if __name__ == "__main__":
    main()
