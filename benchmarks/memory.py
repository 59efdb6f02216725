"""Peak memory of the search beside the estimate by which a search is refused.

    python benchmarks/memory.py [--quick]

Every row is a process of its own; the peak is the largest resident set of the process, read from the kernel. The
estimate must be within 30 % of it: a smaller one lets the machine run out of memory, a larger one refuses what works.
"""

import argparse
import json
import resource
import subprocess
import sys

ROWS = [
    # group, images, side, channels, threads, function
    ("se2", 64, 48, 1, 1, "neighbours"),
    ("se2", 400, 48, 1, 2, "neighbours"),
    ("se2+mirror", 200, 48, 1, 2, "neighbours"),
    ("similarity+mirror", 64, 48, 1, 1, "neighbours"),
    ("se2", 64, 48, 3, 1, "neighbours"),
    ("similarity", 64, 40, 1, 2, "neighbours"),
    ("translation", 64, 32, 1, 1, "neighbours"),
    ("se2", 1500, 128, 1, 1, "means"),
]


def measure(group, n, side, channels, threads, function):
    import numpy as np
    import torch

    from unpose.align import Search, align, nearest
    from unpose.align.memory import needed_memory

    torch.set_num_threads(threads)
    shape = (n, side, side) if channels == 1 else (n, side, side, channels)
    images = np.random.default_rng(0).random(shape, dtype=np.float32)
    search = Search(group=group, n_jobs=threads)
    if function == "neighbours":
        needed = needed_memory(n, 0, (side, side), channels, search)
        nearest(images, 8, search=search, quick=group.startswith("se2"))
    else:
        needed = needed_memory(n, 4, (side, side), channels, search)
        align(images, images[:4], to=np.arange(n) % 4, search=search)
    scale = 1 if sys.platform == "darwin" else 1024  # Linux counts kilobytes
    print(json.dumps([needed, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the first three rows")
    parser.add_argument("--row", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.row:
        return measure(*options.row)
    print("| group | images | side | channels | threads | search | estimate | peak | ratio |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in ROWS[:3] if options.quick else ROWS:
        done = subprocess.run(
            [sys.executable, __file__, "--row", json.dumps(row)], capture_output=True, text=True, check=True
        )
        needed, peak = json.loads(done.stdout.splitlines()[-1])
        cells = [*row, f"{needed / 1e9:.2f} GB", f"{peak / 1e9:.2f} GB", f"{needed / peak:.2f}"]
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)
    return None


if __name__ == "__main__":
    main()
