"""Measure vision transformers with a symmetry against an ordinary one of the same width, in the same run.

    python benchmarks/transformer.py --device cuda [--sizes S B L] [--out FILE]
    python benchmarks/transformer.py --device cpu [--threads 2]  # a 64-pixel network: seconds of forward pass and step
    python benchmarks/transformer.py --exact                # errors of whole token fields under their groups

`plain` is an ordinary ViT in PyTorch's best form: linear layers, ``scaled_dot_product_attention``, learnt positions,
mean pooling, compiled as a whole. `d4` is :func:`unpose.nn.equivariant_vit` of the same width, depth and patches. On
CUDA both run in bfloat16 autocast, a training step (forward, cross-entropy, backward, fused AdamW) and a forward pass
without gradients are captured as CUDA graphs, and the median over rounds is reported; memory is the peak of the
allocator. Products are counted for one image and one forward pass. The bound by memory traffic counts, for a block, the
bytes that its kernels must move if every kernel reads its inputs and writes its results once.

Every network is built and compiled in a process of its own, all at once. When all of them are ready, they measure one
after the other.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn
from torch.nn.functional import cross_entropy, pad, scaled_dot_product_attention

from unpose.audit import equivariance_error
from unpose.groups import as_quarter_turns, inverse, parse
from unpose.images import pixel_grid, smooth, warp
from unpose.nn import count_parameters, equivariant_vit

SIZES = {  # width, depth, heads of the plain network, heads of the d4 network, batch
    "S": dict(width=384, depth=12, heads=6, frame_heads=4, batch=256),
    "B": dict(width=768, depth=12, heads=12, frame_heads=8, batch=128),
    "L": dict(width=1024, depth=24, heads=16, frame_heads=8, batch=64),
    "tiny": dict(width=192, depth=4, heads=4, frame_heads=8, batch=16),
}
CLASSES = 1000


class PlainBlock(nn.Module):
    """The block of an ordinary vision transformer, as timm writes it."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.act = nn.GELU()

    def forward(self, x):
        qkv = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(scaled_dot_product_attention(*qkv.unbind(0)).transpose(1, 2).flatten(2))
        return x + self.fc2(self.act(self.fc1(self.norm2(x))))


class PlainViT(nn.Module):
    """An ordinary vision transformer: (b, 3, side, side) -> (b, classes)."""

    def __init__(self, side, patch, width, depth, heads):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(3 * patch * patch, width)
        self.positions = nn.Parameter(0.02 * torch.randn((side // patch) ** 2, width))
        self.blocks = nn.Sequential(*[PlainBlock(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, CLASSES)

    def forward(self, images):
        b, c, h, w = images.shape
        p = self.patch
        patches = images.reshape(b, c, h // p, p, w // p, p).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return self.head(self.norm(self.blocks(self.embed(patches) + self.positions)).mean(1))


def build(kind, size, side, patch):
    given = SIZES[size]
    torch.manual_seed(0)
    if kind == "plain":
        return PlainViT(side, patch, given["width"], given["depth"], given["heads"])
    return equivariant_vit(
        kind, 3, CLASSES, side, patch=patch, depth=given["depth"], width=given["width"], heads=given["frame_heads"]
    )


def products(kind, size, side, patch):
    """Count the multiplications of the linear maps and of attention, for one image and one forward pass."""
    width, depth, tokens = SIZES[size]["width"], SIZES[size]["depth"], (side // patch) ** 2
    share = {"plain": 1.0, "d4": 12 / 64}[kind]
    return tokens * (depth * (12 * width**2 * share + 2 * tokens * width) + 3 * patch**2 * width)


def block_traffic(kind, size, side, patch):
    """Count the bytes that a block must read and write in a forward pass in 16 bits, for one image.

    In units of the width: norm (1 + 1, twice, with the residual sum 2 more), qkv 1 + 3, attention 3 + 1, projection
    1 + 1, MLP 1 + 4, GELU 4 + 4, 4 + 1. The symmetric block also changes the basis: 3 + 3 before and 1 + 1 after
    attention, if nothing is fused.
    """
    units = 8 + 4 + 4 + 2 + 5 + 8 + 5
    return 2 * (side // patch) ** 2 * SIZES[size]["width"] * (units if kind == "plain" else units + 8)


def timed(step, rounds, repeats):
    """Return the median seconds of one call of a step, over rounds of some repeats."""
    seconds = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(repeats):
            step()
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - begin) / repeats)
    return median(seconds)


def captured(step):
    """Warm a step up and capture it as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def measure_cuda(kind, size, side, patch, batch, rounds, profile):
    """Measure one network on CUDA: images/s and GiB of a training step and of a forward pass."""
    network = build(kind, size, side, patch).cuda()
    images = torch.randn(batch, 3, side, side, device="cuda")
    labels = torch.randint(CLASSES, (batch,), device="cuda")
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4, fused=True, capturable=True)
    compiled = torch.compile(network, fullgraph=True)

    def train():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = cross_entropy(compiled(images), labels)
        loss.backward()
        optimizer.step()

    def infer():
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            compiled(images)

    result = {"batch": batch, "parameters": count_parameters(network), "products": products(kind, size, side, patch)}
    result["block_bytes"] = block_traffic(kind, size, side, patch)
    begin = time.perf_counter()
    train()
    infer()
    torch.cuda.synchronize()
    result["compile_s"] = time.perf_counter() - begin
    torch.cuda.empty_cache()
    print("READY", flush=True)
    sys.stdin.readline()
    for name, step in (("train", train), ("infer", infer)):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        graph = captured(step)
        seconds = timed(graph.replay, rounds, 5)
        result[name] = {"images_s": batch / seconds, "gib": torch.cuda.max_memory_allocated() / 2**30}
        del graph
    if profile:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            train()
            torch.cuda.synchronize()
        result["kernels"] = {
            event.key: [event.count, event.self_device_time_total]
            for event in sorted(profiler.key_averages(), key=lambda e: -e.self_device_time_total)[:30]
        }
    return result


def exactness():
    """Print the errors of token fields of networks with random weights, beside floor and control, as two tables."""
    print("| group | image | patch | tokens | exact elements | control |")
    print("|---|---|---|---|---|---|")
    fine = [(name, side, patch) for name in ("c8", "d8") for side, patch in ((48, 4), (96, 4), (96, 8))]
    for name, side, patch in [(name, side, 4) for name in ("c4", "d1", "d2", "d4") for side in (48, 52)] + fine:
        network, images = fresh(name, side, patch)
        report = equivariance_error(network.token_field, images, name, "regular image")
        tokens, exact, control = f"{side // patch} x {side // patch}", report.worst_exact, report.control_error
        print(f"| {name} | {side} | {patch} | {tokens} | {exact:.1e} | {control:.3f} |", flush=True)
    print()
    print("| group | image | patch | error at 45 degrees | turned back | if exact | error / if exact | own error |")
    print("|---|---|---|---|---|---|---|---|")
    for name, side, patch in fine:
        error, back, least, own = at_finer_angles(*fresh(name, side, patch), patch)
        row = f"{error:.3f} | {back:.3f} | {least:.3f} | {error / least:.2f} | {own:.4f}"
        print(f"| {name} | {side} | {patch} | {row} |", flush=True)


def fresh(name, side, patch):
    """A network of two blocks with fresh weights, and smooth noise for it."""
    torch.manual_seed(1)
    order = parse(name).order
    network = equivariant_vit(name, 2, 3, side, patch=patch, depth=2, width=8 * order, heads=order).eval()
    images = smooth(torch.randn(3, 2, side, side), side / 12)
    return network, images / images.std()


@torch.no_grad()
def at_finer_angles(network, images, patch):
    """Errors of the token field f(g x) at the worst element g between quarter turns, relative to the field.

    Images fade to zero at the rim, and fields are compared inside of a disc that is two tokens smaller than the grid.
    Returned are the error, ``f(g x)`` against ``g f(x)``; the floor of the audit: ``f`` of images that were turned
    there and back against ``f(x)``, plus the field turned there and back against itself; the error that an exactly
    equivariant network would show; and the error of this one, if nothing has to be interpolated between tokens.

    ``g f(x)`` interpolates between tokens. What the network really says there is known from images that are shifted by
    whole pixels, which needs no interpolation: the fields of all shifts by less than a patch are one field with a value
    at every pixel. Turned, it is the right answer ``t``. An exactly equivariant network gives ``f(g x) = t``, and the
    error that is seen is that of ``t`` against ``g f(x)``. Its own error is that of ``f(g x)`` against ``t``.
    """
    group, side = network.group, images.shape[-1]
    rows = side // patch
    grid = pixel_grid((side, side), torch.float32)
    images = images * (torch.cos((8 * grid.norm(dim=-1) / side - 3).clamp(0, 1) * math.pi) / 2 + 0.5)
    field = network.token_field(images)  # (n, channels, order, rows, rows)
    wide = pad(images, [0, patch, 0, patch])
    dense = torch.zeros(*field.shape[:3], side, side)
    for y in range(patch):
        for x in range(patch):
            dense[..., y::patch, x::patch] = network.token_field(wide[..., y : y + side, x : x + side])
    dense = dense[..., : side - patch + 1, : side - patch + 1]  # where patches lie inside: the first token to the last
    inside = pixel_grid((rows, rows), torch.float32).norm(dim=-1) <= rows / 2 - 1
    units = torch.tensor([patch, patch, 1.0])
    found = []
    for number, element in enumerate(group.elements.float()):
        if as_quarter_turns(group.elements[number]) is not None:
            continue
        source = group.product[number].argsort()

        def turned(maps, pose, source=source):
            return warp(maps.flatten(1, 2), pose).reshape(maps.shape).index_select(2, source)

        on_tokens = element * units / units[:, None]
        expected, moved = turned(field, on_tokens), warp(images, element)
        right = turned(dense, element)[..., ::patch, ::patch]
        given = network.token_field(moved)
        again = network.token_field(warp(moved, inverse(element)))
        returned = warp(warp(field.flatten(1, 2), on_tokens), inverse(on_tokens)).reshape(field.shape)

        def distance(one, other):
            return float(((one - other) * inside).norm() / (other * inside).norm())

        back = distance(again, field) + distance(returned, field)
        found.append((distance(given, expected), back, distance(right, expected), distance(given, right)))
    return max(found)


def measure_cpu(rounds, threads):
    """Measure the 64-pixel networks on the CPU in turn: seconds of a forward pass and of a training step.

    With one thread these are CPU seconds, which depend less on what else runs; with more, seconds of the clock.
    """
    torch.set_num_threads(threads)
    clock = time.process_time if threads == 1 else time.perf_counter
    side, patch, given = 64, 8, SIZES["tiny"]
    networks = {kind: build(kind, "tiny", side, patch) for kind in ("plain", "d4")}
    images, labels = torch.randn(given["batch"], 3, side, side), torch.randint(CLASSES, (given["batch"],))
    found = {kind: {"infer": [], "train": []} for kind in networks}
    for _ in range(rounds):
        for kind, network in networks.items():
            begin = clock()
            with torch.no_grad():
                network(images)
            found[kind]["infer"].append(clock() - begin)
            begin = clock()
            cross_entropy(network(images), labels).backward()
            found[kind]["train"].append(clock() - begin)
            network.zero_grad()
    return {
        kind: {"parameters": count_parameters(networks[kind])}
        | {name: median(times[1:]) for name, times in parts.items()}
        for kind, parts in found.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--sizes", nargs="+", default=["S", "B", "L"], choices=list(SIZES))
    parser.add_argument("--kinds", nargs="+", default=["plain", "d4"])
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--patch", type=int, default=16)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.one:
        kind, size = options.one
        batch = options.batch or SIZES[size]["batch"]
        result = measure_cuda(kind, size, options.side, options.patch, batch, options.rounds, options.profile)
        print("RESULT " + json.dumps(result))
        return
    if options.exact:
        exactness()
        return
    if options.device == "cpu":
        found = {"machine": f"{options.threads} threads", "results": measure_cpu(options.rounds, options.threads)}
        for name in ("infer", "train"):
            plain, d4 = (found["results"][kind][name] * 1e3 for kind in ("plain", "d4"))
            print(f"{name:6} plain {plain:8.1f} ms   d4 {d4:8.1f} ms   d4 / plain {d4 / plain:5.2f}")
    else:
        found = {"machine": f"{torch.cuda.get_device_name()}, torch {torch.__version__}", "results": {}}
        arguments = ["--side", str(options.side), "--patch", str(options.patch), "--rounds", str(options.rounds)]
        arguments += ["--batch", str(options.batch)] * bool(options.batch) + ["--profile"] * options.profile
        running = {
            (kind, size): subprocess.Popen(
                [sys.executable, __file__, "--one", kind, size, *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for size in options.sizes
            for kind in options.kinds
        }  # fmt: skip
        ready = {
            key: any(line.startswith("READY") for line in iter(process.stdout.readline, ""))
            for key, process in running.items()
        }
        for (kind, size), process in running.items():
            if ready[kind, size]:
                lines = [line for line in process.communicate("go\n")[0].splitlines() if line.startswith("RESULT ")]
                found["results"][f"{kind}-{size}"] = json.loads(lines[-1][7:]) if lines else None
            else:
                found["results"][f"{kind}-{size}"] = None
        print(table(found["results"], options.sizes, options.kinds))
    if options.out:
        Path(options.out).write_text(json.dumps(found, indent=1) + "\n")


def table(results, sizes, kinds):
    """Format the results as a Markdown table."""
    lines = [
        "| network | parameters (M) | products (G) | block (MB) | training images/s | GiB | forward images/s | GiB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for size in sizes:
        for kind in kinds:
            result, plain = results[f"{kind}-{size}"], results.get(f"plain-{size}")
            if result is None:
                lines.append(f"| {kind} {size}/16 | failed |")
                continue
            cells = [result["parameters"] / 1e6, result["products"] / 1e9, result["block_bytes"] / 1e6]
            cells = [f"{cell:.1f}" for cell in cells]
            for name in ("train", "infer"):
                gain = (
                    ""
                    if kind == "plain" or plain is None
                    else f" ({result[name]['images_s'] / plain[name]['images_s']:.2f} x)"
                )
                cells += [f"{result[name]['images_s']:,.0f}{gain}", f"{result[name]['gib']:.1f}"]
            lines.append(f"| {kind} {size}/16 | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
