"""Memory while files are read: at most what their headers cost, and little for headers that lie.

Peaks are measured in a process of their own, so that they depend neither on speed nor on other tests.
"""

import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from unpose.files.formats import decoder_limits, read_header

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc, which tells the peak memory")

MEASURE = """
import sys
from pathlib import Path
from unpose.files import UnreadableError
from unpose.files.formats import decoder_limits, read_frames, read_header

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

def read(path):
    try:
        read_header(path, 128)
        return sum(not isinstance(frame, UnreadableError) for _, frame in read_frames(path, 128))
    except UnreadableError:
        return 0

with decoder_limits():
    read(Path(sys.argv[1]))  # imports what the format needs
    before = peak()
    count = read(Path(sys.argv[2]))
print(count, peak() - before)
"""
MIB = 2**20


def frames_and_growth(small, path):
    """How many frames of a file are read, and how much the peak memory grows after a small file of the same kind."""
    command = [sys.executable, "-c", MEASURE, str(small), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return tuple(int(number) for number in done.stdout.split())


def save(folder, kind, side):
    """A picture of side x side pixels in one of the kinds below."""
    rows, columns = np.mgrid[:side, :side]
    grey = ((rows // 7 + columns // 5) % 251).astype(np.uint8)
    colour = np.dstack([grey, grey[::-1], grey.T])
    ending = kind.rpartition(" ")[2]
    path = folder / f"{side}.{ending}"
    if kind == "animated png":
        frames = [Image.fromarray(np.roll(colour, 99 * k, 0)) for k in range(2)]
        frames[0].save(path, save_all=True, append_images=frames[1:], compress_level=1)
    elif kind == "16-bit tif":
        tifffile.imwrite(path, colour.astype(np.uint16) * 257, photometric="rgb", compression="zlib")
    elif kind == "one-strip tif":
        tifffile.imwrite(path, colour, photometric="rgb", compression="zlib", rowsperstrip=side)
    else:
        picture = {"grey": Image.fromarray(grey), "palette": Image.fromarray(grey).convert("P")}.get(kind.split()[0])
        exif = Image.Exif()
        exif[0x0112] = 6
        options = {"progressive": True} if kind == "progressive jpg" else {"exif": exif} if kind == "turned png" else {}
        (picture or Image.fromarray(colour)).save(path, **options)
    return path


@pytest.mark.parametrize(
    "kind",
    ["animated png", "16-bit tif"]
    + [pytest.param(kind, marks=pytest.mark.slow) for kind in ("colour png", "grey png", "palette png", "turned png",
                                                              "baseline jpg", "progressive jpg", "colour bmp",
                                                              "one-strip tif", "colour webp", "colour gif")],
)  # fmt: skip
def test_reading_needs_no_more_memory_than_the_header_says(tmp_path, kind):
    path = save(tmp_path, kind, 2000)
    with decoder_limits():
        cost = read_header(path, 128).cost
    count, growth = frames_and_growth(save(tmp_path, kind, 40), path)
    assert count >= 1
    assert growth <= cost + 8 * MIB


@pytest.mark.parametrize("kind", ["colour png", "baseline jpg", "progressive jpg", "colour bmp"])
def test_pictures_of_12_000_pixels_a_side_fit_the_default_budget(tmp_path, kind):
    path = save(tmp_path, kind, 40)
    data = bytearray(path.read_bytes())
    if kind == "colour png":
        data[16:24] = struct.pack(">II", 12_000, 12_000)
        data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
    elif kind == "colour bmp":
        data[18:26] = struct.pack("<ii", 12_000, 12_000)
    else:
        at = data.index(b"\xff\xc2" if kind == "progressive jpg" else b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", 12_000, 12_000)
    path.write_bytes(data)
    with decoder_limits():
        told = read_header(path, 128)
    assert told.sizes == [(12_000, 12_000)]
    assert told.cost < (100 if kind == "baseline jpg" else 1300) * MIB


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "most"), [("colour png", 700), ("baseline jpg", 100)])
def test_a_picture_of_12_000_pixels_a_side_is_read_at_a_reduced_size(tmp_path, kind, most):
    count, growth = frames_and_growth(save(tmp_path, kind, 40), save(tmp_path, kind, 12_000))
    assert count == 1
    assert growth < most * MIB


def test_an_mrc_header_that_declares_a_long_extended_header_allocates_nothing(tmp_path):
    mrcfile = pytest.importorskip("mrcfile", reason="mrcfile, of the extra em, is not installed")
    with mrcfile.new(tmp_path / "small.mrc") as file:
        file.set_data(np.zeros((3, 5, 7), np.float32))
    whole = bytearray((tmp_path / "small.mrc").read_bytes())
    for length in (2**31 - 1, 2**29, -5):
        whole[92:96] = struct.pack("<i", length)
        (tmp_path / "long.mrc").write_bytes(whole)
        count, growth = frames_and_growth(tmp_path / "small.mrc", tmp_path / "long.mrc")
        assert count == 0
        assert growth < 16 * MIB


def test_a_numpy_archive_with_an_endless_header_is_rejected_after_its_start(tmp_path):
    np.savez(tmp_path / "small.npz", x=np.zeros((3, 5, 7)))
    length = 200 * MIB
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", length) + b" " * length)
    count, growth = frames_and_growth(tmp_path / "small.npz", tmp_path / "bomb.npz")
    assert count == 0
    assert growth < 16 * MIB


def test_a_gif_with_a_frame_beyond_its_picture_allocates_nothing(tmp_path):
    Image.new("L", (9, 9)).save(tmp_path / "small.gif")
    frame = b"\x21\xf9\x04\x08\0\0\0\0," + struct.pack("<HHHHB", 0, 0, 18_000, 17_000, 0) + b"\2\2D\1\0"
    for frames in (frame, b",\0\0\0\0\1\0\1\0\0\2\2D\1\0" + frame):
        (tmp_path / "bomb.gif").write_bytes(b"GIF89a" + struct.pack("<HHBBB", 9, 9, 0, 0, 0) + frames + b";")
        count, growth = frames_and_growth(tmp_path / "small.gif", tmp_path / "bomb.gif")
        assert count == 0
        assert growth < 16 * MIB
