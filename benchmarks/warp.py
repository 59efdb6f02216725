"""Speed of warping: one pose shared by all images, one pose per image, and torch's own bicubic sampler.

    python benchmarks/warp.py [--device cpu] [--out warp.json]

A thousand images of 40 pixels, one thread on the CPU, median of nine rounds. `grid_sample` uses another kernel
(a = -0.75) and is included for its speed only.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from unpose.groups import parse
from unpose.images import source_points, warp


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="warp.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(1000, 1, 40, 40, generator=generator).to(options.device)
    pose = parse("se2").random(1, generator=generator)[0].to(options.device)
    each = pose.expand(1000, 3, 3)
    unit = source_points(each, (40, 40)) / 20

    def torch_sampler():
        torch.nn.functional.grid_sample(images, unit, mode="bicubic", align_corners=False)

    def differentiable():
        # The same sums with PyTorch's gather, which is what differentiable sampling costs.
        with torch.enable_grad():
            warp(images.requires_grad_(), each)
        images.requires_grad_(False)

    methods = {
        "one pose shared by all": lambda: warp(images, pose),
        "one pose per image": lambda: warp(images, each),
        "grid_sample, points given": torch_sampler,
        "differentiable": differentiable,
    }
    times = {name: [] for name in methods}
    for method in methods.values():
        method()
    for _ in range(9):
        for name, method in methods.items():
            start = time.perf_counter()
            method()
            if options.device == "cuda":
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - start)
    median = {name: float(np.median(values)) for name, values in times.items()}
    shared = median["one pose shared by all"]
    for name, value in median.items():
        print(f"{name:28} {1e3 * value:8.2f} ms   {value / shared:6.1f} times the shared path")
    Path(options.out).write_text(json.dumps({"device": options.device, "seconds": median}, indent=1))


if __name__ == "__main__":
    main()
