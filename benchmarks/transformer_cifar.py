"""Train vision transformers with and without a symmetry on CIFAR-10, for the same time, at the same width.

    python benchmarks/transformer_cifar.py FOLDER [--seconds 200] [--seeds 3] [--out FILE]

FOLDER holds ``cifar10_train_batch1.npz`` to ``5`` and ``cifar10_test.npz``. `plain` is the network of the recipe
cifar10-vit, `d1` and `d4` those of cifar10-vit-d1 and cifar10-vit-d4; `d4 until 4` has plain blocks after half of its
depth; `plain, turned` is the plain network, trained on images at random quarter turns and mirrors. Shifts of up to 4
pixels for all, mirrors for all but those that ignore them.

All runs start at the same time on one GPU, each in its own process, and share it in slices of time, so that every
network has the same share. The learning rate falls with time, not with steps. Compilation does not count. The test set
is read once, at the end: upright, mean over the three quarter turns, mean over 15, 30, ... 345 degrees inside of a
disc.
"""

import argparse
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from torch.nn.functional import cross_entropy, pad

from unpose.groups import rotation
from unpose.images import warp
from unpose.nn import count_parameters, equivariant_vit

NETWORKS = {
    "plain": dict(group="c1"),
    "plain, turned": dict(group="c1"),
    "d1": dict(group="d1"),
    "d4": dict(group="d4"),
    "d4 until 4": dict(group="d4", equivariant_until=4, heads=8),
}
SIZE = dict(patch=4, depth=8, width=192)
BATCH, RATE, DECAY = 512, 1e-3, 0.05


def load(folder):
    parts = [np.load(Path(folder) / f"cifar10_train_batch{number}.npz") for number in range(1, 6)]
    test = np.load(Path(folder) / "cifar10_test.npz")
    images, labels = (np.concatenate([part[name] for part in parts]) for name in names(parts[0]))
    return images, labels, *(test[name] for name in names(test))


def names(archive):
    """Return the names of images and labels in an archive: the larger and the smaller array."""
    return sorted(archive.files, key=lambda name: -archive[name].size)[:2]


def as_tensors(images, labels, device):
    tensor = torch.from_numpy(np.ascontiguousarray(images)).to(device)
    if tensor.shape[-1] == 3:
        tensor = tensor.permute(0, 3, 1, 2)
    return tensor.contiguous(), torch.from_numpy(labels.astype(np.int64).ravel()).to(device)


def augment(images, turned):
    """Shift each image by up to 4 pixels, mirror half of them, and turn them by quarter turns if asked."""
    n, _, h, w = images.shape
    padded = pad(images, (4, 4, 4, 4))
    dy, dx = torch.randint(0, 9, (2, n, 1, 1), device=images.device)
    rows = dy + torch.arange(h, device=images.device)[:, None]
    columns = dx + torch.arange(w, device=images.device)
    flip = torch.rand(n, 1, 1, device=images.device) < 0.5
    columns = torch.where(flip, columns.flip(-1), columns)
    if turned:
        swap = torch.rand(n, 1, 1, device=images.device) < 0.5
        rows, columns = rows.expand(n, h, w), columns.expand(n, h, w)
        rows = torch.where(torch.rand(n, 1, 1, device=images.device) < 0.5, rows.flip(-2), rows)
        rows, columns = (torch.where(swap, index.mT, index) for index in (rows, columns))
    return padded[torch.arange(n, device=images.device)[:, None, None], :, rows, columns].permute(0, 3, 1, 2)


def accuracy(network, images, labels):
    correct = 0
    with torch.no_grad(), torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
        for start in range(0, len(images), 1000):
            correct += int((network(images[start : start + 1000]).argmax(1) == labels[start : start + 1000]).sum())
    return correct / len(images)


def train(name, seed, folder, seconds, device):
    torch.manual_seed(seed)
    network = equivariant_vit(in_channels=3, n_classes=10, image_size=32, **(SIZE | NETWORKS[name])).to(device)
    raw = load(folder)
    (images, labels), (tests, answers) = as_tensors(*raw[:2], device), as_tensors(*raw[2:], device)
    tests = (tests.float() / 255 - 0.47) / 0.25
    optimizer = torch.optim.AdamW(network.parameters(), RATE, weight_decay=DECAY, fused=device == "cuda")
    if device == "cuda":
        for block in network.blocks:
            block.compile()

    def step(batch):
        optimizer.zero_grad(set_to_none=True)
        given = augment((images[batch].float() / 255 - 0.47) / 0.25, name == "plain, turned")
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            scores = network(given)
        loss = cross_entropy(scores.float(), labels[batch], label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return loss.detach()

    state = {key: value.clone() for key, value in network.state_dict().items()}
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    for _ in range(3):
        step(torch.randint(len(images), (BATCH,), device=device))
    accuracy(network, tests[:1000], answers[:1000])
    network.load_state_dict(state)
    optimizer.state.clear()
    print("READY", flush=True)
    sys.stdin.readline()
    begin, steps, loss = time.perf_counter(), 0, None
    order = torch.randperm(len(images), device=device)
    per_epoch = len(images) // BATCH
    while (share := (time.perf_counter() - begin) / seconds) < 1:
        rate = RATE * min(1.0, share / 0.05) * 0.5 * (1 + math.cos(math.pi * share))
        for group in optimizer.param_groups:
            group["lr"] = rate
        if steps % per_epoch == 0:
            order = torch.randperm(len(images), device=device)
        loss = step(order[steps % per_epoch * BATCH :][:BATCH])
        steps += 1
        if steps % 8 == 0 and device == "cuda":
            torch.cuda.synchronize()  # the clock must not run ahead of the work
    network.eval()
    result = {"steps": steps, "epochs": steps / per_epoch, "loss": float(loss), "parameters": count_parameters(network)}
    result["upright"] = accuracy(network, tests, answers)
    result["quarter turns"] = mean(accuracy(network, torch.rot90(tests, k, (-2, -1)), answers) for k in (1, 2, 3))
    result["mirrored"] = accuracy(network, tests.flip(-1), answers)
    side = torch.arange(32, device=device) - 15.5
    disc = ((side[:, None] ** 2 + side**2).sqrt() <= 16).float()
    angles = [math.radians(angle) for angle in range(15, 360, 15)]
    turned = (accuracy(network, warp(tests, rotation(torch.tensor(a)).to(tests)) * disc, answers) for a in angles)
    result["disc upright"], result["any angle"] = accuracy(network, tests * disc, answers), mean(turned)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.one:
        found = train(options.one[0], int(options.one[1]), options.folder, options.seconds, options.device)
        print("RESULT " + json.dumps(found))
        return
    arguments = [options.folder, "--seconds", str(options.seconds), "--device", options.device]
    running = {
        (name, seed): subprocess.Popen(
            [sys.executable, __file__, *arguments, "--one", name, str(seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in options.networks
        for seed in range(options.seeds)
    }  # fmt: skip
    for process in running.values():
        any(line.startswith("READY") for line in iter(process.stdout.readline, ""))
    for process in running.values():
        if process.poll() is None:
            process.stdin.write("go\n")
            process.stdin.flush()
    results = {}
    for (name, seed), process in running.items():
        lines = [line for line in process.stdout.read().splitlines() if line.startswith("RESULT ")]
        if lines:
            results.setdefault(name, {})[seed] = json.loads(lines[-1][7:])
    found = {"seconds": options.seconds, "runs at once": len(running), "results": results}
    if options.out:
        Path(options.out).write_text(json.dumps(found, indent=1) + "\n")
    columns = ["upright", "quarter turns", "mirrored", "disc upright", "any angle"]
    print("| network | parameters (M) | epochs | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 3) + "|")
    for name, runs in results.items():
        cells = [
            f"{next(iter(runs.values()))['parameters'] / 1e6:.2f}",
            f"{mean(r['epochs'] for r in runs.values()):.0f}",
        ]
        for column in columns:
            values = [100 * run[column] for run in runs.values()]
            cells.append(f"{mean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else ""))
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
