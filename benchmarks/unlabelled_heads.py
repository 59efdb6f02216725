"""Three heads for learning without labels that the package does not have: does each do what it is for?

    UNPOSE_DATA=/path/to/arrays python benchmarks/unlabelled_heads.py [--seeds 3] [--steps 1000] [--device cuda]
                                                                      [--workers 1] [--sets clothes,digits] [--small]

5,000 upright images of a test set are learnt by a plain residual network (group c1, which sees how an image is turned)
with VICReg alone, with VICReg for 1.5 times the steps, which take as long as with a head, and with each head. A head
sees the vectors of a view and of the same view after a quarter turn, which is exact, so that no trace of interpolation
tells the turn. Probes are logistic regressions on 5,000 other images, fitted on one half and tested on the other:

turn    which of four quarter turns was applied (Dangovski et al. 2022): the class of upright images must be easier to
        read than from VICReg alone in the same time
split   one half of the vector for VICReg, the other turns with the image (Garrido et al. 2023): of images at random
        quarter turns, the class must be read from the first half, the turn from the second, and neither when exchanged
gram    turning keeps the cosines between vectors (Gupta et al. 2023): an orthogonal matrix for each turn, fitted on one
        half of the images, must predict the turned vectors of the others clearly better than the identity does

`orthogonal` and `identity` are squared distances of turned unit vectors from those moved by the matrix and from unmoved
ones. Where a matrix predicts as well without the head, relative to the identity, the head has given nothing. `--small`
takes half as many images and a quarter of the channels, for a CPU.
"""

import argparse
import multiprocessing

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.nn.functional import cross_entropy, normalize

from arrays import load
from unpose.images import quarter_turn
from unpose.train import predict_logits, recipe_from, vicreg_loss
from unpose.train.batches import seed_for
from unpose.train.loop import optimize
from unpose.train.unlabelled import EncoderAndExpander, Unlabelled, _unlabelled_dataset

SETS = {"clothes": "fashion_mnist.npz", "digits": "mnist.npz"}
RUNS = {"VICReg": 1.0, "VICReg, 1.5 times the steps": 1.5, "turn": 1.0, "split": 1.0, "gram": 1.0}
"""Name -> steps relative to the others."""
_TURN_WEIGHT, _GRAM_WEIGHT = 5.0, 100.0
"""So that a head's loss is about a third of that of VICReg at the beginning."""
_PAIRS = 32
"""Pairs of numbers that turn with the image, in the loss of a split vector."""


def quarter_turned(images, turns):
    """Turn each square image (b, c, h, h) by its own number of quarter turns (b,)."""
    every = torch.stack([quarter_turn(images, number) for number in range(4)])  # (4, b, c, h, h)
    return every[turns, torch.arange(len(images), device=images.device)]


def turned_pairs(pairs, turns):
    """Rotate pairs of numbers (b, 2 m) by quarter turns (b,)."""
    x, y = pairs.unflatten(1, (-1, 2)).unbind(2)  # (b, m) each
    angle = turns[:, None].to(pairs.dtype) * (torch.pi / 2)
    cosine, sine = angle.cos(), angle.sin()
    return torch.stack([cosine * x - sine * y, sine * x + cosine * y], dim=2).flatten(1)


class WithHead(EncoderAndExpander):
    """Images (b, c, h, w) -> expanded vectors and the head's outputs, side by side."""

    def __init__(self, encoder, width, head):
        width_of = encoder.description.get("n_classes")
        super().__init__(encoder, width)
        self.kind, self.width = head, width
        if head == "turn":
            self.head = nn.Sequential(nn.BatchNorm1d(width_of), nn.Linear(width_of, 4))
        elif head == "split":
            other, inner = width_of // 2, 8 * _PAIRS
            self.head = nn.Sequential(
                nn.BatchNorm1d(other), nn.Linear(other, inner), nn.BatchNorm1d(inner), nn.ReLU(),
                nn.Linear(inner, 2 * _PAIRS),
            )  # fmt: skip
        else:
            self.head = nn.BatchNorm1d(width_of, affine=False)

    def forward(self, images):
        vectors = self.encoder(images)
        with torch.autocast(vectors.device.type, enabled=False):
            vectors = vectors.float()
            if self.kind == "split":  # VICReg sees every second entry, the head the others
                kept = torch.zeros_like(vectors)
                kept[:, ::2] = vectors[:, ::2]
                return torch.cat([self.expander(kept), self.head(vectors[:, 1::2])], dim=1)
            return torch.cat([self.expander(vectors), self.head(vectors)], dim=1)


class Headed(Unlabelled):
    """VICReg of two views, and a head for the first view before and after quarter turns."""

    head = ""

    def trained(self, network):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(self.recipe.seed, "expander"))
            return WithHead(network, self.recipe.unlabelled.expander, self.head)

    def batch(self, store, rows, step):
        """Two views and the turned first views, (3 b, c, h, w), and the turns (b,)."""
        views, _ = super().batch(store, rows, step)
        generator = torch.Generator().manual_seed(seed_for(self.recipe.seed, "turns", step))
        turns = torch.randint(4, (len(rows),), generator=generator)
        if self.head == "gram":  # one turn for the whole batch, not the identity
            turns = (1 + turns[:1] % 3).expand(len(rows))
        turns = turns.to(self.device)
        return torch.cat([views, quarter_turned(views[: len(rows)], turns)]), turns

    def loss(self, outputs, labels):
        width, n = self.recipe.unlabelled.expander, len(labels)
        base, _ = super().loss(outputs[: 2 * n, :width], labels)
        first, turned = outputs[:n, width:], outputs[2 * n :, width:]
        if self.head == "turn":
            added = _TURN_WEIGHT * cross_entropy(turned, labels)
        elif self.head == "split":
            added = vicreg_loss(turned_pairs(first, labels), turned)
        else:
            first, turned = normalize(first, dim=1), normalize(turned, dim=1)
            added = _GRAM_WEIGHT * (first @ first.T - turned @ turned.T).square().mean()
        return base + n * added, torch.zeros((), device=outputs.device)


def recipe(steps, seed, largest_angle, small):
    return recipe_from({
        "epochs": max(2, steps // 50), "batch_size": 128 if small else 256, "seed": seed, "keep": "last",
        "mixed_precision": not small,
        "network": {
            "kind": "group_resnet", "group": "c1",
            "options": {"widths": [8, 16, 32] if small else [32, 64, 128], "depths": [1, 1, 1]},
        },
        "optimizer": {"learning_rate": 0.001, "weight_decay": 0.001, "warmup_epochs": 1},
        "poses": {"max_angle": largest_angle, "max_shift": 2, "max_scale": 1.25, "max_stretch": 1.1, "bend": 0.5},
        "unlabelled": {
            "loss": "vicreg", "steps": 50, "expander": 256 if small else 512, "contrast": 1.4, "brightness": 0.08,
            "noise": 0.04,
        },
    })  # fmt: skip


def vectors(encoder, images, device):
    return predict_logits(encoder.to(device).eval(), np.ascontiguousarray(images)).double().cpu().numpy()


def probe(points, target):
    """Accuracy of logistic regression, fitted on one half and tested on the other."""
    half = len(points) // 2
    points = (points - points[:half].mean(0)) / (points[:half].std(0) + 1e-6)
    fitted = LogisticRegression(C=0.1, max_iter=150).fit(points[:half], target[:half])
    return float(fitted.score(points[half:], target[half:]))


def moved_errors(encoder, images, device):
    """Squared distance of turned unit vectors from those moved by an orthogonal matrix, and from unmoved ones."""
    half = len(images) // 2
    still = vectors(encoder, images, device)
    mean, spread = still[:half].mean(0), still[:half].std(0) + 1e-6

    def unit(found):
        points = (found - mean) / spread
        return points / np.linalg.norm(points, axis=1, keepdims=True)

    before, errors = unit(still), []
    for turns in (1, 2, 3):
        after = unit(vectors(encoder, np.rot90(images, turns, (1, 2)), device))
        left, _, right = np.linalg.svd(before[:half].T @ after[:half])
        guesses = (before[half:] @ left @ right, before[half:])
        errors.append([np.square(guess - after[half:]).sum(1).mean() for guess in guesses])
    return np.mean(errors, axis=0)


def run(task):
    name, seed, what, options = task
    torch.set_num_threads(options.threads)
    device = options.device
    x, y = load(SETS[name], "x_test", "y_test")
    rows = np.random.default_rng(seed).permutation(len(x))[: 5000 if options.small else 10000]
    images, classes = x[rows].astype(np.float32) / 255, y[rows].astype(np.int64)
    count, steps = len(images) // 2, int(RUNS[what] * options.steps)
    kind = type("Objective", (Headed,), {"head": what}) if what in ("turn", "split", "gram") else Unlabelled
    # A split vector is for images at any angle; the other proofs ask for views that are not turned.
    made = recipe(steps, seed, 180 if what == "split" else 10, options.small)
    encoder = optimize(_unlabelled_dataset(images[:count], name), made, kind=kind, device=device).best_network().encoder
    rest, kinds = images[count:], classes[count:]
    turns = np.random.default_rng(seed + 9).integers(0, 4, len(rest))
    around = vectors(encoder, np.stack([np.rot90(image, k) for image, k in zip(rest, turns, strict=True)]), device)
    found = {
        "steps": steps, "class, upright": probe(vectors(encoder, rest, device), kinds), "turn": probe(around, turns),
    }  # fmt: skip
    if what == "split":
        for half, start in (("first", 0), ("second", 1)):
            part = around[:, start::2]
            found |= {f"{half} half, class": probe(part, kinds), f"{half} half, turn": probe(part, turns)}
    found["orthogonal"], found["identity"] = moved_errors(encoder, rest, device)
    found["ratio"] = found["orthogonal"] / found["identity"]
    return (name, what), seed, found


def spread(values):
    return f"{np.mean(values):.3f} ± {max(abs(values - np.mean(values))):.3f}"


def show(results, columns, wanted):
    """A table of the runs that are wanted: mean over the seeds and the largest deviation from it."""
    print(f"| images | learnt with | steps | {' | '.join(columns)} |")
    print("|---" * (3 + len(columns)) + "|")
    for (name, what), runs in results.items():
        if what in wanted:
            cells = [spread(np.array([run[key] for run in runs.values()])) for key in columns]
            print(f"| {name} | {what} | {next(iter(runs.values()))['steps']:,} | {' | '.join(cells)} |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2, help="of each training")
    parser.add_argument("--workers", type=int, default=1, help="trainings that run at the same time")
    parser.add_argument("--small", action="store_true", help="a smaller network and fewer images, for a CPU")
    options = parser.parse_args()
    names = options.sets.split(",")
    tasks = [(name, seed, what, options) for seed in range(options.seeds) for name in names for what in RUNS]
    results = {(name, what): {} for name in names for what in RUNS}
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for key, seed, found in pool.imap_unordered(run, tasks):
            results[key][seed] = found
    show(results, ("class, upright", "turn", "orthogonal", "identity", "ratio"), RUNS)
    halves = [f"{half} half, {what}" for half in ("first", "second") for what in ("class", "turn")]
    show(results, halves, ("split",))


if __name__ == "__main__":
    main()
