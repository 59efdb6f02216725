"""How fast the search is on a GPU: all pairs at all poses, and batches of affine refinements.

    UNPOSE_DATA=/path/to/arrays python benchmarks/align_gpu.py [--images 20000] [--out align_gpu.json]

Digits of MNIST on 40 pixels, rotated over the full circle. `search`: all pairs at 72 angles x 25 shifts, including the
coefficients of every view, without refinement. `nearest`: the same end to end from numpy to numpy, ten neighbours each,
without and with refinement; 1-NN is the accuracy of the first neighbour's label. `refine`: two million affine
refinements of pairs of neighbours from their rigid poses. Times are wall clock with the device synchronised, after a
warm-up, the median of three.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from arrays import load
from unpose.align import Search, coarse, nearest
from unpose.align.pipeline import Job
from unpose.align.refine import PoseBounds, refine
from unpose.data import posed
from unpose.groups import parse

CHUNK = 131072


def seconds(work, repeats=3):
    work()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=20000)
    parser.add_argument("--out", default="align_gpu.json")
    options = parser.parse_args()
    digits, labels = (array[: options.images] for array in load("mnist.npz", "x_train", "y_train"))
    images = posed(digits, "se2", shape=(40, 40), max_shift=4.0, random_state=1).images
    n, shift = len(images), 4.3  # 25 shifts of the grid
    report = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "images": n}
    print(f"{report['device']}, torch {torch.__version__}, {n} images of 40 px")

    job = Job(images, None, Search(max_shift=shift, device="cuda"))

    def search():
        for _ in coarse.search_all_pairs(job.index, job.coarse_moving, job.fixed_coefficients):
            pass

    took = seconds(search)
    poses = f"{len(job.plan.angles)} angles x {len(job.plan.views)} shifts"
    report["search"] = {"poses": poses, "seconds": took, "pairs per second": n * n / took}
    print(f"search   {n * n / took / 1e6:8.0f} million pairs/s at {poses} ({took:.2f} s; bar: 100 million)")

    for name, refined in (("coarse", False), ("refined", True)):
        found = nearest(images, 10, max_shift=shift, device="cuda", refine=refined)
        took = seconds(lambda refined=refined: nearest(images, 10, max_shift=shift, device="cuda", refine=refined), 1)
        accuracy = float((labels[found.indices[:, 0]] == labels).mean())
        report[f"nearest, {name}"] = {"seconds": took, "1-NN": accuracy}
        print(f"nearest  {took:8.2f} s end to end, {name}; 1-NN {accuracy:.4f}")

    pairs = 2_000_000 // (10 * n)
    moving = torch.from_numpy(found.indices).flatten().repeat(pairs).cuda()
    fixed = torch.arange(n).repeat_interleave(10).repeat(pairs).cuda()
    start = torch.from_numpy(found.poses).float().flatten(0, 1).repeat(pairs, 1, 1).cuda()
    group, done = parse("affine"), []

    def refinements():
        done.clear()
        for first in range(0, len(moving), CHUNK):
            part = slice(first, first + CHUNK)
            _, converged = refine(job.moving[moving[part]], job.fixed[fixed[part]], start[part], group,
                                  bounds=PoseBounds(max_shift=shift, max_scale=1.5))  # fmt: skip
            done.append(converged.float().mean().item())

    took = seconds(refinements)
    report["refine"] = {"pairs": len(moving), "seconds": took, "converged": float(np.mean(done))}
    report["peak memory, bytes"] = torch.cuda.max_memory_allocated()
    print(f"refine   {took:8.2f} s for {len(moving):,} affine refinements (bar: 5 s); {np.mean(done):.1%} converged")
    print(f"peak GPU memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    Path(options.out).write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
