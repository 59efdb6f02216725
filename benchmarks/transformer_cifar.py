"""Train vision transformers with and without a symmetry on CIFAR-10, for the same time, at the same width.

    python benchmarks/transformer_cifar.py FOLDER [--seconds 30] [--seeds 3] [--out FILE] [--ready FILE]

FOLDER holds ``cifar10_train_batch1.npz`` to ``5`` and ``cifar10_test.npz``. `plain` is the network of the recipe
cifar10-vit, `d1` and `d4` those of cifar10-vit-d1 and cifar10-vit-d4; `d4 until 4` has plain blocks after half of its
depth; `turned` networks are trained on images at random angles and mirrors, half of them inside of a disc. Shifts of up
to 4 pixels for all, mirrors for all but those that ignore them. `plain, canonicalizer` is the plain network behind a
canonicalizer (unpose.adapt), which is trained for as long again; the network does not change.

Every network is trained for as many steps as fit into the given time on a GPU of its own. The time of a step is
measured first, one network after the other, while nothing else runs; then all runs share the GPU. Compilation does not
count. The test set is read once, at the end: upright, mean over the three quarter turns, mean over 15, 30, ... 345
degrees inside of a disc. The file ``--ready`` is written when the times have been measured.
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

from unpose.adapt import canonicalize, fit_canonicalizer, learned
from unpose.groups import rotation
from unpose.images import warp
from unpose.nn import count_parameters, equivariant_vit

NETWORKS = {
    "plain": dict(group="c1", heads=4),
    "plain, turned": dict(group="c1", heads=4),
    "plain, canonicalizer": dict(group="c1", heads=4),
    "d1": dict(group="d1", heads=4),
    "d4": dict(group="d4", heads=8),
    "d4, turned": dict(group="d4", heads=8),
    "d4 until 4": dict(group="d4", equivariant_until=4, heads=8),
}
SIZE = dict(patch=4, depth=8, width=192)
SCORER = dict(views=2, width=32, stages=(1, 1, 3, 4), dropout=0.1)  # as in adapt_cifar.py, for any angle
BATCH, RATE, DECAY = 512, 1e-3, 0.05
TIMED = 40


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


def disc(device):
    side = torch.arange(32, device=device) - 15.5
    return ((side[:, None] ** 2 + side**2).sqrt() <= 16).float()


def augment(images, turned):
    """Shift each image by up to 4 pixels, mirror half of them, and turn them by random angles if asked."""
    n, _, h, w = images.shape
    padded = pad(images, (4, 4, 4, 4))
    dy, dx = torch.randint(0, 9, (2, n, 1, 1), device=images.device)
    rows = dy + torch.arange(h, device=images.device)[:, None]
    columns = dx + torch.arange(w, device=images.device)
    flip = torch.rand(n, 1, 1, device=images.device) < 0.5
    columns = torch.where(flip, columns.flip(-1), columns)
    images = padded[torch.arange(n, device=images.device)[:, None, None], :, rows, columns].permute(0, 3, 1, 2)
    if turned:
        images = warp(images.contiguous(), rotation(2 * math.pi * torch.rand(n, device=images.device)))
        is_cut = torch.rand(n, 1, 1, 1, device=images.device) < 0.5
        images = torch.where(is_cut, images * disc(images.device), images)
    return images


def accuracy(network, images, labels):
    correct = 0
    with torch.no_grad(), torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
        for start in range(0, len(images), 1000):
            correct += int((network(images[start : start + 1000]).argmax(1) == labels[start : start + 1000]).sum())
    return correct / len(images)


class Training:
    """A network, its optimizer, and one step of it, which is captured as a CUDA graph where there is a GPU."""

    def __init__(self, name, images, labels):
        self.images, self.labels, self.turned = images, labels, name.endswith("turned")
        device = images.device
        self.network = equivariant_vit(in_channels=3, n_classes=10, image_size=32, **(SIZE | NETWORKS[name])).to(device)
        self.batch = torch.zeros(BATCH, dtype=torch.long, device=device)
        is_cuda = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), torch.zeros((), device=device), weight_decay=DECAY, fused=is_cuda,
            capturable=is_cuda, foreach=None if is_cuda else False,
        )  # fmt: skip
        self.rate = self.optimizer.param_groups[0]["lr"]
        self.replay = self._captured() if is_cuda else self._step

    def _step(self):
        self.optimizer.zero_grad(set_to_none=True)
        given = augment((self.images[self.batch].float() / 255 - 0.47) / 0.25, self.turned)
        with torch.autocast(given.device.type, torch.bfloat16, enabled=given.is_cuda):
            scores = self.network(given)
        cross_entropy(scores.float(), self.labels[self.batch], label_smoothing=0.1).backward()
        self.optimizer.step()

    def _captured(self):
        for block in self.network.blocks:
            block.compile()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(4):  # at a rate of zero, so that the weights stay
                self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        return graph.replay

    def restart(self):
        """Forget the gradients of the steps before the first; the weights have not changed."""
        for state in self.optimizer.state.values():
            for value in state.values():
                value.zero_()

    def run(self, steps):
        """All steps; the learning rate rises over a twentieth of them and falls as a cosine."""
        per_epoch = len(self.images) // BATCH
        order = torch.randperm(len(self.images), device=self.images.device)
        for step in range(steps):
            share = step / steps
            self.rate.fill_(RATE * min(1.0, share / 0.05) * 0.5 * (1 + math.cos(math.pi * share)))
            if step % per_epoch == 0:
                order = torch.randperm(len(self.images), device=self.images.device)
            self.batch.copy_(order[step % per_epoch * BATCH :][:BATCH])
            self.replay()


def fit_scorer(images, steps, seed):
    torch.manual_seed(seed)
    scorer = learned("so2", 3, **SCORER).to(images.device)
    images = (images.float() / 255 - 0.47) / 0.25
    options = {"batch_size": BATCH, "device": images.device, "random_state": seed}
    return fit_canonicalizer(None, images, canonicalizer=scorer, mirrors=True, steps=steps, **options)


def seconds_of(function):
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    begin = time.perf_counter()
    function()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def train(name, seed, folder, device):
    """Build, wait until told how many steps to train, and measure; a parent process talks to this one."""
    raw = load(folder)
    (images, labels), (tests, answers) = as_tensors(*raw[:2], device), as_tensors(*raw[2:], device)
    tests = (tests.float() / 255 - 0.47) / 0.25
    torch.manual_seed(seed)
    training, has_scorer = Training(name, images, labels), name.endswith("canonicalizer")
    if has_scorer:
        fit_scorer(images[:2000], 5, seed)
    print("READY", flush=True)
    if sys.stdin.readline().startswith("time"):
        training.rate.zero_()
        step = seconds_of(lambda: [training.replay() for _ in range(TIMED)]) / TIMED
        found = [step, seconds_of(lambda: fit_scorer(images[:2000], TIMED, seed)) / TIMED if has_scorer else 0.0]
        print("TIMES " + json.dumps(found), flush=True)
        sys.stdin.readline()
    steps, scorer_steps = json.loads(sys.stdin.readline())
    training.restart()
    torch.manual_seed(seed + 1)
    training.run(steps)
    model = network = training.network.eval()
    if has_scorer:
        model = canonicalize(network, fit_scorer(images, scorer_steps, seed))
    result = {"steps": steps, "epochs": steps // (len(images) // BATCH), "parameters": count_parameters(network)}
    result["scorer_steps"] = scorer_steps
    result["upright"] = accuracy(model, tests, answers)
    result["quarter turns"] = mean(accuracy(model, torch.rot90(tests, k, (-2, -1)), answers) for k in (1, 2, 3))
    result["mirrored"] = accuracy(model, tests.flip(-1), answers)
    inside = disc(device)
    angles = [math.radians(angle) for angle in range(15, 360, 15)]
    turned = (accuracy(model, warp(tests, rotation(torch.tensor(a)).to(tests)) * inside, answers) for a in angles)
    result["disc upright"], result["any angle"] = accuracy(model, tests * inside, answers), mean(turned)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out")
    parser.add_argument("--ready", type=Path)
    options = parser.parse_args()
    if options.one:
        found = train(options.one[0], int(options.one[1]), options.folder, options.device)
        print("RESULT " + json.dumps(found))
        return
    running = {
        (name, seed): subprocess.Popen(
            [sys.executable, __file__, options.folder, "--device", options.device, "--one", name, str(seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in options.networks
        for seed in range(options.seeds)
    }  # fmt: skip

    def answer(process, word):
        return next((line for line in iter(process.stdout.readline, "") if line.startswith(word)), None)

    def tell(process, line):
        process.stdin.write(line + "\n")
        process.stdin.flush()

    ready = {key: process for key, process in running.items() if answer(process, "READY")}
    times = {}
    for name in options.networks:
        if (name, 0) in ready:
            tell(ready[name, 0], "time")
            times[name] = json.loads(answer(ready[name, 0], "TIMES")[6:])
    if options.ready:
        options.ready.touch()
    for (name, _), process in ready.items():
        if name in times:
            tell(process, f"go\n{[max(1, int(options.seconds / each)) if each else 0 for each in times[name]]}")
    results = {}
    for (name, seed), process in running.items():
        lines = [line for line in process.stdout.read().splitlines() if line.startswith("RESULT ")]
        if lines:
            results.setdefault(name, {})[seed] = json.loads(lines[-1][7:])
    found = {"seconds": options.seconds, "step seconds": times, "results": results}
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
