"""Two Dask workers on this machine beside one process with two threads, and workers that are killed.

    UNPOSE_DATA=/path/to/arrays python benchmarks/scale_dask.py [--images 5000] [--kills 20] [--out scale_dask.json]
                                                                [--device cuda]

Digits at random poses are clustered by one process with two threads, and by two workers with one thread each; both have
computed something before, so that neither imports modules or loads kernels while it is measured. Where one stops, the
other begins, and both are repeated. CPU time is that of all processes, read from the operating system: it hardly
depends on what else runs. Then a worker is killed in a fit at a random block, as often as ``--kills`` says, and all
results are compared byte by byte. With ``--device cuda`` each worker is a process that computes on one of the GPUs that
this process sees; where there is only one, both share it.
"""

import argparse
import json
import os
import random
import signal
import statistics
import time
from dataclasses import replace
from pathlib import Path

from arrays import load
from unpose.align import Limits
from unpose.align.dask_executor import dask_client
from unpose.cluster import InvariantClustering
from unpose.data import posed

RESULTS = ("labels_", "poses_", "means_", "confidences_")
SMALL_BLOCKS = Limits(searched=32, pairs=1024, aligned=32)
"""So that few images make many blocks; no result depends on the sizes."""
_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(process):
    """User and system time of a process so far, with all its threads."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class InSmallBlocks(InvariantClustering):
    """The estimator, whose searches are cut into small blocks."""

    def _search(self, *arguments):
        return replace(super()._search(*arguments), limits=SMALL_BLOCKS)


def measured(images, processes, device, estimator=InvariantClustering, **options):
    """Fit: the result, wall seconds, and CPU seconds of the processes."""
    before, began = [cpu_seconds(process) for process in processes], time.perf_counter()
    model = estimator(10, features="pixels", device=device, n_jobs=2).fit(images, **options)
    wall = time.perf_counter() - began
    cpu = [cpu_seconds(process) - then for process, then in zip(processes, before, strict=True)]
    return b"".join(getattr(model, name).tobytes() for name in RESULTS), wall, cpu


def overhead(images, client, repeats, device):
    """Medians of both, and by how much more the workers take."""
    processes = [os.getpid(), *(worker.pid for worker in client.cluster.workers.values())]
    rows = []
    for _ in range(repeats):
        alone, wall, cpu = measured(images, processes, device)
        many, many_wall, many_cpu = measured(images, processes, device, client=client)
        rows.append({"wall": [wall, many_wall], "cpu": [sum(cpu), sum(many_cpu)], "same bytes": alone == many})
        print(
            f"one process {wall:7.1f} s wall {sum(cpu):7.1f} s CPU | two workers {many_wall:7.1f} s wall "
            f"{sum(many_cpu):7.1f} s CPU (driver {many_cpu[0]:.1f}, workers {many_cpu[1]:.1f} and {many_cpu[2]:.1f}) | "
            f"same bytes: {alone == many}",
            flush=True,
        )
    ratios = {what: statistics.median(row[what][1] / row[what][0] for row in rows) for what in ("wall", "cpu")}
    return {"runs": rows, "wall overhead": ratios["wall"] - 1, "cpu overhead": ratios["cpu"] - 1}


def kills(images, client, expected, count, device):
    """Kill a worker at a random block of each of so many fits, and count the results that are the same bytes."""
    steps, chosen, same = [], random.Random(3), 0
    measured(images, [os.getpid()], device, InSmallBlocks, client=client, progress=lambda *each: steps.append(each))
    blocks = [number for number, step in enumerate(steps) if step[0] in ("search", "compare", "refine", "align")]
    for number in range(count):
        client.wait_for_workers(2)
        moment, which, seen, killed = chosen.choice(blocks), chosen.randrange(2), [], []

        def kill(*step, moment=moment, which=which, seen=seen, killed=killed):
            seen.append(step)
            if len(seen) == moment + 1:
                workers = list(client.cluster.workers.values())
                killed.append(workers[which % len(workers)].pid)
                os.kill(killed[0], signal.SIGKILL)

        found, wall, _ = measured(images, [os.getpid()], device, InSmallBlocks, client=client, progress=kill)
        same += found == expected and len(killed) == 1
        print(f"kill {number + 1:2d} after {steps[moment]}: same bytes {found == expected} ({wall:.1f} s)", flush=True)
    return {"kills": count, "same bytes": same}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--killed-images", type=int, default=150, help="images of the fits with a kill")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", default="scale_dask.json")
    options = parser.parse_args()
    (digits,) = load("mnist.npz", "x_train")
    images = posed(digits[: options.images], "se2", shape=(40, 40), max_shift=4.0, random_state=1).images
    few, began = images[: options.killed_images], time.perf_counter()
    report = {"images": len(images), "killed images": len(few)}
    with dask_client("local", 2, device=options.device) as client:
        report["start of the cluster"] = time.perf_counter() - began
        for settings in ({}, {"client": client}):  # both load their modules and kernels
            expected, _, _ = measured(few, [os.getpid()], options.device, **settings)
        if options.repeats:
            found = report["overhead"] = overhead(images, client, options.repeats, options.device)
            print(f"two workers: {found['cpu overhead']:+.1%} CPU time, {found['wall overhead']:+.1%} wall time")
        if options.kills:
            found = report["killed"] = kills(few, client, expected, options.kills, options.device)
            print(f"{found['same bytes']} of {options.kills} results with a killed worker are the same bytes")
    Path(options.out).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
