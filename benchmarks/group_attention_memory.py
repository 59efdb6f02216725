"""What one group self-attention layer costs to train in plain PyTorch, beside the direct way.

    python benchmarks/group_attention_memory.py [--batch 2] [--rounds 5] [--out group_attention_memory.json]

One layer of the rotated-MNIST network (20 channels, 9 heads of 10, windows of 5, images of 28), forward and backward,
one thread. The direct way writes out the paper's double sum over the group, |H|^3 scores for each pixel and neighbour,
with neighbours copied beside each query; it is written here and shares nothing with the library but the encoding.
`relative` is the library's default with |H|^2 pairs, `paper` its version of the same double sum as the direct way.

Each figure is a process of its own: the median time of the rounds, and the growth of the resident set over what the
process held before the first step.
"""

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch

from unpose.groups import parse
from unpose.nn import GroupSelfAttention, position_table

SIZE, CHANNELS, HEADS, EACH, WINDOW = 28, 20, 9, 10, 5


class DirectLayer(torch.nn.Module):
    """The double sum of equation 16, every score written down."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer  # a layer in mode "paper": its projections and its encoding

    def forward(self, maps):
        layer = self.layer
        projected = layer.project(maps.movedim(1, -1)).unflatten(-1, (3, HEADS, EACH))
        query, key, value = projected.permute(4, 0, 5, 1, 2, 3, 6).unbind(0)  # (b, n, g, h, w, d)
        table = position_table(layer.encoding, layer.inverses, layer.relations, (WINDOW, WINDOW))[0]
        near_key, near_value = self._unfold(key), self._unfold(value)  # (b, n, g, d, y, x, h, w)
        content = torch.einsum("bnqhwd,bnkdyxhw->bnqhwkyx", query, near_key)
        placed = torch.einsum("bnqhwd,oqkyxd->bnoqhwkyx", query, table)
        scores = (content[:, :, None] + placed) / math.sqrt(EACH)
        inside = self._unfold(torch.ones_like(key[:1, :1, :1, ..., :1]))[0, 0, 0, 0].permute(2, 3, 0, 1)
        scores = scores.masked_fill((inside == 0)[:, :, None], -math.inf)
        weights = scores.flatten(-3).softmax(-1).view_as(scores)
        found = torch.einsum("bnoqhwkyx,bnkdyxhw->bnohwd", weights, near_value)
        return layer.merge(found.permute(0, 2, 3, 4, 1, 5).flatten(-2)).movedim(-1, 1)

    @staticmethod
    def _unfold(maps):
        batch, heads, order, height, width, each = maps.shape
        flat = maps.permute(0, 1, 2, 5, 3, 4).reshape(batch, -1, height, width)
        near = torch.nn.functional.unfold(flat, WINDOW, padding=WINDOW // 2)
        return near.view(batch, heads, order, each, WINDOW, WINDOW, height, width)


def make(method, group):
    torch.manual_seed(0)
    mode = "relative" if method == "relative" else "paper"
    layer = GroupSelfAttention(group, CHANNELS, CHANNELS, heads=HEADS, head_channels=EACH, window=WINDOW, mode=mode)
    return DirectLayer(layer) if method == "direct" else layer


def step(layer, maps):
    layer.zero_grad()
    layer(maps).square().mean().backward()


def measure(method, group, batch, rounds):
    torch.set_num_threads(1)
    layer = make(method, group)
    order = parse(group).order
    small = torch.rand(1, CHANNELS, order, 2 * WINDOW, 2 * WINDOW, requires_grad=True)
    step(layer, small)  # what a process needs once: code, buffers of the libraries
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    maps = torch.rand(batch, CHANNELS, order, SIZE, SIZE, requires_grad=True)
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        step(layer, maps)
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    unit = 1 if sys.platform == "darwin" else 1024
    return {"seconds": float(np.median(seconds)), "spread": float(np.ptp(seconds)), "bytes": peak * unit}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--groups", nargs="+", default=["c4", "c8"])
    parser.add_argument("--out", default="group_attention_memory.json")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(options.only, options.groups[0], options.batch, options.rounds)))
        return
    results = {}
    for group in options.groups:
        for method in ("direct", "paper", "relative"):
            command = [sys.executable, __file__, "--only", method, "--groups", group]
            command += ["--batch", str(options.batch), "--rounds", str(options.rounds)]
            answer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            results[f"{group} {method}"] = answer
            direct = results[f"{group} direct"]
            print(
                f"{group:4} {method:9} {answer['seconds']:7.2f} s (spread {answer['spread']:.2f})  "
                f"{answer['bytes'] / 2**20:7.0f} MiB   {answer['seconds'] / direct['seconds']:5.2f} of the direct "
                f"time, {answer['bytes'] / direct['bytes']:5.2f} of its memory",
                flush=True,
            )
    Path(options.out).write_text(json.dumps({"batch": options.batch, "threads": 1, "results": results}, indent=1))


if __name__ == "__main__":
    main()
