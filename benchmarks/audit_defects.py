"""Does the audit find planted defects, name their module, and stay silent on the same models without them?

    python benchmarks/audit_defects.py [--set developed|kept|further|last|taught|unseen]

Every case of developed.py, further.py and last.py in benchmarks/defects is built with its defect and without, for each
of its groups (c4, d4, d1), an odd and an even size, and in float32 and bfloat16. Rules were chosen on the set
"developed"; "kept", "further", "last" and "taught" were written afterwards, in this order, and led to further rules.
"unseen", in unseen.py, was written without knowledge of the rules, and no rule was changed because of it; it is run
only if it is named. A defect counts as found if the verdict is right in every run, its module
as named if the first culprit is right in every run, and a false alarm is any clean run that does not pass.
"""

import argparse
import itertools
import time
import warnings

import torch

from defects import developed, further, last, unseen
from unpose.audit import audit_model, probe_images


def judge(case: developed.Case, broken: bool) -> tuple[int, int, int]:
    """Number of runs, of right verdicts and of right modules."""
    runs = right = named = 0
    sizes = case.sizes if broken else case.clean_sizes
    for group, precision, size in itertools.product(case.groups, case.precisions, sizes):
        model = developed.build(case, group, size, broken, precision)
        audit = audit_model(model, probe_images(case.channels, (size, size)), group, measure=False, sizes=())
        runs += 1
        right += audit.verdict == (case.verdict if broken else "equivariant")
        named += case.module in (None, audit.cause)
    return runs, right, named


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--set", choices=("developed", "kept", "further", "last", "taught", "unseen"),
        help="by default all of them but the last one",
    )  # fmt: skip
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="Using padding='same'")
    sets = {
        "developed": developed.DEVELOPED, "kept": developed.KEPT, "further": further.FURTHER,
        "last": last.LAST, "taught": last.TAUGHT, "unseen": unseen.UNSEEN,
    }  # fmt: skip
    print(f"{'case':32} {'verdict':10} {'found':>7} {'named':>7} {'clean':>7}")
    begin = time.process_time()
    for group, cases in sets.items():
        if group != options.set and (options.set is not None or group == "unseen"):
            continue
        rows = []
        for name, case in cases.items():
            runs, right, named = judge(case, True)
            clean_runs, clean, _ = judge(case, False)
            has_module = case.module is not None
            rows.append((right == runs, has_module, has_module and named == runs, clean_runs - clean, clean_runs))
            module = f"{named}/{runs}" if has_module else "-"
            print(
                f"{name:32} {case.verdict:10} {f'{right}/{runs}':>7} {module:>7} {f'{clean}/{clean_runs}':>7}",
                flush=True,
            )
        found, modules, named, alarms, clean_runs = (sum(column) for column in zip(*rows, strict=True))
        print(
            f"{group}: {found} of {len(rows)} defects found in every run, the module named in every run for {named} of "
            f"{modules}, {alarms} false alarms in {clean_runs} clean runs\n"
        )
    print(f"{time.process_time() - begin:.0f} processor seconds, torch {torch.__version__}")


if __name__ == "__main__":
    main()
