"""Does `unpose.discover` find the symmetry that was planted, and the known ones of real images? Do recipes learn it?

    UNPOSE_DATA=/path/to/arrays python benchmarks/symmetry.py [planted] [real] [generators] [learned]
                                                              [--seeds 2] [--jobs 1] [--device cpu] [--out FILE]
    python benchmarks/symmetry.py --tables FILE...      # the tables of finished runs, in Markdown

`planted`: images with a known upright pose are turned by any angle, turned within 30 degrees, left upright, mirrored at
random, left unmirrored, or scaled within 1.2; no labels are given. Cells and plankton have no upright pose, clothes are
not used for mirrors, because most are symmetric. docs/benchmarks/discover.md says on which images rules were chosen.
`real`: images as they are, with their labels and without.
`generators`: images moved by random elements of a one-parameter group; does `find_generators` find it? Developed on
digits; the other sets were not used.
`learned`: the three methods of `[symmetry]` in recipes, on digits that are upright, turned by any angle or mirrored at
random, beside a plain network, blind augmentation and augmentation within the angle that `discover` finds. The test
images are used once. Needs a GPU for minutes, or a CPU for hours.
"""

import argparse
import datetime
import json
import math
import multiprocessing
import platform
import sys
import time

import numpy as np
import torch

from arrays import load
from unpose.data import Dataset, Split, posed
from unpose.discover import discover, find_generators
from unpose.groups import parse_continuous
from unpose.images import as_batch, warp
from unpose.train import predict_logits, recipe_from, train

COUNT = 1500
TRIED = ("turns", "mirror", "half turn", "quarter turn", "scale")


def images_of(name, seed, n=COUNT):
    if name == "omniglot":
        packed, y = load("omniglot_8alphabets.npz", "x_packed", "y")
        x = np.unpackbits(packed, axis=2)[:, :, :105] * 255
    elif name == "cifar10":
        x, y = load("cifar10_train_batch1.npz", "x_train", "y_train")
    elif name in ("mnist", "fashion_mnist"):
        x, y = load(f"{name}.npz", "x_train", "y_train")
    else:
        x, y = load(f"{name}.npz", "x", "cell_line" if name == "osteosarcoma_cells" else "y")
    chosen = np.random.default_rng(seed).permutation(len(x))[:n]
    return x[chosen].astype(np.float32) / 255, y[chosen]


def turned(x, seed, degrees):
    return posed(x, "so2", random_state=seed, max_angle=math.radians(degrees)).images


def mirrored(x, seed):
    flip = np.random.default_rng(seed).random(len(x)) < 0.5
    return np.where(flip.reshape(-1, *[1] * (x.ndim - 1)), x[:, :, ::-1], x)


def scaled(x, seed, factor):
    return posed(x, "similarity", random_state=seed, max_angle=0.0, max_shift=0.0, max_scale=factor).images


def up_to(low, high):
    return lambda found: found.verdict == "holds up to" and low <= found.limit <= high


def is_verdict(*verdicts):
    return lambda found: found.verdict in verdicts


def nearly_upright(found):
    """Hand-drawn images differ by up to some 20 degrees by themselves."""
    return found.verdict == "does not hold" or (found.verdict == "holds up to" and found.limit <= 25)


# name -> (family, how the set is made, what is right, largest strength that holds: to say more is a false alarm)
PLANTED = {
    "turned by any angle": ("turns", lambda x, s: turned(x, s, 180), is_verdict("holds"), math.inf),
    "turned within 30": ("turns", lambda x, s: turned(x, s, 30), up_to(20, 50), 50),
    "upright": ("turns", lambda x, s: x, nearly_upright, 25),
    "mirrored at random": ("mirror", mirrored, is_verdict("holds"), math.inf),
    "never mirrored": ("mirror", lambda x, s: x, is_verdict("does not hold"), 0),
    "scaled within 1.2": ("scale", lambda x, s: scaled(x, s, 1.2), up_to(1.1, 1.45), 1.45),
}
UPRIGHT = ("mnist", "omniglot", "mpeg7_shapes", "fashion_mnist", "cifar10")
BASES = (*UPRIGHT, "chula_rbc", "plankton_ndsb", "osteosarcoma_cells")
SKIPPED = {("fashion_mnist", "never mirrored"), ("cifar10", "never mirrored"), ("cifar10", "scaled within 1.2")}
SKIPPED |= {(base, condition) for base in BASES if base not in UPRIGHT
            for condition in ("turned within 30", "upright", "never mirrored")}  # fmt: skip
NETWORK = "A network for photographs"  # how the reason begins where the network of the extra `features` decided
REAL = {
    "mnist": {"turns": up_to(15, 45), "mirror": is_verdict("does not hold"), "half turn": is_verdict("does not hold")},
    "fashion_mnist": {"mirror": is_verdict("holds"), "half turn": is_verdict("does not hold")},
    "plankton_ndsb": {"turns": is_verdict("holds"), "mirror": is_verdict("holds")},
    "chula_rbc": {"turns": is_verdict("holds"), "mirror": is_verdict("holds")},
    "cifar10": {"mirror": is_verdict("holds"), "half turn": is_verdict("does not hold"),
                "quarter turn": is_verdict("does not hold")},
    "omniglot": {"turns": up_to(10, 45), "mirror": is_verdict("does not hold")},
}  # fmt: skip


def planted(task):
    base, condition, seed = task
    family, make, is_right, most = PLANTED[condition]
    found = discover(make(images_of(base, seed)[0], seed), families=[family], random_state=seed)[family]
    claimed = {"holds": math.inf, "holds up to": found.limit}.get(found.verdict, 0)
    return {"base": base, "planted": condition, "seed": seed, "verdict": found.answer, "right": bool(is_right(found)),
            "false_alarm": claimed > most, "why": found.why}  # fmt: skip


def real(task):
    name, seed = task
    x, y = images_of(name, seed, 3000)
    rows = []
    for labels in (y, None):
        found = discover(x, labels, families=TRIED, random_state=seed)
        for family in TRIED:
            each = found[family]
            expected = REAL[name].get(family)
            rows.append({"set": name, "seed": seed, "labels": labels is not None, "family": family,
                         "verdict": each.answer, "right": None if expected is None else bool(expected(each)),
                         "why": each.why})  # fmt: skip
        rows.append({"set": name, "seed": seed, "labels": labels is not None, "family": "all",
                     "verdict": f"{found.options}; {found.finite_group}", "right": None, "why": ""})  # fmt: skip
    return rows


# name -> (coordinates in the affine Lie algebra, largest strength; uniform within), and none
PLANTED_GENERATORS = {
    "turn": ((0, 0, 1, 0, 0, 0), math.pi),
    "turn, within 30 degrees": ((0, 0, 1, 0, 0, 0), math.pi / 6),
    "shear": ((0, 0, 0, 0, 0, 1), 0.6),
    "shear along x": ((0, 0, 0.5, 0, 0, 0.5), 0.8),
    "nothing": ((0, 0, 0, 0, 0, 0), 0.0),
}


def generators(task):
    base, name, seed = task
    x, _ = images_of(base, seed)
    coordinates, most = PLANTED_GENERATORS[name]
    batch = as_batch(x)
    margin = batch.shape[-1] // 7  # sheared images need space
    batch = torch.nn.functional.pad(batch - batch[..., :1, :1], [margin] * 4)
    strength = 2 * torch.rand(len(batch), 1, generator=torch.Generator().manual_seed(seed)) - 1
    poses = parse_continuous("affine").exp(most * strength * torch.tensor(coordinates, dtype=torch.float32))
    moved = warp(batch, poses).movedim(1, -1).numpy()
    started = time.process_time()
    found = find_generators(moved, random_state=seed)
    best = found.all[0]
    wanted = "turn" if name.startswith("turn") else name
    return {"base": base, "development": base == "mnist", "planted": name, "seed": seed, "found": best.name,
            "cosine": None if name == "nothing" else best.cosine(wanted),
            "spreads": [min(each.spread, 99.0) for each in found.all],  # infinity is not JSON
            "group": found.group, "cpu_seconds": time.process_time() - started}  # fmt: skip


CANDIDATES = ("so2", "d1", "c2")
FAMILY = {"so2": "turns", "d1": "mirror", "c2": "half turn"}
# world -> (how images are made, which candidates hold)
WORLDS = {
    "upright": (lambda x, s: x, ()),
    "turned by any angle": (lambda x, s: turned(x, s, 180), ("so2", "c2")),
    "mirrored at random": (mirrored, ("d1",)),
}
DISCOVERED = 19.5  # degrees within which discover said that turns of digits hold when `learned` was run
RECIPES = {
    "plain": {},
    "blind augmentation, 180 degrees": {"poses": {"max_angle": 180}},
    f"augmentation, {DISCOVERED} degrees": {"poses": {"max_angle": DISCOVERED}},
    "soft": {"symmetry": {"method": "soft", "groups": ["so2"]}},
    "constrained": {"symmetry": {"method": "constrained", "groups": ["so2"]}},
    "instance": {"symmetry": {"method": "instance", "groups": ["so2"]}},
}


TURNING = (0, 8), (6, 9)
"""Digits that look the same after half a turn, and those that become another digit."""


def digits(seed, make, sizes):
    """Digits divided into training, validation and test images, each made by ``make``."""
    x, y, x_test, y_test = load("mnist.npz", "x_train", "y_train", "x_test", "y_test")
    chosen = np.random.default_rng(1000 + seed).permutation(len(x))[: sizes[0] + sizes[1]]
    parts = [(x[chosen[: sizes[0]]], y[chosen[: sizes[0]]]), (x[chosen[sizes[0] :]], y[chosen[sizes[0] :]])]
    parts.append((x_test[: sizes[2]], y_test[: sizes[2]]))
    splits = [Split(make(images.astype(np.float32) / 255, 3 * seed + k), labels.astype(np.int64))
              for k, (images, labels) in enumerate(parts)]  # fmt: skip
    return Dataset("digits", "MNIST", tuple("0123456789"), *splits)


def trained(dataset, seed, changes, given):
    network = {"kind": "group_resnet", "group": "c1", "options": {"widths": [16, 32, 64], "depths": [1, 1, 1]}}
    table = {"epochs": given.epochs, "batch_size": 128, "seed": seed, "keep": "last", "network": network,
             "optimizer": {"learning_rate": 0.003, "warmup_epochs": 1}} | changes  # fmt: skip
    started = time.monotonic()
    result = train(dataset, recipe_from(table), device=given.device)
    return result, time.monotonic() - started


def learned(given):
    """Rows of both tables, printed as they come."""
    sizes = (given.images, given.images // 10, given.images)
    rows = []
    for seed in range(given.seeds):
        upright = digits(seed, WORLDS["upright"][0], sizes)
        test = upright.test
        around = Split(turned(test.images, 77, 180), test.labels)
        for name, changes in RECIPES.items():
            result, seconds = trained(upright, seed, changes, given)
            answers = predict_logits(result.network.to(given.device), around.images).argmax(1)
            row = {"table": "recipes", "recipe": name, "seed": seed, "upright": result.test_accuracy,
                   "turned": float((answers.numpy() == around.labels).mean()), "seconds": seconds,
                   "strengths": None if result.symmetry is None else result.symmetry.strengths()}  # fmt: skip
            if name == "instance":
                ranges = result.symmetry.ranges(as_batch(test.images))[:, 0].detach().rad2deg().numpy()
                row["ranges"] = [float(ranges[test.labels == k].mean()) for k in range(10)]
            rows.append(row)
            print(json.dumps(row), flush=True)
        for world, (make, true) in WORLDS.items():
            dataset = digits(seed, make, sizes)
            sample = dataset.train.take(np.arange(min(2000, len(dataset.train))))
            families = [FAMILY[candidate] for candidate in CANDIDATES]
            found = discover(sample.images, sample.labels, families=families) if seed == 0 else None
            for method in ("constrained", "soft"):
                changes = {"symmetry": {"method": method, "groups": list(CANDIDATES)}}
                result, seconds = trained(dataset, seed, changes, given)
                strengths = result.symmetry.strengths()
                figures = strengths["multipliers" if method == "constrained" else "mismatch"]
                rows.append({"table": "worlds", "world": world, "method": method, "seed": seed, "true": true,
                             "figures": figures, "test": result.test_accuracy, "seconds": seconds,
                             "discover": found and {c: found[FAMILY[c]].answer for c in CANDIDATES}})  # fmt: skip
                print(json.dumps(rows[-1]), flush=True)
    return rows


def tables(results):
    """The tables of docs/benchmarks/discover.md; wrong verdicts are bold."""
    planted_rows, real_rows = results.get("planted"), results.get("real")
    lines = []
    if planted_rows:
        lines += ["| images | " + " | ".join(PLANTED) + " |", "|---" * (len(PLANTED) + 1) + "|"]
    for base in BASES if planted_rows else ():
        cells = [verdict_cell([row for row in planted_rows if (row["base"], row["planted"]) == (base, condition)])
                 for condition in PLANTED]  # fmt: skip
        lines.append(f"| {base} | " + " | ".join(cells) + " |")
    if planted_rows:
        right, false_alarms = (sum(row[key] for row in planted_rows) for key in ("right", "false_alarm"))
        network = sum(row["why"].startswith(NETWORK) for row in planted_rows)
        lines += ["", f"{right} of {len(planted_rows)} verdicts are right; false alarms: {false_alarms}",
                  f"decided by the network of the extra `features`, 'cannot tell' without it: {network}"]  # fmt: skip
    if real_rows:
        lines += ["", *real_table(real_rows)]
    if results.get("generators"):
        lines += ["", *generator_table(results["generators"])]
    if results.get("learned"):
        lines += ["", *learned_tables(results["learned"])]
    return "\n".join(lines)


def real_table(rows):
    """Verdicts on images as they are, and how many of the expected ones were found."""
    lines = ["| images | known | " + " | ".join(TRIED) + " | options, first seed |", "|---" * (len(TRIED) + 3) + "|"]
    for name in REAL:
        for labels in (True, False):
            own = [row for row in rows if (row["set"], row["labels"]) == (name, labels)]
            cells = [verdict_cell([row for row in own if row["family"] == family]) for family in TRIED]
            options = next(row["verdict"].split(";")[0] for row in own if row["family"] == "all")
            known = "labels" if labels else "images only"
            lines.append(f"| {name} | {known} | " + " | ".join(cells) + f" | `{options}` |")
    expected = [row for row in rows if row["right"] is not None]
    counts = [[row["right"] for row in expected if row["labels"] == labels] for labels in (True, False)]
    with_labels, without = (f"{sum(right)} of {len(right)}" for right in counts)
    return [*lines, "", f"expected verdicts: {with_labels} with labels, {without} from images only"]


def verdict_cell(rows):
    """The verdicts of all seeds, equal ones once; wrong ones bold, those of the network marked."""
    limits = {}  # verdict without its limit, with its marks -> limits
    for row in rows:
        limit, _, unit = row["verdict"].removeprefix("holds up to ").partition(" ")
        is_limited = row["verdict"].startswith("holds up to ")
        words = f"holds up to {{}} {unit}" if is_limited else row["verdict"]
        words += " (network)" if row["why"].startswith(NETWORK) else ""
        limits.setdefault(words if row["right"] is not False else f"**{words}**", []).append(limit)
    return "; ".join(words.format(", ".join(dict.fromkeys(each))) for words, each in limits.items()) or "-"


def generator_table(rows):
    """Smallest cosine over the seeds, and how often it was called free."""
    lines = ["| planted | " + " | ".join(UPRIGHT) + " |", "|---" * (len(UPRIGHT) + 1) + "|"]
    for name in PLANTED_GENERATORS:
        cells = []
        for base in UPRIGHT:
            own = [row for row in rows if (row["base"], row["planted"]) == (base, name)]
            free = f"{sum(row['group'] is not None for row in own)} of {len(own)} free"
            cosines = [row["cosine"] for row in own if row["cosine"] is not None]
            cells.append((f"{min(cosines):.4f}, " if cosines else "") + free if own else "-")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def learned_tables(rows):
    """Accuracies of the recipes, and what was learned in each world; one figure for each seed."""
    lines = ["| recipe | upright | turned | reach or ranges | seconds |", "|---|---|---|---|---|"]
    for name in RECIPES:
        own = [row for row in rows if row.get("recipe") == name]
        learned_figures = ""
        if name == "constrained":
            learned_figures = "; ".join(f"{180 * row['strengths']['reach']['so2']:.0f} degrees" for row in own)
        if name == "soft":
            learned_figures = "mismatch " + "; ".join(f"{row['strengths']['mismatch']['so2']:.2f}" for row in own)
        if name == "instance":
            means = [[f"{np.mean([row['ranges'][k] for k in kinds]):.0f}" for row in own] for kinds in TURNING]
            learned_figures = "0 and 8: {} degrees, 6 and 9: {} degrees".format(*("; ".join(each) for each in means))
        upright, turned_figures, seconds = ([row[key] for row in own] for key in ("upright", "turned", "seconds"))
        lines.append(f"| {name} | {'; '.join(f'{v:.2%}' for v in upright)} | "
                     f"{'; '.join(f'{v:.1%}' for v in turned_figures)} | {learned_figures} | "
                     f"{'; '.join(f'{v:.0f}' for v in seconds)} |")  # fmt: skip
    lines += ["", "| digits | candidate | holds | `discover` | multiplier | mismatch |", "|---|---|---|---|---|---|"]
    for world, (_, true) in WORLDS.items():
        for candidate in CANDIDATES:
            own = {method: [row for row in rows if (row.get("world"), row.get("method")) == (world, method)]
                   for method in ("constrained", "soft")}  # fmt: skip
            found = [row["discover"][candidate] for row in own["constrained"] if row["discover"]]
            cells = ["; ".join(f"{row['figures'][candidate]:.2f}" for row in each) for each in own.values()]
            lines.append(f"| {world} | {candidate} | {'yes' if candidate in true else 'no'} | {'; '.join(found)} | "
                         f"{' | '.join(cells)} |")  # fmt: skip
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["planted", "real"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=10_000, help="training images of `learned`")
    parser.add_argument("--epochs", type=int, default=20, help="of `learned`")
    parser.add_argument("--out")
    parser.add_argument("--tables", nargs="+", metavar="FILE", help="print the tables of these files and end")
    given = parser.parse_args()
    for path in given.tables or ():
        with open(path) as file:
            stored = json.load(file)
        print(f"{stored['command']}\n({stored['date']}, {stored['machine']})\n\n{tables(stored)}\n")
    if given.tables:
        return
    torch.set_num_threads(1)
    words = sys.argv[: sys.argv.index("--out")] if "--out" in sys.argv else sys.argv
    results = {"command": " ".join(["python", *words]), "date": str(datetime.date.today())}
    machine = torch.cuda.get_device_name() if given.device == "cuda" else platform.machine()
    results |= {"machine": machine, "planted": [], "real": [], "generators": [], "learned": []}
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        if "planted" in given.parts:
            tasks = [(base, condition, seed) for base in BASES for condition in PLANTED for seed in range(given.seeds)
                     if (base, condition) not in SKIPPED]  # fmt: skip
            print("base               planted              seed  verdict")
            for row in pool.imap(planted, tasks):
                results["planted"].append(row)
                mark = "" if row["right"] else "   <- wrong"
                print(f"{row['base']:18} {row['planted']:20} {row['seed']:4}  {row['verdict']}{mark}", flush=True)
        if "real" in given.parts:
            for rows in pool.imap(real, [(name, seed) for seed in range(given.seeds) for name in REAL]):
                results["real"] += rows
                for row in rows:
                    mark = "   <- wrong" if row["right"] is False else ""
                    known = "labels" if row["labels"] else "images"
                    print(f"{row['set']:14} {row['seed']} {known:7} {row['family']:13} {row['verdict']:28} {row['why']}"
                          f"{mark}", flush=True)  # fmt: skip
        if "generators" in given.parts:
            tasks = [(base, name, seed) for base in UPRIGHT for name in PLANTED_GENERATORS
                     for seed in range(given.seeds)]  # fmt: skip
            for row in pool.imap(generators, tasks):
                results["generators"].append(row)
                cosine = "" if row["cosine"] is None else f"{row['cosine']:.4f}"
                print(f"{row['base']:14} {row['planted']:24} {row['seed']}  {row['found']:14} {cosine:7} "
                      f"{row['spreads'][0]:.2f} {row['spreads'][1]:.2f} {row['group']}", flush=True)  # fmt: skip
    if "learned" in given.parts:
        results["learned"] = learned(given)
    print(tables(results))
    if given.out:
        with open(given.out, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
