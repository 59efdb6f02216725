"""Damaged files of every kind: each must be read, or refused with a reason; nothing may crash, hang or be lost.

    python benchmarks/fuzz.py [--cases 2000] [--seed 0] [--only images | runs] [--out fuzz.json]

Half of the cases are image files (`fuzz_images.py`), half are run folders, settings, tables and journals
(`fuzz_runs.py`). 2,000 cases take less than ten minutes on two cores. The exit status is 1 if a case crashed or was
lost.
"""

import argparse
import json
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import fuzz_images
import fuzz_runs


def show(done, of):
    print(f"{done} of {of}", end="\r", file=sys.stderr, flush=True)


def table(title, counts, outcomes):
    """Print what happened to the files of each kind, and to all of them."""
    total = sum(counts.values(), Counter(dict.fromkeys(outcomes, 0)))
    print(f"| {title} | " + " | ".join(outcomes) + " |\n|---|" + "---|" * len(outcomes))
    for kind, row in [*counts.items(), ("all", total)]:
        print(f"| {kind} | " + " | ".join(str(row[outcome]) for outcome in outcomes) + " |")
    print()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=("images", "runs"))
    parser.add_argument("--out", default="fuzz.json")
    options = parser.parse_args()
    start, told, lost = time.perf_counter(), {}, []
    each = options.cases if options.only else options.cases // 2
    if options.only != "runs":
        why = Counter()
        with tempfile.TemporaryDirectory() as folder:
            counts = fuzz_images.run(
                each, options.seed, Path(folder), show=lambda done, reasons: (why.update(reasons), show(done, each))
            )
        table("image file", counts, fuzz_images.OUTCOMES)
        print(f"{len(why):,} different reasons; the most frequent:\n")
        for reason, count in why.most_common(12):
            print(f"- {count} times: {reason[:100]}")
        print()
        told |= {"images": counts, "reasons": why.most_common(100)}
        lost += [
            f"{kind}: {outcome}" for kind, row in counts.items() for outcome in ("lost", "crashed") if row[outcome]
        ]
    if options.only != "images":
        counts, found = fuzz_runs.run(each, options.seed, show)
        table("file", counts, fuzz_runs.OUTCOMES)
        told |= {"runs": counts}
        lost += found
    seconds = time.perf_counter() - start
    print(f"{options.cases:,} cases in {seconds:.0f} s; {len(lost)} lost.")
    for line in lost:
        print(line)
    about = {"machine": platform.machine(), "cases": options.cases, "seed": options.seed, "seconds": seconds}
    Path(options.out).write_text(json.dumps(about | told | {"lost": lost}, indent=1))
    raise SystemExit(bool(lost))


if __name__ == "__main__":
    main()
