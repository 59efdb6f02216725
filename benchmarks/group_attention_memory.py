"""Measure what one group self-attention layer costs to train in plain PyTorch, compared with the direct computation.

    python benchmarks/group_attention_memory.py [--groups c4 c8 d4] [--sizes 8 16 32] [--batches 1 4 16] [--rounds 3]

One layer of the rotated-MNIST network (20 channels, 9 heads of 10, windows of 5), forward and backward, one thread. The
direct computation stores the scores of the paper's double sum over the group, |H|^3 for each pixel and neighbour, and
copies the neighbours of each query; it is written here and shares only the encoding with the library. `paper` is the
library's version of the same double sum, `relative` its default with |H|^2 pairs; both are given as fractions of the
direct computation. `lifting` is the lifting layer compared with its own direct computation, |H| scores.

Memory is the peak of the bytes of all tensors alive during a step, counted by storage after each PyTorch operation: the
resident set would mostly show the allocator, but scratch memory inside an operation is not seen. Times are CPU seconds,
the best of the rounds, with the methods interleaved. Rows whose direct computation would need more than --most bytes
are left out and named.
"""

import argparse
import json
import math
import time
import weakref
from itertools import product
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unpose.groups import parse
from unpose.nn import GroupSelfAttention, LiftingSelfAttention, implementation, position_table

CHANNELS, HEADS, HEAD_CHANNELS, WINDOW = 20, 9, 10, 5
PAIRS = {"paper": "direct", "relative": "direct", "lifting": "direct lifting"}


class DirectLayer(torch.nn.Module):
    """The double sum of equation 16, or the sum of equation 14, with every score stored."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer  # in mode "paper", or lifting: its projections and its encoding

    def forward(self, maps):
        layer = self.layer
        maps = maps if maps.ndim == 5 else maps[:, :, None]
        projected = layer.project(maps.movedim(1, -1)).unflatten(-1, (3, HEADS, HEAD_CHANNELS))
        query, key, value = projected.permute(4, 0, 5, 1, 2, 3, 6).unbind(0)  # (b, n, g, h, w, d)
        table = position_table(layer.encoding, layer.inverses, layer.relations, (WINDOW, WINDOW))[0]
        table = table if table.ndim == 6 else table[:, None]  # (o, q, k, y, x, d)
        near_key, near_value = self._unfold(key), self._unfold(value)  # (b, n, g, d, y, x, h, w)
        content = torch.einsum("bnqhwd,bnkdyxhw->bnqhwkyx", query, near_key)
        placed = torch.einsum("bnqhwd,oqkyxd->bnoqhwkyx", query, table)
        scores = (content[:, :, None] + placed) / math.sqrt(HEAD_CHANNELS)
        inside = self._unfold(torch.ones_like(key[:1, :1, :1, ..., :1]))[0, 0, 0, 0].permute(2, 3, 0, 1)
        scores = scores.masked_fill((inside == 0)[:, :, None], -math.inf)
        weights = scores.flatten(-3).softmax(-1).view_as(scores)
        weights = torch.nn.functional.dropout(weights, layer.attention_dropout, self.training)
        found = torch.einsum("bnoqhwkyx,bnkdyxhw->bnohwd", weights, near_value)
        return layer.merge(found.permute(0, 2, 3, 4, 1, 5).flatten(-2)).movedim(-1, 1)

    @staticmethod
    def _unfold(maps):
        batch, heads, order, height, width, each = maps.shape
        flat = maps.permute(0, 1, 2, 5, 3, 4).reshape(batch, -1, height, width)
        near = torch.nn.functional.unfold(flat, WINDOW, padding=WINDOW // 2)
        return near.view(batch, heads, order, each, WINDOW, WINDOW, height, width)


class BytesAlive(TorchDispatchMode):
    """Counts the bytes of the storages that operations create while they are alive; ``peak`` is the maximum."""

    def __init__(self):
        super().__init__()
        self.now = self.peak = 0
        self._alive = {}

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if (name := storage._cdata) not in self._alive:
                    self.now += storage.nbytes()
                    self._alive[name] = weakref.ref(storage, self._leave(name, storage.nbytes()))
        self.peak = max(self.peak, self.now)
        return result

    def _leave(self, name, size):
        def leave(_):
            del self._alive[name]
            self.now -= size

        return leave


def make(method, group):
    """Make a layer, or the direct computation with the same weights."""
    torch.manual_seed(0)
    options = {"heads": HEADS, "head_channels": HEAD_CHANNELS, "window": WINDOW}
    if "lifting" in method:
        layer = LiftingSelfAttention(group, CHANNELS, CHANNELS, **options)
    else:
        mode = "relative" if method == "relative" else "paper"
        layer = GroupSelfAttention(group, CHANNELS, CHANNELS, mode=mode, **options)
    return DirectLayer(layer) if method.startswith("direct") else layer


def inputs(method, group, size, batch):
    order = () if "lifting" in method else (parse(group).order,)
    generator = torch.Generator().manual_seed(1)
    return torch.rand(batch, CHANNELS, *order, size, size, generator=generator).requires_grad_()


def step(layer, maps):
    layer.zero_grad()
    maps.grad = None
    with implementation("plain"):
        layer(maps).square().mean().backward()


def peak_bytes(method, group, size, batch):
    """Return the peak bytes of tensors alive during a training step, besides its weights and inputs."""
    layer, maps = make(method, group), inputs(method, group, size, batch)
    with BytesAlive() as counter:
        step(layer, maps)
    return counter.peak


def best_seconds(methods, group, size, batch, rounds):
    """Return CPU seconds of a training step, for each method the best of the rounds."""
    jobs = {method: (make(method, group), inputs(method, group, size, batch)) for method in methods}
    best = dict.fromkeys(methods, math.inf)
    for _ in range(rounds + 1):  # the first round warms up and is seldom the best
        for method, (layer, maps) in jobs.items():
            start = time.process_time()
            step(layer, maps)
            best[method] = min(best[method], time.process_time() - start)
    return best


def direct_bytes(group, size, batch):
    """Estimate the memory of the direct computation: six tensors of its scores."""
    return 6 * 4 * batch * HEADS * size**2 * parse(group).order ** 3 * WINDOW**2


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", default=["c4", "c8", "d4"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[8, 16, 32])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--most", type=float, default=4e9, help="bytes that the direct computation may need")
    parser.add_argument("--out", default="group_attention_memory.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    heading = "".join(f"{method:>10} time  memory" for method in PAIRS)
    print(f"{'group  size  batch':18}{'direct':>12}{'':12}{heading}", flush=True)
    for group, size, batch in product(options.groups, options.sizes, options.batches):
        start = f"{group:5} {size:5} {batch:6}"
        if direct_bytes(group, size, batch) > options.most:
            print(
                f"{start}   left out: the direct computation would need {direct_bytes(group, size, batch) / 1e9:.0f} GB"
            )
            continue
        methods = sorted({*PAIRS, *PAIRS.values()})
        seconds = best_seconds(methods, group, size, batch, options.rounds)
        memory = {method: peak_bytes(method, group, size, batch) for method in methods}
        rows.append({"group": group, "size": size, "batch": batch, "seconds": seconds, "bytes": memory})
        parts = "".join(
            f"{seconds[method] / seconds[direct]:15.2f} {memory[method] / memory[direct]:7.2f}"
            for method, direct in PAIRS.items()
        )
        print(f"{start}{seconds['direct']:10.3f} s {memory['direct'] / 2**20:7.0f} MiB{parts}", flush=True)
    Path(options.out).write_text(json.dumps({"threads": 1, "torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
