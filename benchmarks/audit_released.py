"""How far the group self-attention of the paper's released code is from equivariance, by its weights and its input.

    python benchmarks/audit_released.py [--seeds 4] [--size 9]

The layer of benchmarks/defects/released_attention.py (windows of 5 pixels, 3 heads of 10 channels, 20 channels) is
called on maps of c4 and c8, and on the same maps after a quarter turn, which permutes pixels and elements without
interpolation. The table gives ||f(g x) - g f(x)|| / ||g f(x)|| in per cent, smallest and largest over the seeds. The
maps are white noise, or what the released lifting layer makes of a white noise image. Weights are those that PyTorch
initialises, all matrices times a factor, or drawn anew.
"""

import argparse
import math
import time

import torch
from torch import nn

from defects.released_attention import ReleasedGroupAttention

WEIGHTS = {
    "initial": lambda p: p,
    "times 2": lambda p: p.mul_(2),
    "times 2.5": lambda p: p.mul_(2.5),
    "times 3": lambda p: p.mul_(3),
    "times 5": lambda p: p.mul_(5),
    "deviation 2 / sqrt(fan-in)": lambda p: p.normal_(0, 2 / math.sqrt(p.shape[1])),
    "Kaiming normal": nn.init.kaiming_normal_,
    "standard normal": lambda p: p.normal_(),
}


def weighted(layer: nn.Module, name: str) -> nn.Module:
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.ndim > 1:
                WEIGHTS[name](parameter)
    return layer


def turned(maps: torch.Tensor) -> torch.Tensor:
    """Maps (n, c, order, h, w) after a quarter turn."""
    return maps.rot90(1, (-2, -1)).roll(maps.shape[2] // 4, 2)


@torch.no_grad()
def error(group: str, weights: str, lifted: bool, size: int, seed: int) -> float:
    torch.manual_seed(seed)
    layer = weighted(ReleasedGroupAttention(group, 20, 10, 20, 3, window=5), weights)
    maps = torch.randn(1, 20, layer.group.order, size, size)
    if lifted:
        lift = weighted(ReleasedGroupAttention(group, 1, 10, 20, 3, window=5, lifts=True), weights)
        maps = lift(torch.randn(1, 1, size, size))
    expected = turned(layer(maps))
    return float((layer(turned(maps)) - expected).norm() / expected.norm())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--size", type=int, default=9)
    options = parser.parse_args()
    begin = time.process_time()
    print("| weights | noise, c4 | noise, c8 | lifted noise, c4 | lifted noise, c8 |\n|---|---|---|---|---|")
    for weights in WEIGHTS:
        cells = []
        for lifted in (False, True):
            for group in ("c4", "c8"):
                found = [100 * error(group, weights, lifted, options.size, seed) for seed in range(options.seeds)]
                cells.append(f"{min(found):.2g} to {max(found):.2g} %")
        print(f"| {weights} | {' | '.join(cells)} |", flush=True)
    print(f"\n{time.process_time() - begin:.0f} processor seconds, torch {torch.__version__}")


if __name__ == "__main__":
    main()
