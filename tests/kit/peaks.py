"""The peak memory of reading files, as the kernel counts it.

Started as a script, it reads files one after the other, each in a fork of its own: a fork begins with a peak of what it
holds, so that neither the libraries nor what was read before count.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_peaks = pytest.mark.skipif(
    not (hasattr(os, "fork") and Path("/proc/self/status").exists()), reason="no /proc, which tells the peak memory"
)


def peaks(warm, files):
    """Read files, each with a budget, after small ones that let the libraries be imported.

    Returns for each file the number of images that were read and the bytes by which the peak grew; the first value is
    that of 64 MB which are filled, so that it is known that the measure works.
    """
    given = json.dumps({"warm": [str(path) for path in warm], "files": [(str(path), budget) for path, budget in files]})
    done = subprocess.run([sys.executable, __file__], input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    control, *found = json.loads(done.stdout)
    assert control[1] > 60 * 2**20
    return found


def _peak():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])


def _in_a_fork(work):
    """The answer of a function and the growth of the peak, in a copy of this process."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        before = _peak()
        answer = work()
        os.write(writing, json.dumps((answer, _peak() - before)).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        answer = json.loads(pipe.read() or "null")
    os.wait()
    return answer


def _main():
    from unpose.data import InputError, read_folder

    def read(path, budget=None):
        try:
            return len(read_folder(path, min_images=1, size=64, memory=budget, n_jobs=1))
        except InputError:
            return 0

    given = json.load(sys.stdin)
    for path in given["warm"]:
        read(path)
    found = [_in_a_fork(lambda: len(bytearray(b"1") * (64 * 2**20)))]
    found += [_in_a_fork(lambda path=path, budget=budget: read(path, budget)) for path, budget in given["files"]]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    _main()
