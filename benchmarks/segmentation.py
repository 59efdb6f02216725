"""Train U-Nets on upright scenes and segment turned ones: one with a symmetry, and its plain twin.

    python benchmarks/segmentation.py [--device cuda] [--seeds 3] [--steps 400] [--out FILE]

A scene of 40 pixels has three glyphs, T, L and a cross, on a textured ground, each at a random place and size, turned
by up to 10 degrees. Every pixel is background or belongs to one of the three kinds. Scenes are drawn at their pose, not
resampled. The networks see 400 upright scenes; the plain twin is the same network with the group c1 and the same number
of channels on every level, which has about four times as many parameters. Test scenes are new; turned ones are
the same scenes with all glyphs and their places turned about the centre. IoU is the mean over the three kinds.
"""

import argparse
import json
import math
import time
from pathlib import Path
from statistics import mean, stdev

import torch
from torch.nn.functional import avg_pool2d, cross_entropy, interpolate

from unpose.nn import count_parameters, equivariant_unet

SIDE, FINE = 40, 3
GLYPHS = [  # rectangles (x0, y0, x1, y1), y down
    [(-1.0, -1.0, 1.0, -0.4), (-0.3, -0.4, 0.3, 1.0)],
    [(-0.7, -1.0, -0.1, 1.0), (-0.1, 0.4, 0.8, 1.0)],
    [(-1.0, -0.3, 1.0, 0.3), (-0.3, -1.0, 0.3, 1.0)],
]
NETWORKS = {"plain": ("c1", 32), "c4": ("c4", 8)}


def scenes(n, generator, turn=0.0):
    """Draw n scenes, all turned by an angle: images (n, 1, side, side) and labels (n, side, side)."""
    fine = SIDE * FINE
    axis = (torch.arange(fine) - (fine - 1) / 2) / FINE
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    c, s = math.cos(turn), math.sin(turn)
    x, y = c * x - s * y, s * x + c * y  # the scene's own coordinates: counter-clockwise on screen
    labels = torch.zeros(n, fine, fine, dtype=torch.long)
    for image in range(n):
        for kind in torch.randint(3, (3,), generator=generator).tolist():
            px, py, size, tilt = torch.rand(4, generator=generator).tolist()
            px, py, size, tilt = 22 * px - 11, 22 * py - 11, 4 + 2 * size, math.radians(20 * tilt - 10)
            u = (math.cos(tilt) * (x - px) - math.sin(tilt) * (y - py)) / size
            v = (math.sin(tilt) * (x - px) + math.cos(tilt) * (y - py)) / size
            for x0, y0, x1, y1 in GLYPHS[kind]:
                labels[image][(u >= x0) & (u < x1) & (v >= y0) & (v < y1)] = kind + 1
    level = torch.rand(n, 1, 1, 1, generator=generator) * 0.4 + 0.4
    ground = interpolate(torch.rand(n, 1, 10, 10, generator=generator), fine, mode="bicubic")
    image = avg_pool2d(torch.where(labels[:, None] > 0, level, 0.35 * ground), FINE)
    image = image + 0.1 * torch.randn(image.shape, generator=generator)
    return image, labels[:, FINE // 2 :: FINE, FINE // 2 :: FINE]


def iou(network, images, labels):
    with torch.no_grad():
        found = torch.cat([network(part).argmax(1) for part in images.split(50)])
    shares = []
    for kind in (1, 2, 3):
        both, either = ((found == kind) & (labels == kind)).sum(), ((found == kind) | (labels == kind)).sum()
        shares.append(float(both / either))
    return 100 * mean(shares)


def run(name, seed, steps, tests, device):
    group, width = NETWORKS[name]
    images, labels = (each.to(device) for each in scenes(400, torch.Generator().manual_seed(1000 + seed)))
    torch.manual_seed(seed)
    network = equivariant_unet(group, 1, 4, SIDE, width=width).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-2, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, steps)
    begin = time.perf_counter()
    for _ in range(steps):
        batch = torch.randint(400, (8,))
        loss = cross_entropy(network(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    network.eval()
    result = {"parameters": count_parameters(network), "seconds": time.perf_counter() - begin}
    return result | {angle: iou(network, *test) for angle, test in tests.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--out")
    options = parser.parse_args()
    tests = {str(a): scenes(80, torch.Generator().manual_seed(7), math.radians(a)) for a in (0, 90, 180, 270)}
    tests = {angle: tuple(each.to(options.device) for each in test) for angle, test in tests.items()}
    print("| network | parameters | " + " | ".join(f"IoU at {angle}°" for angle in tests) + " | seconds |")
    print("|---" * (len(tests) + 3) + "|")
    found = {}
    for name in options.networks:
        runs = found[name] = [run(name, seed, options.steps, tests, options.device) for seed in range(options.seeds)]
        spread = [stdev(each[angle] for each in runs) if len(runs) > 1 else 0.0 for angle in tests]
        cells = [f"{mean(r[a] for r in runs):.1f} ± {d:.1f}" for a, d in zip(tests, spread, strict=True)]
        seconds = mean(each["seconds"] for each in runs)
        print(f"| {name} | {runs[0]['parameters']:,} | " + " | ".join(cells) + f" | {seconds:.0f} |", flush=True)
        if options.out:
            Path(options.out).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
