"""What an audit costs beyond the forward passes themselves: 200 images of 64 pixels, 24 rotations, a small ResNet-18.

    python benchmarks/audit_cost.py [--images 200] [--size 64] [--width 64] [--group c24]

The audit calls the network on all images once for each exact element, twice for every other one (the second call is its
interpolation floor), and once or twice for the control and the images themselves. The table gives the time of the audit
divided by that of as many forward passes, measured before and after it in the same run.
"""

import argparse
import json
import time

import torch
from torch import nn

from unpose.audit import audit_model, smooth_noise


class Residual(nn.Module):
    def __init__(self, channels: int, features: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, features, 3, stride, 1, bias=False), nn.BatchNorm2d(features), nn.ReLU(),
            nn.Conv2d(features, features, 3, 1, 1, bias=False), nn.BatchNorm2d(features),
        )  # fmt: skip
        same = stride == 1 and channels == features
        self.skip = nn.Identity() if same else nn.Conv2d(channels, features, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.body(x) + self.skip(x)).relu()


def resnet18(width: int) -> nn.Module:
    """The layers of ResNet-18: 7 x 7 and pooling, then eight blocks of two convolutions."""
    blocks, channels = [], width
    for i, features in enumerate((width, 2 * width, 4 * width, 8 * width)):
        blocks += [Residual(channels, features, 1 if i == 0 else 2), Residual(features, features, 1)]
        channels = features
    return nn.Sequential(
        nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10),
    )  # fmt: skip


def forward_seconds(network: nn.Module, images: torch.Tensor, repeats: int = 2) -> float:
    """Processor seconds of one pass over all images."""
    with torch.no_grad():
        begin = time.process_time()
        for _ in range(repeats):
            network(images)
    return (time.process_time() - begin) / repeats


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--group", default="c24")
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    torch.manual_seed(0)
    network = resnet18(options.width).eval()
    images = smooth_noise(options.images, 3, (options.size, options.size))
    forward_seconds(network, images[:8], 1)  # warm up
    before = forward_seconds(network, images)
    begin = time.process_time()
    audit = audit_model(network, images, options.group, modules=False)
    whole = time.process_time() - begin
    forward = (before + forward_seconds(network, images)) / 2
    ratio = whole / (audit.n_calls * forward)
    figures = {
        "images": options.images, "size": options.size, "width": options.width, "group": options.group,
        "passes": audit.n_calls, "seconds of a pass": forward, "seconds of the audit": whole, "ratio": ratio,
        "ratio to one pass for each element": whole / (len(audit.reports[""].elements) * forward),
        "threads": torch.get_num_threads(),
    }  # fmt: skip
    for name, value in figures.items():
        print(f"{name:36} {value:.4g}" if isinstance(value, float) else f"{name:36} {value}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(figures, file, indent=2)


if __name__ == "__main__":
    main()
