"""Write tables 1 and 2 of the group self-attention paper beside our own runs, from the JSON files of the runs.

    python benchmarks/paper_tables.py [--docs docs/benchmarks] [--check]

Reads ``group-attention-runs.json`` (published settings) and ``accuracy.json`` (our recipes, see accuracy.py), and
replaces what stands between the markers in ``group-attention.md``. ``--check`` only says whether the page is up
to date. New runs: ``unpose reproduce table2 --cell rotmnist-r4 --seeds 3 --full --device cuda -o runs``.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

from unpose.reproduce.published_networks import TABLE1, TABLE2, gpu_hours

BEGIN, END = "<!-- tables: made by benchmarks/paper_tables.py -->\n", "<!-- end of tables -->\n"
OURS = {
    "rotmnist-z2": "attention c1", "rotmnist-r4": "attention c4", "rotmnist-r8": "attention c8",
    "rotmnist-r12": "attention c12", "cifar10-z2": "reflections c1", "cifar10-z2m": "reflections d1",
    **{f"r4-{size}x{size}": f"windows {size}" for size in (3, 7, 9, 15, 19, 23)},
    "r4-5x5": "attention c4", "r4-7x7": "wide 7", "r4-11x11": "wide 11", "r4-28x28": "windows 27",
}  # fmt: skip
"""Our runs of accuracy.json for each cell."""
REMARKS = {
    "attention c8": "16 epochs from the weights for 4 rotations", "attention c12": "the same",
    "reflections c1": "`swivel_net`, 12 epochs", "reflections d1": "`swivel_net`, 12 epochs",
    "windows 27": "16 epochs; window of 27", **{f"windows {size}": "16 epochs" for size in (3, 5, 9, 15, 19, 23)},
}  # fmt: skip


def published_column(cell, runs):
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


def our_column(cell, accuracy):
    name = OURS.get(cell)
    if name not in accuracy:
        return "not run", ""
    tests = [100 * run["test_accuracy"] for run in accuracy[name]]
    return f"{np.mean(tests):.2f} ({len(tests)} seeds)", REMARKS.get(name, "")


def table(cells, runs, accuracy):
    lines = [
        "| cell | the paper, % | published settings, test % | epochs | our recipe, test % | remark | H200 hours |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, cell in cells.items():
        if cell.absent:
            lines.append(f"| {name} | {cell.accuracy} | | | | {cell.absent} | |")
            continue
        run = "rotmnist-r4" if name == "r4-5x5" else name
        published, epochs = ("no published settings", "") if cell.is_cnn else published_column(run, runs)
        ours, remark = our_column(name, accuracy)
        hours = None if cell.is_cnn else gpu_hours(cell, "published", "relative")
        cost = "" if hours is None else f"{hours:.2g}"
        lines.append(f"| {name} | {cell.accuracy} | {published} | {epochs} | {ours} | {remark} | {cost} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, default=Path(__file__).parent.parent / "docs" / "benchmarks")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    runs = json.loads((options.docs / "group-attention-runs.json").read_text())["runs"]
    accuracy = json.loads((options.docs / "accuracy.json").read_text())
    made = f"\n**Table 1**\n\n{table(TABLE1, runs, accuracy)}\n\n**Table 2**\n\n{table(TABLE2, runs, accuracy)}\n\n"
    page = options.docs / "group-attention.md"
    text = page.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    new = before + BEGIN + made + END + after
    if options.check:
        sys.exit(0 if new == text else f"{page} is not up to date: run benchmarks/paper_tables.py")
    page.write_text(new)


if __name__ == "__main__":
    main()
