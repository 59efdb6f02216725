"""Adapt a network for CIFAR-10 to turns by multiples of 45 degrees: accuracy upright and turned, and cost.

    UNPOSE_DATA=data python benchmarks/adapt_cifar.py --folder runs/cifar [--seed 0] [--device cuda] [--quick]
        [--part network|c8|c4|tuned|upright|turned|references|rest] [--epochs 40] [--tuning 120] [--steps 10000]
        [--seconds 0]
    python benchmarks/adapt_cifar.py --report cifar.json

A residual network of 18 layers is trained on 45,000 upright images and frozen. Two canonicalizers are trained on the
same images: a network of c8, and one of c4 on two views of each image. The one with the better frozen accuracy on 5,000
training images that are kept apart, upright and turned together, is used from there on. Images outside of their frame
are continued by reflection. Test images are used once, upright and each turned once at random.

Then the network is tuned behind the canonicalizer, with a square of each image erased. On training images a
canonicalizer errs less than on new ones, so the poses that the network is tuned at are drawn from the tempered
posterior, whose share of right poses is that of the images that were kept apart. Beside it, the network alone is tuned
equally long on upright images, and on turned ones, with erased squares too.

The cost is the number of multiplications of a call relative to the plain network, as torch counts them. The network
and both canonicalizers can be trained at the same time, as parts; "tuned" needs these, "upright" and "turned" (the
network alone) need the network, "references" tests these alone, and "rest" needs the files of all other parts. With
``--seconds``, canonicalizers are trained for as many of the steps as fit into this time.
"""

import argparse
import itertools
import json
import os
import platform
import sys
import time
from pathlib import Path

import torch
from torch import nn

from adapt import (
    HELD_OUT,
    accuracy,
    chosen_gate,
    conv,
    load,
    moved_at_random,
    multiplications,
    seconds,
    train,
    tried_gates,
    warped,
)
from unpose.adapt import canonicalize, fit_canonicalizer, gate_threshold, learned, most_certain, symmetrize
from unpose.groups import parse

GROUP, BORDER = "c8", "reflect"
SCORERS = {
    "c8": {"width": 14, "stages": (1, 1, 2, 3), "dropout": 0.1},
    "c4": {"width": 32, "stages": (1, 1, 3, 4), "dropout": 0.1, "views": 2},
}
KEPT = 0.99
ALLOWED_LOSS = 0.7
"""Points of upright accuracy, on images kept apart, that a gate may cost the tuned network against the plain one."""
GATES = (0.5, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99)
"""Shares of upright images that the tried gates leave alone; half of them and less is the same as no gate."""
DRAWS = 10
"""Canonical images of each training image that the network is tuned on."""


def data(options):
    x, y, tx, ty = (part.to(options.device) for part in load(options.data, "cifar10"))
    if options.quick:
        x, y, tx, ty = x[:700], y[:700], tx[:50], ty[:50]
    held = min(HELD_OUT, len(x) // 4)
    return x[:-held], y[:-held], x[-held:], y[-held:], tx, ty


class Block(nn.Module):
    """Two convolutions and what skips them; the first may halve the maps."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1, bias=False), nn.BatchNorm2d(after),
        )  # fmt: skip
        self.skip = nn.Identity()
        if stride > 1 or before != after:
            self.skip = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        return (self.inner(x) + self.skip(x)).relu()


def resnet18(w):
    """The residual network of 18 layers for images of 32 pixels; w = 64 has 11.2 million parameters."""
    widths = [w, w, w, 2 * w, 2 * w, 4 * w, 4 * w, 8 * w, 8 * w]
    blocks = [Block(a, b, 2 if a < b else 1) for a, b in itertools.pairwise(widths)]
    stem = nn.BatchNorm2d(3, affine=False), conv(3, w)
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * w, 10))


def plain_network(options):
    return resnet18(2 if options.quick else 64).to(options.device)


def scorer_of(name, options):
    shape = SCORERS[name] | ({"width": 2, "stages": (1, 1)} if options.quick else {})
    return learned(GROUP, 3, **shape).to(options.device)


def train_network(options):
    x, y, *_ = data(options)
    torch.manual_seed(options.seed)
    start = time.perf_counter()
    network = train(plain_network(options), x, y, options.epochs, flips=True, batch_size=options.batch_size)
    torch.save({"weights": network.state_dict(), "seconds": time.perf_counter() - start}, options.folder / "network.pt")


def train_scorer(name, options):
    x, y, *_ = data(options)
    fit = {"batch_size": options.batch_size, "border": BORDER, "device": options.device, "random_state": options.seed}
    steps = options.steps
    if options.seconds:
        times = []
        fit_canonicalizer(
            None, x, canonicalizer=scorer_of(name, options), mirrors=True, steps=60, **fit,
            progress=lambda *_: times.append(time.perf_counter()),
        )  # fmt: skip
        steps = min(steps, int(options.seconds * 40 / (times[-1] - times[19])))
    torch.manual_seed(options.seed)
    start = time.perf_counter()
    scorer = fit_canonicalizer(None, x, y, canonicalizer=scorer_of(name, options), mirrors=True, steps=steps, **fit)
    found = {"weights": scorer.state_dict(), "seconds": time.perf_counter() - start, "steps": steps}
    torch.save(found, options.folder / f"{name}.pt")


@torch.no_grad()
def log_weights(scorer, images):
    """(n, c, h, w) -> (n, 8): the log posterior of the elements by which upright images were turned."""
    return torch.cat([scorer.posterior(part)[0] for part in images.split(500)])


def right(scorer, images, elements):
    return 100 * float((log_weights(scorer, images).argmax(1) == elements.to(images.device)).float().mean())


def drawn_elements(logits, elements, share, generator):
    """Elements drawn from the tempered posterior, whose share of right ones is the given one."""
    low, high = 0.0, 20.0
    elements = elements.to(logits.device)
    for _ in range(40):
        middle = (low + high) / 2
        chance = (middle * logits).softmax(1).gather(1, elements[:, None]).mean()
        low, high = (middle, high) if chance < share else (low, middle)
    drawn = torch.multinomial((high * logits).softmax(1).cpu(), 1, generator=generator)[:, 0]
    return drawn.to(logits.device), 1 / high


@torch.no_grad()
def canonical_images(scorer, x, share, seed):
    """Every training image at several random poses, each brought back by the pose that the canonicalizer might find."""
    group, generator = parse(GROUP), torch.Generator().manual_seed(seed)
    found, temperature = [], 0.0
    for _ in range(DRAWS):
        elements = torch.randint(group.order, (len(x),), generator=generator)
        parts, logits = [], []
        poses = group.elements[elements].to(x)
        for part, pose in zip(x.split(1000), poses.split(1000), strict=True):
            moved = warped(part, pose, BORDER)
            parts.append(moved)
            logits.append(scorer.posterior(moved)[0])
        drawn, temperature = drawn_elements(torch.cat(logits), elements, share, generator)
        back = group.elements[group.inverse].to(x)[drawn]
        pairs = zip(torch.cat(parts).split(1000), back.split(1000), strict=True)
        found.append(torch.cat([warped(part, pose, BORDER) for part, pose in pairs]))
    return torch.cat(found), temperature


def stored_network(name, options):
    """The network of one of the parts, and what else its file says."""
    network = plain_network(options).eval()
    stored = torch.load(options.folder / f"{name}.pt", weights_only=True, map_location=options.device)
    network.load_state_dict(stored.pop("weights"))
    return network, stored


def best_scorer(network, options, kept_apart):
    """The canonicalizer that is best on images kept apart, its name, and the figures of all of them."""
    x, vx, validation, vy, elements = kept_apart
    best, scorers, figures = None, {}, {}
    for name in SCORERS:
        path = options.folder / f"{name}.pt"
        if not path.exists():
            continue
        stored = torch.load(path, weights_only=True, map_location=options.device)
        scorer = scorers[name] = scorer_of(name, options).eval()
        scorer.load_state_dict(stored["weights"])
        adapted = canonicalize(network, scorer, border=BORDER)
        figures[name] = {
            "steps": stored["steps"], "fit_seconds": stored["seconds"], "right": right(scorer, validation, elements),
            "right_upright": right(scorer, vx, torch.zeros(len(vx), dtype=torch.long)),
            "right_training": right(scorer, *_some_turned(x[:5000], options.seed)),
            "upright": accuracy(adapted, vx, vy), "turned": accuracy(adapted, validation, vy),
        }  # fmt: skip
        print(name, {k: round(v, 1) for k, v in figures[name].items()}, file=sys.stderr, flush=True)
        if best is None or _sum(figures[best]) < _sum(figures[name]):
            best = name
    return scorers[best], best, figures


def _sum(figures):
    return figures["upright"] + figures["turned"]


def turned_and_kept_apart(x, vx, vy, options):
    validation, poses = moved_at_random(vx, GROUP, BORDER, 2000 + options.seed)
    elements = torch.cdist(poses.flatten(1), parse(GROUP).elements.flatten(1).float()).argmin(1)
    return (x, vx, validation, vy, elements), poses


def train_tuned(options):
    """The network, tuned behind the better canonicalizer."""
    x, y, vx, vy, *_ = data(options)
    network, _ = stored_network("network", options)
    kept_apart, _ = turned_and_kept_apart(x, vx, vy, options)
    scorer, best, figures = best_scorer(network, options, kept_apart)
    canonical, temperature = canonical_images(scorer, x, figures[best]["right"] / 100, options.seed)
    torch.manual_seed(options.seed)
    tuned = train(network, canonical, y.repeat(DRAWS), tuning_epochs(options) // DRAWS, **tuning(options))
    torch.save({"weights": tuned.state_dict(), "temperature": temperature}, options.folder / "tuned.pt")


def rows_of(network, about, images, labels, file):
    """A function that measures a model on upright and turned test images, and writes all rows so far to a file."""
    rows = []
    upright, turned = images
    plain_cost, plain_time = multiplications(network, upright[:100]), seconds(network, upright[:500])

    def row(method, model):
        found = {
            "method": method,
            "upright": accuracy(model, upright, labels),
            "turned": accuracy(model, turned, labels),
        }
        found["cost"] = multiplications(model, turned[:100]) / plain_cost
        found["time"] = seconds(model, turned[:500]) / plain_time
        rows.append(found)
        print({k: round(v, 2) if k != "method" else v for k, v in found.items()}, file=sys.stderr, flush=True)
        file.write_text(json.dumps({"about": about, "results": rows}, indent=1))

    return row


def reference_rows(row, options):
    """The rows of the networks that were tuned alone, and these networks by name."""
    found = {}
    for name in REFERENCES:
        if (options.folder / f"{name}.pt").exists():
            found[name], _ = stored_network(name, options)
            row(f"plain, tuned equally long on {name} images", found[name])
    return found


def references(options):
    """The network alone, plain and tuned, on test images: needs no canonicalizer."""
    *_, tx, ty = data(options)
    network, stored = stored_network("network", options)
    turned, _ = moved_at_random(tx, GROUP, BORDER, 1000 + options.seed)
    row = rows_of(network, about_run(stored, options), (tx, turned), ty, options.folder / "references.json")
    row("plain", network)
    reference_rows(row, options)


def about_run(stored, options):
    machine = torch.cuda.get_device_name() if options.device.startswith("cuda") else platform.machine()
    return {
        "seed": options.seed, "network_seconds": stored["seconds"], "machine": machine, "torch": torch.__version__,
        "epochs": options.epochs, "tuning_epochs": tuning_epochs(options),
    }  # fmt: skip


def rest(options):
    x, _, vx, vy, tx, ty = data(options)
    network, stored = stored_network("network", options)
    about = about_run(stored, options)
    turned, _ = moved_at_random(tx, GROUP, BORDER, 1000 + options.seed)
    kept_apart, poses = turned_and_kept_apart(x, vx, vy, options)
    validation = kept_apart[2]
    scorer, best, figures = best_scorer(network, options, kept_apart)
    about |= figures | {"chosen": best}
    back = warped(validation, torch.linalg.inv(poses).to(validation), BORDER)
    about["validation"] = {
        "plain": accuracy(network, vx, vy), "plain, turned": accuracy(network, validation, vy),
        "true pose, turned": accuracy(network, back, vy),
    }  # fmt: skip
    row = rows_of(network, about, (tx, turned), ty, options.folder / "cifar.json")
    gate = gate_threshold(scorer, vx, KEPT)
    row("plain", network)
    row("mean over c8", symmetrize(network, "c8", border=BORDER))
    row("most certain of c8", symmetrize(network, "c8", most_certain, border=BORDER))
    row("learned", canonicalize(network, scorer, border=BORDER))
    row("learned, gate", canonicalize(network, scorer, gate, border=BORDER))

    tuned, stored = stored_network("tuned", options)
    about["temperature"] = stored["temperature"]
    row("learned, network tuned", canonicalize(tuned, scorer, border=BORDER))
    row("learned, gate, network tuned", canonicalize(tuned, scorer, gate, border=BORDER))
    tried = tried_gates(tuned, scorer, (vx, validation, vy), GATES, BORDER)
    kept = chosen_gate(tried, about["validation"]["plain"], ALLOWED_LOSS)
    about["gates"], about["gate_kept"] = tried, kept
    gated = canonicalize(tuned, scorer, gate_threshold(scorer, vx, kept), border=BORDER)
    row("learned, gate chosen on images kept apart, network tuned", gated)
    upright = reference_rows(row, options).get("upright")
    if upright is not None:
        row("learned, network tuned on upright images", canonicalize(upright, scorer, border=BORDER))


def tuning(options):
    return {"rate": 0.005, "flips": True, "erase": True, "batch_size": options.batch_size}


def tuning_epochs(options):
    return DRAWS * max(1, options.tuning // DRAWS)


def train_reference(name, options):
    """The network alone, tuned as long as behind the canonicalizer: on upright or on turned images."""
    x, y, *_ = data(options)
    network, _ = stored_network("network", options)
    torch.manual_seed(options.seed)
    tuned = train(network, x, y, tuning_epochs(options), move=REFERENCES[name], **tuning(options))
    torch.save({"weights": tuned.state_dict()}, options.folder / f"{name}.pt")


def _some_turned(images, seed):
    generator = None if seed is None else torch.Generator().manual_seed(3000 + seed)
    elements = torch.randint(8, (len(images),), generator=generator)
    return warped(images, parse(GROUP).elements[elements].to(images), BORDER), elements


REFERENCES = {"upright": None, "turned": lambda images: _some_turned(images, None)[0]}
"""What the images of a reference are moved by."""


def report(file):
    """Print the table of a finished run."""
    found = json.loads(file.read_text())
    about, rows = found["about"], found["results"]
    print("| CIFAR-10, multiples of 45 degrees | upright | turned | cost | time |\n|---|---|---|---|---|")
    for r in rows:
        print(f"| {r['method']} | {r['upright']:.2f} | {r['turned']:.2f} | {r['cost']:.2f} | {r['time']:.1f} |")
    print()
    for name in SCORERS:
        if name in about:
            a = about[name]
            print(
                f"canonicalizer {name}: {a['steps']} steps in {a['fit_seconds']:.0f} s; pose of {a['right']:.1f} % "
                f"of the turned images kept apart found, of {a['right_upright']:.1f} % of them upright and of "
                f"{a['right_training']:.1f} % of turned training images; frozen network on images kept apart: "
                f"{a['upright']:.2f} upright, {a['turned']:.2f} turned"
            )
    v = about["validation"]
    print(
        f"chosen: {about['chosen']}. The frozen network on images kept apart: {v['plain']:.2f} upright, "
        f"{v['plain, turned']:.2f} turned, {v['true pose, turned']:.2f} turned and brought back by the true pose"
    )
    print(
        f"the network was trained for {about['epochs']} epochs and tuned for {about['tuning_epochs']}; seed "
        f"{about['seed']}; measured on {about['machine']}, torch {about['torch']}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("cifar"))
    parser.add_argument("--report", type=Path, help="print the table of this file")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("UNPOSE_DATA", ".")))
    parser.add_argument(
        "--part", choices=["all", "network", *SCORERS, "tuned", *REFERENCES, "references", "rest"], default="all"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--tuning", type=int, default=120, help="epochs")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.report:
        report(options.report)
        return
    options.batch_size = 512
    if options.quick:
        options.epochs, options.tuning, options.steps, options.batch_size = 1, DRAWS, 2, 64
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    if options.part in ("all", "network"):
        train_network(options)
    for name in SCORERS:
        if options.part in ("all", name):
            train_scorer(name, options)
    if options.part in ("all", "tuned"):
        train_tuned(options)
    for name in REFERENCES:
        if options.part in ("all", name):
            train_reference(name, options)
    if options.part == "references":
        references(options)
    if options.part in ("all", "rest"):
        rest(options)
        report(options.folder / "cifar.json")


if __name__ == "__main__":
    main()
