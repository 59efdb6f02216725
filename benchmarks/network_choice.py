"""Measure what a training step of each network costs at several image sizes, relative to ``group_cnn``.

    python benchmarks/network_choice.py [--sizes 64 128 224] [--batch 2] [--repeats 2] [--out FILE]

One step is a forward and a backward pass in training mode on the CPU, with the group c4 and random images of one
channel. ``gsa_net`` and ``group_cnn`` have about 44,000 parameters, ``swivel_net`` its default size; with ``stem=4``
the first layer makes the maps four times smaller. The networks take turns, so that the load of the machine falls on all
of them; the fastest of the repeats counts. Times are CPU-seconds, which other programs disturb less than the clock on
the wall; compare ratios.
"""

import argparse
import json
import platform
import time
from pathlib import Path

import torch

from unpose.nn import count_parameters, create_network

NETWORKS = {
    "group_cnn": {},
    "swivel_net": {},
    "gsa_net": {},
    "group_cnn, stem=4": {"stem": 4},
    "gsa_net, stem=4": {"stem": 4},
}


def build(name, size):
    options = {"group": "c4", "in_channels": 1, "n_classes": 10, "image_size": size} | NETWORKS[name]
    return create_network(name.partition(",")[0], **options)


def cpu_seconds(network, images):
    start = time.process_time()
    network(images).sum().backward()
    return time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 128, 224])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", default="docs/benchmarks/network-choice.json")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = []
    print("| pixels | network | parameters | CPU-seconds per step | times group_cnn |\n|---|---|---|---|---|")
    for size in options.sizes:
        networks = {name: build(name, size) for name in NETWORKS}
        images = torch.rand(options.batch, 1, size, size)
        for network in networks.values():
            cpu_seconds(network, images[:1, :, :32, :32])  # compiles the kernels
        times = {name: [] for name in NETWORKS}
        for _ in range(options.repeats):
            for name, network in networks.items():
                times[name].append(cpu_seconds(network, images))
        for name, network in networks.items():
            seconds, ratio = min(times[name]), min(times[name]) / min(times["group_cnn"])
            parameters = count_parameters(network)
            rows.append({"size": size, "network": name, "parameters": parameters, "seconds": seconds, "ratio": ratio})
            print(f"| {size} | `{name}` | {parameters:,} | {seconds:.3f} | {ratio:.2f} |", flush=True)
    about = {"machine": platform.processor() or platform.machine(), "threads": torch.get_num_threads()}
    about |= {"torch": torch.__version__, "batch": options.batch, "repeats": options.repeats, "group": "c4"}
    Path(options.out).write_text(json.dumps({"about": about, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
