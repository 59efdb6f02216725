"""Does the audit find planted defects, name their module, and stay silent on the same models without them?

    python benchmarks/audit_defects.py [--set developed|kept|further|last|taught] [--json FILE]

Every case of defect_networks.py, further_defects.py and last_defects.py in tests/audit is built with its defect and
without, for each of its groups (c4, d4, d1), an odd and an even size, and in float32 and bfloat16. Rules were chosen
on the set "developed"; "kept", "further", "last" and "taught" were written afterwards, in this order. A defect counts
as found if the verdict is right in every run, its module as named if the first culprit is right in every run, and a
false alarm is any clean run that does not pass.
"""

import argparse
import itertools
import json
import sys
import time
import warnings
from pathlib import Path

import torch

from unpose.audit import audit_model, probe_images

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "audit"))
import defect_networks as defects
import further_defects
import last_defects


def judge(case: defects.Case, broken: bool) -> tuple[int, int, int]:
    """Number of runs, of right verdicts and of right modules."""
    runs = right = named = 0
    sizes = case.sizes if broken else case.clean_sizes
    for group, precision, size in itertools.product(case.groups, case.precisions, sizes):
        model = defects.build(case, group, size, broken, precision)
        audit = audit_model(model, probe_images(case.channels, (size, size)), group, measure=False, sizes=())
        runs += 1
        right += audit.verdict == (case.verdict if broken else "equivariant")
        named += case.module in (None, audit.cause)
    return runs, right, named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--set", choices=("developed", "kept", "further", "last", "taught"), help="by default all of them"
    )
    parser.add_argument("--json", help="write the figures to this file")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Using padding='same'")
    sets = {
        "developed": defects.DEVELOPED, "kept": defects.KEPT, "further": further_defects.FURTHER,
        "last": last_defects.LAST, "taught": last_defects.TAUGHT,
    }  # fmt: skip
    results = []
    print(f"{'case':32} {'verdict':10} {'found':>7} {'named':>7} {'clean':>7}")
    begin = time.process_time()
    for group, cases in sets.items():
        if options.set not in (group, None):
            continue
        rows = []
        for name, case in cases.items():
            runs, right, named = judge(case, True)
            clean_runs, clean, _ = judge(case, False)
            rows.append({
                "set": group, "case": name, "verdict": case.verdict, "runs": runs, "found": right, "named": named,
                "has module": case.module is not None, "clean runs": clean_runs, "clean": clean,
            })  # fmt: skip
            module = f"{named}/{runs}" if case.module is not None else "-"
            print(
                f"{name:32} {case.verdict:10} {f'{right}/{runs}':>7} {module:>7} {f'{clean}/{clean_runs}':>7}",
                flush=True,
            )
        modules = [row for row in rows if row["has module"]]
        found = sum(row["found"] == row["runs"] for row in rows)
        named = sum(row["named"] == row["runs"] for row in modules)
        alarms = sum(row["clean runs"] - row["clean"] for row in rows)
        print(
            f"{group}: {found} of {len(rows)} defects found in every run, the module named in every run for {named} of "
            f"{len(modules)}, {alarms} false alarms in {sum(row['clean runs'] for row in rows)} clean runs\n"
        )
        results += rows
    print(f"{time.process_time() - begin:.0f} processor seconds, torch {torch.__version__}")
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
