"""Write tables into the pages of the site, from the JSON files that long benchmarks left in docs/benchmarks.

    python benchmarks/result_tables.py [--check]

It replaces what stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``, so that no number there is
typed; ``--check`` only says whether the pages are up to date. The files come from accuracy.py (accuracy.json and .csv),
transformer.py, transformer_cifar.py, ``unpose reproduce table2 --full`` (group-attention-runs.json), adapt.py
(adapt-results.json), adapt_cifar.py, adapt_dense.py, adapt_photos.py and unlabelled.py.
``record.py`` does the same for benchmarks that print their tables.
"""

import argparse
import csv
import json
import re
import sys
from pathlib import Path

import numpy as np

from unpose.reproduce.published_networks import TABLE1, TABLE2, gpu_hours

PAGES = Path(__file__).parent.parent / "docs" / "benchmarks"
MARKED = re.compile(r"(<!-- table: ([a-z0-9-]+) -->\n).*?(<!-- end of table -->\n)", re.DOTALL)
OURS = {
    "rotmnist-z2": "attention c1", "rotmnist-r4": "attention c4", "rotmnist-r8": "attention c8",
    "rotmnist-r12": "attention c12", "cifar10-z2": "reflections c1", "cifar10-z2m": "reflections d1, whole",
    **{f"r4-{size}x{size}": f"windows {size}" for size in (3, 7, 9, 15, 19, 23)},
    "r4-5x5": "attention c4", "r4-7x7": "wide 7", "r4-11x11": "wide 11", "r4-28x28": "windows 27",
}  # fmt: skip
"""Our runs of accuracy.json for each cell of the paper."""
REMARKS = {
    "attention c8": "16 epochs from the weights for 4 rotations", "attention c12": "the same",
    "reflections c1": "`swivel_net`, 12 epochs", "reflections d1, whole": "`swivel_net`, 100 epochs",
    "windows 27": "16 epochs; window of 27", **{f"windows {size}": "16 epochs" for size in (3, 5, 9, 15, 19, 23)},
}  # fmt: skip
SPREAD = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
WINDOWS = (3, 5, 7, 9, 11, 15, 19, 23, 27)


def results(name):
    return json.loads((PAGES / f"{name}.json").read_text())


def table(header, rows):
    cells = [list(header), ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(str(cell) for cell in row)} |\n" for row in cells)


def percent(values, digits=2):
    return f"{100 * np.mean(values):.{digits}f} %"


def tests_of(runs):
    """Mean test accuracy, and that of every seed."""
    tests = [run["test_accuracy"] for run in runs]
    return f"{percent(tests)} ({', '.join(f'{100 * each:.2f}' for each in tests)})"


def accuracy_table(names, *, by_training=False, papers=None):
    """Runs of accuracy.json: name in the table -> name in the file."""
    accuracy = results("accuracy")
    header = ["network", "parameters", "epochs", "test accuracy, by seed", "validation"]
    header += ["training images"] * by_training + ["the paper"] * (papers is not None)
    rows = []
    for shown, name in names.items():
        runs = accuracy[name]
        row = [shown, f"{runs[0]['parameters']:,}", runs[0]["epochs"], tests_of(runs)]
        row.append(percent([run["validation_accuracy"] for run in runs]))
        if by_training:
            trained = [training_accuracy(name, run) for run in runs]
            row.append("not kept" if None in trained else percent(trained, 1))
        if papers is not None:
            row.append(papers.get(shown, ""))
        rows.append(row)
    return table(header, rows)


def training_accuracy(name, run):
    with open(PAGES / "accuracy.csv") as file:
        found = [
            float(row["train_accuracy"])
            for row in csv.DictReader(file)
            if (row["run"], int(row["seed"]), int(row["epoch"])) == (name, run["seed"], run["chosen_epoch"])
        ]
    return found[0] if found else None


def rotated():
    names = {
        "published, 4 rotations": "attention c4", "8 rotations, from 4": "attention c8",
        "12 rotations, from 4": "attention c12", "translation-only baseline": "attention c1",
        "our own, 8 rotations": "own c8", "a group CNN by the same recipe, 8 rotations": "own CNN c8",
    }  # fmt: skip
    cells = ("rotmnist-r4", "rotmnist-r8", "rotmnist-r12")
    quoted = {shown: f"{TABLE2[cell].accuracy} %" for shown, cell in zip(names, cells, strict=False)}
    return accuracy_table(names, papers=quoted)


def windows():
    sizes = {size: f"r4-{28 if size == 27 else size}x{28 if size == 27 else size}" for size in WINDOWS}
    quoted = {f"window of {size}": f"{TABLE1[cell].accuracy} %" for size, cell in sizes.items()}
    return accuracy_table({f"window of {size}": f"windows {size}" for size in WINDOWS}, by_training=True, papers=quoted)


def wide():
    return accuracy_table(
        {"window of 5": "attention c4", "window of 7": "wide 7", "window of 11": "wide 11"}, by_training=True
    )


def upright():
    accuracy, rows = results("accuracy"), []
    for shown, name in (("4 rotations", "c4"), ("8 rotations, from 4", "c8"), ("translation-only baseline", "c1")):
        runs = accuracy[f"upright {name}"]
        angles = np.array([list(run["angles"].values()) for run in runs])  # (seeds, angles)
        straight = percent([run["test_accuracy"] for run in runs])
        rows.append([shown, straight, percent(angles), percent(angles.mean(0).min(), 1)])
    return table(["network", "upright", "mean over all angles", "worst angle"], rows)


def reflections():
    names = {
        "`swivel_net` with mirrors": "reflections d1", "the same, whole recipe": "reflections d1, whole",
        "translation-only baseline": "reflections c1",
        "the baseline, half of its images mirrored": "reflections c1 mirrored",
    }  # fmt: skip
    return accuracy_table(names, by_training=True)


def paper_table(cells):
    """Table 1 or 2 of the group self-attention paper beside our own runs."""
    runs, accuracy, rows = results("group-attention-runs")["runs"], results("accuracy"), []
    for name, cell in cells.items():
        if cell.absent:
            rows.append([name, cell.accuracy, "", "", "", cell.absent, ""])
            continue
        run = "rotmnist-r4" if name == "r4-5x5" else name
        published, epochs = ("no published settings", "") if cell.is_cnn else published_columns(run, runs)
        ours, remark = our_columns(name, accuracy)
        hours = None if cell.is_cnn else gpu_hours(cell, "published", "relative")
        rows.append([name, cell.accuracy, published, epochs, ours, remark, "" if hours is None else f"{hours:.2g}"])
    return table(
        ["cell", "the paper, %", "published settings, test %", "epochs", "our recipe, test %", "remark", "H200 hours"],
        rows,
    )


def paper_speed():
    """Images per second of each cell with the published settings."""
    cells = {
        "Z2": "c1 relative", "R4": "c4 relative", "R8": "c8 relative", "R12": "c12 relative", "R16": "c16 relative",
        "R4, the paper's sum": "c4 paper",
    }  # fmt: skip
    speeds = results("group-attention-runs")["images_per_second_alone_at_batch_8"]
    return table(["cell", *cells], [["images/s", *(f"{speeds[name]:,}" for name in cells.values())]])


def paper_dilations():
    """Networks with dilations at unseen sizes."""
    runs = results("group-attention-runs")["dilations"]
    rows = [[run["network"], *(f"{100 * each:.1f}" for each in run["accuracy"]), f"{run['seconds']} s"] for run in runs]
    return table(["size relative to training", *(f"{each:g}" for each in runs[0]["times"]), "training"], rows)


def published_columns(cell, runs):
    found = [run for run in runs if (run["cell"], run["mode"], run["initialization"]) == (cell, "relative", "default")]
    if not found:
        return "not run", ""
    accuracies = ", ".join(
        f"{100 * max(run['validation_accuracy']):.2f} (validation)"
        if run["test_accuracy"] is None
        else f"{100 * run['test_accuracy']:.2f}"
        for run in found
    )
    return accuracies, ", ".join(str(run["epochs"]) for run in found) + " of 300"


def our_columns(cell, accuracy):
    name = OURS.get(cell)
    if name not in accuracy:
        return "not run", ""
    tests = [100 * run["test_accuracy"] for run in accuracy[name]]
    seeds = "one seed" if len(tests) == 1 else f"{len(tests)} seeds"
    return f"{np.mean(tests):.2f} ({seeds})", REMARKS.get(name, "")


def transformer_speed():
    found, rows = results("transformer")["results"], []
    for size in "SBL":
        plain = found[f"plain-{size}"]
        for name in ("plain", "d4"):
            run = found[f"{name}-{size}"]
            row = [f"{name} {size}/16", f"{run['parameters'] / 1e6:.1f}", f"{run['products'] / 1e9:.1f}"]
            row.append(f"{run['block_bytes'] / 1e6:.1f}")
            for part in ("train", "infer"):
                speed = run[part]["images_s"]
                ratio = f" ({speed / plain[part]['images_s']:.3f} x)" if name == "d4" else ""
                row += [f"{speed:,.0f}{ratio}", f"{run[part]['gib']:.1f}"]
            rows.append(row)
    header = ["network", "parameters (M)", "products (G)", "block (MB)", "training images/s", "GiB"]
    return table([*header, "forward images/s", "GiB"], rows)


def transformer_cifar():
    measures, rows = ("upright", "quarter turns", "mirrored", "disc upright", "any angle"), []
    for name, seeds in results("transformer-cifar")["results"].items():
        runs = list(seeds.values())
        values = [[100 * run[measure] for run in runs] for measure in measures]
        means = [f"{np.mean(each):.1f}{SPREAD}{np.std(each, ddof=1):.1f}" for each in values]
        epochs = np.mean([run["epochs"] for run in runs])
        rows.append([name, f"{runs[0]['parameters'] / 1e6:.2f}", f"{epochs:.0f}", *means])
    return table(["network", "parameters (M)", "epochs", *measures], rows)


def spread(values, digits=2):
    """The mean of values of several seeds, and their largest deviation from it."""
    mean = np.mean(values)
    return f"{mean:.{digits}f}" + (f"{SPREAD}{np.abs(values - mean).max():.{digits}f}" if len(values) > 1 else "")


def by_method(file, **same):
    """Runs of a file by their method: those with the given values."""
    found = {}
    for run in results(file)["results"]:
        if all(run.get(key) == value for key, value in same.items()):
            found.setdefault(run["method"], []).append(run)
    return found


def adapted(file, **same):
    rows = []
    for method, runs in by_method(file, **same).items():
        row = [method, *(spread([run[key] for run in runs]) for key in ("upright", "turned"))]
        rows.append(row + ([f"{np.mean([run['cost'] for run in runs]):.2f}"] if "cost" in runs[0] else []))
    return table(["method", "upright", "turned", "cost"][: len(rows[0])], rows)


def cifar_gates():
    """Accuracy of the tuned network on images kept apart, by the share of upright images that the gate leaves alone."""
    runs = results("adapt-cifar")["about"]
    rows = []
    for kept in [each for each in runs[0]["gates"] if float(each) >= 0.9]:  # 90 % are found upright, and so left alone
        pairs = np.array([run["gates"][kept] for run in runs])  # (seeds, 2)
        plain = np.array([run["validation"]["plain"] for run in runs])
        lost = spread(plain - pairs[:, 0]), spread(pairs[:, 0] - pairs[:, 1])
        rows.append([f"{float(kept):.0%}".replace("%", " %"), *(spread(column) for column in pairs.T), *lost])
    return table(["left alone", "upright", "turned", "lost upright", "turned below upright"], rows)


def adapted_dense(name, file="adapt-dense"):
    rows = [
        [method, *(spread([run[key] for run in runs], digits) for key, digits in (("iou", 1), ("pixels", 2)))]
        for method, runs in by_method(file, set=name).items()
    ]
    return table([name, "mean IoU", "keypoints: mean error, pixels"], rows)


def unlabelled():
    """Means over the seeds, of a run on cells and plankton and one on digits and clothes."""
    found, scores = {}, ("20-NN", "5-NN", "1-NN", "linear")
    for row in (*results("unlabelled")["rows"], *results("unlabelled-drawn")["rows"]):
        found.setdefault((row["set"], row["method"]), []).append(row)
    order = sorted(found, key=lambda key: (key[0], -np.mean([row["5-NN"] for row in found[key]])))
    rows = []
    for name, method in order:
        own = found[name, method]
        cells = [spread([row[key] for row in own], 3) if key in own[0] else "" for key in scores]
        extent = [
            f"{np.mean([row[key] for row in own]):,.0f}" if key in own[0] else "" for key in ("steps", "training")
        ]
        rows.append([name, method, *cells, *extent])
    return table(["images", "vectors", *scores[:3], "linear probe", "steps", "seconds of training"], rows)


def unseen_sizes():
    """Means over the seeds of networks with one and five scales, at each size of the test."""
    found, rows = results("unseen-sizes"), []
    for name in dict.fromkeys(row["network"] for row in found["rows"]):
        runs = [row for row in found["rows"] if row["network"] == name]
        means = [percent(each, 1) for each in zip(*(run["accuracy"] for run in runs), strict=True)]
        rows.append([name, *means, f"{np.mean([run['seconds'] for run in runs]):.0f}"])
    return table(["size relative to training", *(f"{each:g}" for each in found["times"]), "CPU s"], rows)


def adapted_photos():
    found = results("adapt-photos")
    rows = [
        [run["method"], f"{run['upright']:.3f}", f"{run['turned']:.3f}", f"{run['passes']:.2f}"]
        for run in found["results"]
    ]
    return table([f"{found['about']['photographs']} photographs", "upright", "turned", "passes"], rows)


TABLES = {
    "adapt-mnist": lambda: adapted("adapt-results", set="mnist"),
    "adapt-fashion": lambda: adapted("adapt-results", set="fashion"),
    "adapt-affine": lambda: adapted("adapt-results", set="fashion affine"),
    "adapt-cifar": lambda: adapted("adapt-cifar"), "adapt-cifar-gates": cifar_gates, "adapt-photos": adapted_photos,
    **{f"adapt-dense-{name}": lambda name=name: adapted_dense(name) for name in ("shapes", "garments", "digits")},
    "adapt-dense-small": lambda: adapted_dense("shapes", "adapt-dense-small"), "unlabelled": unlabelled,
    "rotated": rotated, "windows": windows, "wide": wide, "upright": upright, "reflections": reflections,
    "paper-1": lambda: paper_table(TABLE1), "paper-2": lambda: paper_table(TABLE2), "paper-speed": paper_speed,
    "paper-dilations": paper_dilations,
    "unseen-sizes": unseen_sizes,
    "transformer-speed": transformer_speed, "transformer-cifar": transformer_cifar,
}  # fmt: skip
"""Name of a table in the pages -> the function that makes it."""


def update(page, *, write):
    """Bring the tables of a page up to date; returns whether they were not."""
    text = page.read_text()
    new = MARKED.sub(lambda found: f"{found[1]}{TABLES[found[2]]()}{found[3]}", text)
    if write and new != text:
        page.write_text(new)
    return new != text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    stale = [page.name for page in sorted(PAGES.glob("*.md")) if update(page, write=not options.check)]
    print(f"{'out of date' if options.check else 'updated'}: {', '.join(stale) or 'none'}")
    sys.exit(options.check and bool(stale))


if __name__ == "__main__":
    main()
