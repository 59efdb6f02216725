"""Measure a training step of the rotated-MNIST attention network: fused kernels, plain PyTorch, and all scores stored.

    python benchmarks/attention.py [--rounds 5] [--out attention.json]
    python benchmarks/attention.py --device cuda

The published network (20 channels, 9 heads of 10, windows of 5, images of 28): forward, cross-entropy, backward and a
step of Adam, with the paper's dropout of weights and of values. `direct` computes the paper's double sum over the group
with every score in memory (the layer of group_attention_memory.py). `plain` is the library in PyTorch operations,
`fused` in compiled kernels.

Every figure is measured in its own process. On the CPU: 4 rotations, batch 8, two threads, with wall-clock and CPU
seconds and the growth of the resident set. Then one layer beside two bounds, the counted operations at the rate of a
matrix product and the bytes of the maps at the rate of a copy, both measured here; and an image of 256 x 256 pixels
with 8 rotations, forward and as a training step. On CUDA: 4, 8 and 12 rotations at batch 64, and the same bounds, where
a layer is replayed as a CUDA graph; `captured` is the fused step in mixed precision, replayed, which is how
`unpose.train` runs it.

The paper's operator sums over the queries of all group elements, our default does not, so a comparison with `direct`
or with the released code mixes two gains. `--only-sums` therefore measures both operators in the same fused kernels:
one layer, forward and backward, for 4 and 8 rotations. It is also part of every run.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from group_attention_memory import CHANNELS, HEAD_CHANNELS, HEADS, WINDOW, DirectLayer
from unpose.groups import parse
from unpose.nn import (
    GroupSelfAttention,
    LiftingSelfAttention,
    estimate_memory,
    gsa_net,
    implementation,
)
from unpose.nn.functional.group_attention import projected_attention
from unpose.train.cuda_graph import capture

SIZE = 28


def with_direct_layers(network, group):
    """Replace the attention layers of a network by ones that store all scores."""
    for parent in list(network.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LiftingSelfAttention):
                setattr(parent, name, DirectLayer(child))
            elif isinstance(child, GroupSelfAttention):
                options = {"window": WINDOW, "attention_dropout": child.attention_dropout, "mode": "paper"}
                options |= {"heads": HEADS, "head_channels": HEAD_CHANNELS}
                setattr(parent, name, DirectLayer(GroupSelfAttention(group, CHANNELS, CHANNELS, **options)))
    return network


def make(method, group, size, device):
    torch.manual_seed(0)
    network = gsa_net(group, 1, 10, size)
    if method == "direct":
        network = with_direct_layers(network, group)
    return network.to(device).train()


class Step:
    """A training step on fixed random images."""

    def __init__(self, network, batch, size, device, mixed=False):
        generator = torch.Generator().manual_seed(1)
        self.network, self.device, self.mixed = network, device, mixed
        # Options that a CUDA graph can capture; the CPU does not have them.
        options = {"lr": torch.tensor(1e-3), "fused": True, "capturable": True} if device == "cuda" else {"lr": 1e-3}
        self.optimizer = torch.optim.Adam(network.parameters(), **options)
        self.images = torch.rand(batch, 1, size, size, generator=generator).to(device)
        self.labels = torch.randint(10, (batch,), generator=generator).to(device)

    def __call__(self):
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.mixed):
            outputs = self.network(self.images)
        torch.nn.functional.cross_entropy(outputs.float(), self.labels).backward()
        self.optimizer.step()

    def forward(self):
        with torch.no_grad():
            self.network(self.images)

    def changing(self):
        """Return every tensor that a step writes to."""
        moments = (value for state in self.optimizer.state.values() for value in state.values())
        return [*self.network.parameters(), *moments]


def reset_peak():
    """Reset the peak of the resident set and return it in bytes; where it cannot be reset, return the peak so far."""
    refs = Path("/proc/self/clear_refs")
    if not refs.exists():
        return peak()
    refs.write_text("5")
    return peak()


def peak():
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(work, rounds):
    """Return median wall-clock and CPU seconds."""
    clock, processor = [], []
    for _ in range(rounds):
        start = time.perf_counter(), time.process_time()
        work()
        clock.append(time.perf_counter() - start[0])
        processor.append(time.process_time() - start[1])
    return {
        "seconds": float(np.median(clock)),
        "spread": float(np.ptp(clock)),
        "cpu_seconds": float(np.median(processor)),
    }


def on_cpu(method, group, batch, size, rounds, forward_only):
    """Measure one figure in this process."""
    torch.set_num_threads(2)
    network = make(method, group, size, "cpu")
    with implementation("auto" if method == "direct" else method):
        Step(network, 1, SIZE, "cpu")()  # what a process needs once: compiled code, buffers of the libraries
        before = reset_peak()
        step = Step(network, batch, size, "cpu")
        answer = measure(step.forward if forward_only else step, rounds)
    return {**answer, "bytes": peak() - before}


def child(*arguments):
    """Measure a figure in a process of its own, given the name of a function here and its arguments."""
    command = [sys.executable, __file__, "--only", json.dumps(arguments)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(answer.stdout)


def counts(order, keys, size, batch, itemsize=4):
    """Count the multiply-adds and bytes that one layer needs at least, forward and backward.

    Forward, a score takes 2 d for content and position and d for its value; backward, the scores again, d for the
    gradient of the weight, 2 d for the query, and d each for key, value and table. Maps are read or written once in
    each pass.
    """
    scores = batch * HEADS * order * keys * size**2 * WINDOW**2
    maps = itemsize * batch * HEADS * size**2 * HEAD_CHANNELS
    queries = order if keys > 1 else 1
    forward = {"operations": scores * 3 * HEAD_CHANNELS, "bytes": maps * (queries + 2 * keys + order)}
    backward = {"operations": scores * 8 * HEAD_CHANNELS, "bytes": maps * (2 * queries + 4 * keys + 2 * order)}
    return {"forward": forward, "backward": backward}


def rates(device):
    """Measure the peak rates of this machine per second: multiply-adds of a matrix product, bytes of a copy."""
    size, number = (4096, 2**28) if device == "cuda" else (1024, 2**25)
    matrix = torch.rand(size, size, device=device)
    source = torch.rand(number, device=device)
    target = torch.empty_like(source)
    return (
        size**3 / best_seconds(lambda: matrix @ matrix, device),
        2 * 4 * number / best_seconds(lambda: target.copy_(source), device),
    )


def replayed(work, device):
    """Capture the launches of a function as a CUDA graph on a GPU: Python needs longer to launch them than they run."""
    if device != "cuda":
        return work
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def best_seconds(work, device, rounds=7):
    seconds = []
    for _ in range(rounds):
        synchronise(device)
        start = time.perf_counter()
        work()
        synchronise(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def synchronise(device):
    if device == "cuda":
        torch.cuda.synchronize()


def one_layer(group, batch, device, dtype=torch.float32):
    """Measure fused attention of one layer of the first stage beside the two bounds."""
    order = parse(group).order
    generator, x_channels = torch.Generator().manual_seed(2), HEAD_CHANNELS // 3  # y has as many, the elements the rest
    shapes = (
        (batch, 3, HEADS, HEAD_CHANNELS, order, SIZE, SIZE),
        (1, order, 1, WINDOW, WINDOW, 2 * x_channels),
        (1, order, order, HEAD_CHANNELS - 2 * x_channels),
    )
    given = [torch.randn(shape, generator=generator).to(device, dtype).requires_grad_() for shape in shapes]
    gradient = torch.randn(batch, HEADS, HEAD_CHANNELS, order, SIZE, SIZE, generator=generator).to(device, dtype)
    gradient = gradient.permute(0, 1, 3, 4, 5, 2)

    def attend():
        return projected_attention(given[0], given[1], element=given[2])

    with implementation("fused"):
        forward = best_seconds(replayed(attend, device), device)
        both = best_seconds(replayed(lambda: torch.autograd.grad(attend(), given, gradient), device), device)
    arithmetic, bandwidth = rates(device)  # in float32; half precision could be faster in both
    rows = {}
    for name, seconds in (("forward", forward), ("backward", both - forward)):
        needed = counts(order, order, SIZE, batch, dtype.itemsize)[name]
        rows[name] = {
            "seconds": seconds,
            "arithmetic_bound": needed["operations"] / arithmetic,
            "bandwidth_bound": needed["bytes"] / bandwidth,
        }
        bound = max(rows[name]["arithmetic_bound"], rows[name]["bandwidth_bound"])
        by_arithmetic, by_bandwidth = (1e3 * rows[name][which] for which in ("arithmetic_bound", "bandwidth_bound"))
        print(
            f"one layer, {group}, {dtype}, batch {batch}, {name:8}: {1e3 * seconds:8.2f} ms; at the rate of a matrix "
            f"product {by_arithmetic:.2f} ms, of a copy {by_bandwidth:.2f} ms: {bound / seconds:.0%} of the bound",
            flush=True,
        )
    return rows


def compare_sums(device, rounds):
    """Measure the paper's sum over all queries beside the relative form, in the same kernels: one training step."""
    results = {}
    for group, batch in (("c4", 4), ("c8", 2)) if device == "cpu" else (("c4", 64), ("c8", 64)):
        seconds = {}
        for mode in ("relative", "paper"):
            torch.manual_seed(0)
            options = {"heads": HEADS, "head_channels": HEAD_CHANNELS, "window": WINDOW, "mode": mode}
            layer = GroupSelfAttention(group, CHANNELS, CHANNELS, **options).to(device)
            maps = torch.rand(batch, CHANNELS, parse(group).order, SIZE, SIZE, device=device)

            def work(layer=layer, maps=maps):
                layer.zero_grad()
                layer(maps).square().mean().backward()

            with implementation("fused"):
                work()  # compiles
                answer = measure(work, rounds) if device == "cpu" else {"seconds": best_seconds(work, device)}
            seconds[mode] = answer.get("cpu_seconds", answer["seconds"])
        ratio = seconds["paper"] / seconds["relative"]
        results[group] = {**seconds, "ratio": ratio}
        unit = "CPU s" if device == "cpu" else "s"
        print(
            f"one layer, {group}, batch {batch}, forward and backward: relative {seconds['relative']:.3f} {unit}, "
            f"the paper's sum {seconds['paper']:.3f} {unit}: {ratio:.1f} times as long",
            flush=True,
        )
    return results


def report(name, answer, baseline=None):
    line = f"{name:24} {answer['seconds']:7.2f} s (spread {answer['spread']:.2f}), {answer['cpu_seconds']:7.2f} CPU s, "
    line += f"{answer['bytes'] / 2**20:6.0f} MiB"
    if baseline is not None:
        faster, by_cpu, less = (baseline[name] / answer[name] for name in ("seconds", "cpu_seconds", "bytes"))
        line += f"   {faster:5.1f} times as fast ({by_cpu:.1f} by CPU time), {less:.1f} times less memory"
    print(line, flush=True)


def compare_on_cpu(rounds):
    results = {}
    for method in ("direct", "plain", "fused"):
        results[method] = child("on_cpu", method, "c4", 8, SIZE, rounds if method != "direct" else 3, False)
        report(f"c4, batch 8, {method}", results[method], results["direct"] if method != "direct" else None)
    torch.set_num_threads(2)
    results["one layer"] = one_layer("c4", 8, "cpu")
    for name, forward_only in (("forward", True), ("training step", False)):
        results[f"256 pixels, {name}"] = child("on_cpu", "fused", "c8", 1, 256, 1, forward_only)
        report(f"c8, 256 x 256, {name}", results[f"256 pixels, {name}"])
    maps = torch.empty(1, HEADS, 8, 256, 256, HEAD_CHANNELS, device="meta")
    table = torch.empty(1, 8, 8, WINDOW, WINDOW, HEAD_CHANNELS, device="meta")
    print(f"  one layer of it, by estimate_memory: {estimate_memory(maps, maps, maps, table) / 2**20:.0f} MiB")
    return results


def on_cuda(method, group, batch, steps):
    """Measure images per second over some steps, and peak memory; None if it runs out of memory."""
    try:
        captured = method == "captured"
        step = Step(make(method, group, SIZE, "cuda"), batch, SIZE, "cuda", mixed=captured)
        with implementation({"direct": "auto", "captured": "fused"}.get(method, method)):
            work = step
            if captured:
                graph = capture(step, step.changing, torch.device("cuda", 0))
                work = graph.replay
            for _ in range(3):
                work()
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(steps):
                work()
            torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError:
        return None
    seconds = (time.perf_counter() - start) / steps
    return {"images_per_second": batch / seconds, "bytes": torch.cuda.max_memory_allocated()}


def compare_on_cuda(rounds):
    results = {}
    for group in ("c4", "c8", "c12"):
        for method in ("direct", "plain", "fused", "captured"):
            # The layer that stores all scores may fit only with smaller batches.
            for batch in (64, 8, 1) if method == "direct" else (64,):
                name = f"{group}, batch {batch}, {method}"
                steps = rounds if method == "direct" else 10 * rounds
                answer = results[name] = child("on_cuda", method, group, batch, steps)
                if answer is None:
                    print(f"{name:24} out of memory", flush=True)
                    continue
                memory = answer["bytes"] / 2**30
                print(f"{name:24} {answer['images_per_second']:8.0f} images/s  {memory:6.2f} GiB", flush=True)
                break
        for dtype in (torch.float32, torch.bfloat16):
            results[f"{group}, one layer, {dtype}"] = one_layer(group, 64, "cuda", dtype)
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", default="attention.json")
    parser.add_argument("--only-sums", action="store_true", help="only compare the paper's sum with the relative form")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        name, *arguments = json.loads(options.only)
        print(json.dumps({"on_cpu": on_cpu, "on_cuda": on_cuda}[name](*arguments)))
        return
    results = {}
    if not options.only_sums:
        results = compare_on_cuda(options.rounds) if options.device == "cuda" else compare_on_cpu(options.rounds)
    results["the paper's sum and the relative form"] = compare_sums(options.device, options.rounds)
    machine = torch.cuda.get_device_name() if options.device == "cuda" else "two threads"
    Path(options.out).write_text(
        json.dumps({"machine": machine, "torch": torch.__version__, "results": results}, indent=1)
    )


if __name__ == "__main__":
    main()
