"""What the tool costs around its work, and what survives when it is killed.

    python benchmarks/tool.py time  [--count 2000] [--memory 4GB] [--out tool.json]
    python benchmarks/tool.py kills [--count 200] [--seconds 0] [--out kills.json]

`time` writes a folder of PNGs (scikit-learn's digits at random pose, 44 pixels), runs `unpose cluster` on it in a fresh
process and prints how long reading, the fit and writing took, and the peak of memory beside the budget.

`kills` runs `unpose cluster` on 36 small images, again and again, and kills it with SIGKILL at random moments of the
time it takes. After each kill every file of the run folder must be whole or absent; each run that is finished after
however many kills must be equal, byte by byte (but for log.txt), to one that nobody disturbed. The command runs in a
fork of a process that has imported the library and done nothing else, so that kills fall on work and not on imports.
"""

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FITTED = "groups found after"


def write_digits(folder, count):
    from unpose.cli.commands.demo import rotated_digits
    from unpose.files import write_image

    per_digit = min(174, -(-count // 10))
    folder.mkdir(parents=True)
    written = 0
    for seed in range(1 + count // 1740):
        for image in rotated_digits(seed, per_digit)[0]:
            if written < count:
                write_image(folder / f"{written:05d}.png", image)
                written += 1


def measure_time(options):
    with tempfile.TemporaryDirectory() as place:
        source, run = Path(place) / "digits", Path(place) / "run"
        write_digits(source, options.count)
        began = time.perf_counter()
        command = [sys.executable, "-m", "unpose", "cluster", str(source), "-o", str(run), "--memory", options.memory]
        done = subprocess.run(command, capture_output=True, text=True)
        whole = time.perf_counter() - began
        if done.returncode != 0:
            sys.exit(done.stderr)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        log = (run / "log.txt").read_text()
        fit = float(log.partition(FITTED)[2].split()[0])
        finished = float(log.partition("finished after")[2].split()[0])
        size = (run / "report.html").stat().st_size
    result = {
        "images": options.count, "seconds": whole, "fit": fit, "writing": finished - fit,
        "start and reading": whole - finished, "peak bytes": peak, "budget": options.memory, "page bytes": size,
        "cores": os.cpu_count(), "load": os.getloadavg()[0],
    }  # fmt: skip
    around = whole - fit
    print(f"{options.count} PNGs on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"  start and reading  {whole - finished:8.1f} s")
    print(f"  fit                {fit:8.1f} s")
    print(f"  writing            {finished - fit:8.1f} s")
    print(f"  around the fit     {around / fit:8.0%} of the fit")
    print(f"  peak memory        {peak / 1e9:8.2f} GB, budget {options.memory}")
    print(f"  page               {size / 1e6:8.2f} MB")
    return result


def contents(folder):
    """Everything of a finished run but its log, and but the scrap that a kill in the very last step leaves."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in found.items()
        if name not in ("log.txt", ".lock") and ".tmp" not in name
    }


def unlike(found, expected):
    """One line that names the files of a finished run that are not those of the undisturbed one, or none."""
    names = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    return [", ".join(names)] if names else []


def broken(folder, expected):
    """Files that are not whole: neither as they will be in the end, nor pieces that can be read, nor temporary."""
    import safetensors.numpy

    wrong = []
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if not path.is_file() or path.name in ("log.txt", ".lock") or path.name.endswith(".tmp"):
            continue
        if path.parent.name.startswith(".pieces"):
            try:
                if path.suffix == ".json":
                    json.loads(path.read_text())
                else:
                    safetensors.numpy.load(path.read_bytes())
            except Exception as error:
                wrong.append(f"{name}: {error}")
        elif path.read_bytes() != expected.get(name):
            wrong.append(f"{name}: not as in the end")
    return wrong


def forked(arguments):
    """Run the command in a fork; the parent gets the process id."""
    from unpose.cli import main

    child = os.fork()
    if child:
        return child
    try:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        main(arguments, standalone_mode=False)
    except BaseException:
        os._exit(1)
    os._exit(0)


def measure_kills(options):
    # Imported once, before any fork; nothing of it has run, so there are no threads to lose.

    with tempfile.TemporaryDirectory() as place:
        source = Path(place) / "digits"
        subprocess.run([sys.executable, __file__, "digits", str(source), "--count", "36"], check=True)
        arguments = ["cluster", str(source), "--clusters", "4", "--size", "24", "--jobs", "1", "-o"]
        began = time.monotonic()
        whole = Path(place) / "whole"
        if os.waitpid(forked([*arguments, str(whole)]), 0)[1] != 0:
            sys.exit("the undisturbed run failed")
        seconds = time.monotonic() - began
        expected = contents(whole)
        moments = random.Random(0)
        kills, corrupt, different, finished, run = 0, [], [], 0, None
        start = time.monotonic()
        while kills < options.count and (not options.seconds or time.monotonic() - start < options.seconds):
            run = run or Path(place) / f"run{finished}"
            child = forked([*arguments, str(run)])
            time.sleep(moments.uniform(0, 1.05 * seconds))
            os.kill(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
            if os.WIFSIGNALED(status):
                kills += 1
                corrupt += broken(run, expected) if run.exists() else []
            elif status != 0:
                sys.exit("a run failed instead of going on")
            if run.exists() and (run / "config.toml").exists() and not (run / ".pieces").exists():
                finished += 1
                different += unlike(contents(run), expected)
                shutil.rmtree(run)
                run = None
        if run is not None:  # the last one is finished without a knife
            if os.waitpid(forked([*arguments, str(run)]), 0)[1] != 0:
                sys.exit("the last run could not be finished")
            finished += 1
            different += unlike(contents(run), expected)
    print(f"{kills} kills in {time.monotonic() - start:.0f} s, over {finished} runs of {seconds:.1f} s each")
    print(f"  corrupt files      {len(corrupt)}{''.join(f'{chr(10)}    {each}' for each in corrupt[:10])}")
    print(f"  different results  {len(different)}{''.join(f'{chr(10)}    {each}' for each in different[:10])}")
    return {"kills": kills, "runs": finished, "corrupt": corrupt, "different": different, "seconds of a run": seconds}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["time", "kills", "digits"], help="`digits FOLDER` only writes the images")
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--count", type=int)
    parser.add_argument("--seconds", type=float, default=0, help="kills: stop after so many seconds; 0 for no limit")
    parser.add_argument("--memory", default="4GB")
    parser.add_argument("--out")
    options = parser.parse_args()
    options.count = options.count or {"time": 2000, "kills": 200, "digits": 36}[options.what]
    if options.what == "digits":
        write_digits(Path(options.folder), options.count)
        return
    result = measure_time(options) if options.what == "time" else measure_kills(options)
    if options.out:
        Path(options.out).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
