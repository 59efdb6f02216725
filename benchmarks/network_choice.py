"""Measure what a training step of each network costs at several image sizes, relative to ``group_cnn``.

    python benchmarks/network_choice.py [--sizes 32 64 112] [--batch 2] [--repeats 3] [--out network_choice.json]

One step is a forward and a backward pass in training mode on the CPU, with the group c4 and random images of one
channel. ``gsa_net`` and ``group_cnn`` have about 44,000 parameters, ``swivel_net`` its default size. The networks take
turns, so that the load of the machine falls on all of them; the fastest of the repeats counts. Compare ratios.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import torch

from unpose.nn import count_parameters, create_network

NAMES = ("group_cnn", "swivel_net", "gsa_net")


def step_seconds(network, images):
    start = time.perf_counter()
    network(images).sum().backward()
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64, 112])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", default="network_choice.json")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    print("| pixels | network | parameters | seconds per step | times group_cnn |\n|---|---|---|---|---|")
    for size in options.sizes:
        networks = {
            name: create_network(name, group="c4", in_channels=1, n_classes=10, image_size=size) for name in NAMES
        }
        images = torch.rand(options.batch, 1, size, size)
        for network in networks.values():
            step_seconds(network, images)  # compiles the kernels
        times = {name: [] for name in NAMES}
        for _ in range(options.repeats):
            for name, network in networks.items():
                times[name].append(step_seconds(network, images))
        for name, network in networks.items():
            seconds, ratio = min(times[name]), min(times[name]) / min(times["group_cnn"])
            parameters = count_parameters(network)
            rows.append({"size": size, "network": name, "parameters": parameters, "seconds": seconds, "ratio": ratio})
            print(f"| {size} | `{name}` | {parameters:,} | {seconds:.3f} | {ratio:.1f} |", flush=True)
    about = {"machine": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    about |= {"torch": torch.__version__, "batch": options.batch, "repeats": options.repeats, "group": "c4"}
    Path(options.out).write_text(json.dumps({"about": about, "results": rows}, indent=1))


if __name__ == "__main__":
    main()
