"""The budget of memory holds for the peak of the process as the kernel counts it, decoding included.

Peaks are measured in a process of their own, so that they depend neither on speed nor on other tests.
"""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import tifffile
from click.testing import CliRunner
from PIL import Image

from unpose.cli import main
from unpose.files import in_bytes

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc, which tells the peak memory")

PEAK = """
import sys
from pathlib import Path
{}
peak = 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
print(count, peak)
"""
READ = PEAK.format("""from unpose.data import read_folder
count = len(read_folder(sys.argv[1], size=int(sys.argv[2]), memory=sys.argv[3], pieces=True, n_jobs=4))""")
CLUSTER = PEAK.format("""from click.testing import CliRunner
from unpose.cli import main
source, size, memory = sys.argv[1:]
words = ["cluster", source, "-o", source + "-run", "--size", size, "--memory", memory, "--jobs", "4"]
result = CliRunner().invoke(main, words)
print(result.output[-2000:], file=sys.stderr)
count = result.exit_code""")


def count_and_peak(script, place, size, memory):
    command = [sys.executable, "-c", script, str(place), str(size), memory]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    count, peak = (int(number) for number in done.stdout.split())
    return count, peak, done.stderr


def zeros(path, shape):
    """An archive that declares an array of this shape; zeros take hardly any room in it."""
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w") as file,
    ):
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(shape[0]):
            file.write(bytes(shape[1] * shape[2]))


def pictures(folder, count, side):
    """Coloured pictures, each with a rectangle elsewhere."""
    rows, columns = np.mgrid[:side, :side]
    grey, rng = ((rows // 7 + columns // 5) % 251).astype(np.uint8), np.random.default_rng(0)
    folder.mkdir()
    for k in range(count):
        top, left = rng.integers(0, side // 2, 2)
        picture = np.dstack([grey, grey.T, grey[::-1]])
        picture[top : top + side // 4 + k, left : left + side // 5] = rng.integers(255)
        Image.fromarray(picture).save(folder / f"{k:03d}.png", compress_level=1)


def test_a_stack_is_read_within_the_budget(tmp_path):
    zeros(tmp_path / "x.npz", (2100, 256, 256))
    count, peak, _ = count_and_peak(READ, tmp_path / "x.npz", 256, "600MB")
    assert count == 2100
    assert peak <= in_bytes("600MB")


@pytest.mark.slow
def test_large_pictures_and_deep_stacks_are_read_within_the_budget(tmp_path):
    pictures(tmp_path / "in", 300, 2000)
    page = np.arange(2000 * 2000 * 3, dtype=np.uint32).reshape(2000, 2000, 3).astype(np.uint16)
    for k in range(4):
        with tifffile.TiffWriter(tmp_path / "in" / f"{k}.tif") as file:
            for _ in range(8):
                file.write(page, photometric="rgb", contiguous=False, compression="zlib")
    for budget in ("1GB", "700MB"):
        count, peak, _ = count_and_peak(READ, tmp_path / "in", 160, budget)
        assert count == 332
        assert peak <= in_bytes(budget)


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["1GB", "2GB"])
def test_a_run_keeps_within_its_budget_or_is_refused_with_what_it_needs(tmp_path, budget):
    pictures(tmp_path / "in", 300, 2000)
    status, peak, said = count_and_peak(CLUSTER, tmp_path / "in", 160, budget)
    assert peak <= in_bytes(budget), said
    assert status == 0 or "give --memory " in said


def test_a_run_beyond_the_budget_is_refused_before_any_work(tmp_path):
    np.save(tmp_path / "stack.npy", np.random.default_rng(0).integers(0, 255, (300, 160, 160, 3), np.uint8))
    words = ["cluster", str(tmp_path / "stack.npy"), "-o", str(tmp_path / "run"), "--size", "160", "--jobs", "4"]
    result = CliRunner().invoke(main, [*words, "--memory", "1300MB"])
    assert result.exit_code == 2
    told = " ".join(result.output.split())
    found = re.search(r"300 images of 160 x 160, .* budget of 1.3GB; give --memory ([\d.]+GB), --size (\d+)", told)
    assert in_bytes(found[1]) >= 1.632e9  # the peak of such a run
    assert 8 <= int(found[2]) < 160
    assert not (tmp_path / "run").exists()
