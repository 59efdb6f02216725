"""16-bit colour PNG files keep every bit, whatever the filter, and damaged ones are rejected; PPM is read at 8 bits."""

import struct
import subprocess
import sys
import zlib
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from unpose.files import UnreadableError
from unpose.files.formats import decoder_limits, read_frames, read_header
from unpose.files.frames import PIXEL_LIMIT

GREY, COLOUR, GREY_ALPHA, COLOUR_ALPHA = 0, 2, 4, 6
CHANNELS = {GREY: 1, COLOUR: 3, GREY_ALPHA: 2, COLOUR_ALPHA: 4}
NO_FILTER, SUB, UP, AVERAGE, PAETH = range(5)
PASSES = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
"""Adam7: first row and column of each pass, and their steps."""


GROWTH = """
import sys
from contextlib import suppress
from unpose.files import UnreadableError
from unpose.files.formats import decoder_limits, read_frames

def peak():
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

before = peak()
ballast = bytearray(b"1") * int(sys.argv[2])
with suppress(UnreadableError), decoder_limits():
    list(read_frames(sys.argv[1], 64))
print(peak() - before)
"""


def growth_of_memory(path, ballast=0):
    """By how many bytes the peak of a new process grows while it reads a file and holds some ballast."""
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc, which tells the peak of a process")
    words = [sys.executable, "-c", GROWTH, path, str(ballast)]
    told = subprocess.run(words, capture_output=True, text=True, check=True)
    return int(told.stdout)


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def paeth(left, up, corner):
    guess = int(left) + int(up) - int(corner)
    return min((left, up, corner), key=lambda value: abs(guess - int(value)))  # the first of equals, as the norm says


def filtered(samples, filters):
    """Rows (h, w, c) as PNG stores them, filter k on every row whose number is k modulo the filters."""
    before, stored = np.zeros(samples[0].size * 2, np.uint8), b""
    step = 2 * samples.shape[2]  # bytes of a pixel
    for number, row in enumerate(samples):
        now = np.frombuffer(row.astype(">u2").tobytes(), np.uint8)
        left, corner = (np.concatenate([np.zeros(step, np.uint8), line[:-step]]) for line in (now, before))
        kind = filters[number % len(filters)]
        guess = {
            NO_FILTER: np.zeros_like(now),
            SUB: left,
            UP: before,
            AVERAGE: ((left.astype(int) + before) // 2).astype(np.uint8),
            PAETH: np.array([paeth(*each) for each in zip(left, before, corner, strict=True)] if kind == PAETH else 0),
        }[kind]
        stored += bytes([kind]) + (now - guess).tobytes()
        before = now
    return stored


def png(samples, colour_type, filters=(NO_FILTER,), interlaced=False, more=b"", pieces=1):
    """A 16-bit PNG of samples (h, w, c), written according to the specification, without a library."""
    height, width = samples.shape[:2]
    if interlaced:
        parts = [samples[top::down, left::across] for top, left, down, across in PASSES]
        data = b"".join(filtered(part, filters) for part in parts if part.size)
    else:
        data = filtered(samples, filters)
    packed = zlib.compress(data)
    cuts = [len(packed) * k // pieces for k in range(pieces + 1)]
    body = b"".join(chunk(b"IDAT", packed[a:b]) for a, b in pairwise(cuts))
    start = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", start) + more + body + chunk(b"IEND", b"")


def noise(rng, channels, shape=(13, 7)):
    return rng.integers(0, 65536, (*shape, channels)).astype(np.uint16)


def read(path, data=None, side=4096):
    """The single frame of a file, whose header told its size and that nothing is lost."""
    if data is not None:
        path.write_bytes(data)
    with decoder_limits():
        told = read_header(path, side)
        ((_, frame),) = read_frames(path, side)
    if isinstance(frame, UnreadableError):
        raise frame
    assert frame.dtype == np.float32
    assert told.note == ""
    assert told.colour == (frame.ndim == 3)
    if side == 4096:
        assert told.sizes == [frame.shape[:2]]
    return frame


def rejection(path, data):
    with pytest.raises(UnreadableError) as reason:
        read(path, data)
    assert str(reason.value).isprintable()
    return str(reason.value)


def unit(samples):
    return samples.astype(np.float32) / np.float32(65535)


def blended(samples, ground):
    """Straight transparency by its definition, in double precision."""
    values = samples.astype(float) / 65535
    return values[..., :-1] * values[..., -1:] + ground * (1 - values[..., -1:])


# PNG -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interlaced", [False, True], ids=["rows", "adam7"])
@pytest.mark.parametrize(
    "filters",
    [(NO_FILTER,), (SUB,), (UP,), (AVERAGE,), (PAETH,), (PAETH, UP, AVERAGE, NO_FILTER, SUB)],
    ids=["none", "sub", "up", "average", "paeth", "mixed"],
)
def test_png_keeps_every_bit_whatever_its_filters(tmp_path, rng, filters, interlaced):
    samples = noise(rng, 3)
    frame = read(tmp_path / "a.png", png(samples, COLOUR, filters, interlaced, pieces=3))
    np.testing.assert_array_equal(frame, unit(samples))


@pytest.mark.parametrize("interlaced", [False, True], ids=["rows", "adam7"])
@pytest.mark.parametrize("colour_type", [GREY_ALPHA, COLOUR_ALPHA], ids=["grey", "colour"])
@pytest.mark.parametrize("bright", [True, False], ids=["bright", "dark"])
def test_16_bit_alpha_is_blended_like_8_bit_alpha(tmp_path, rng, colour_type, bright, interlaced):
    samples = noise(rng, CHANNELS[colour_type])
    if not bright:
        samples[..., :-1] //= 8
    frame = read(tmp_path / "a.png", png(samples, colour_type, (PAETH, SUB), interlaced))
    expected = blended(samples, ground=0.0 if bright else 1.0)
    np.testing.assert_allclose(frame, expected if colour_type == COLOUR_ALPHA else expected[..., 0], atol=1e-6)


@pytest.mark.parametrize("colour_type", [GREY, COLOUR], ids=["grey", "colour"])
def test_a_colour_that_stands_for_transparent(tmp_path, rng, colour_type):
    samples = 40000 + noise(rng, CHANNELS[colour_type]) // 4
    key = samples[5, 3].copy()
    samples[5, 4] = key
    samples[5, 4, -1] += 1  # differs in the last bit of the last channel, and is therefore seen
    samples[7] = key
    frame = read(tmp_path / "a.png", png(samples, colour_type, more=chunk(b"tRNS", key.astype(">u2").tobytes())))
    seen = (samples != key).any(-1, keepdims=True)
    expected = np.where(seen, unit(samples), 0)
    np.testing.assert_array_equal(frame, expected if colour_type == COLOUR else expected[..., 0])
    assert frame[5, 4].max() > 0


@pytest.mark.parametrize("turn", range(1, 9))
def test_16_bit_png_is_turned_as_its_exif_orientation_says(tmp_path, rng, turn):
    upright = noise(rng, 3)
    stored = {
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1], 5: upright.swapaxes(0, 1),
        6: np.rot90(upright, 1), 7: np.rot90(upright, 2).swapaxes(0, 1), 8: np.rot90(upright, -1),
    }[turn]  # fmt: skip
    exif = Image.Exif()
    exif[0x0112] = turn
    note = chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0"))
    np.testing.assert_array_equal(read(tmp_path / "a.png", png(stored, COLOUR, more=note)), unit(upright))


@pytest.mark.parametrize("colour_type", [COLOUR, COLOUR_ALPHA, GREY_ALPHA], ids=["rgb", "rgba", "la"])
def test_large_images_are_shrunk_by_averaging_boxes(tmp_path, rng, colour_type):
    samples = noise(rng, CHANNELS[colour_type], (59, 83))
    samples[..., :1] |= 32768  # bright: the ground is black
    small = read(tmp_path / "a.png", png(samples, colour_type), side=13)
    values = samples.astype(float) / 65535
    if colour_type != COLOUR:
        values = blended(samples, 0.0)  # on black a mean of what is seen is the mean of the blended pixels
    rows, columns = (range(0, side, 83 // 26) for side in (59, 83))
    boxes = [[values[i : i + 3, j : j + 3].mean((0, 1)) for j in columns] for i in rows]
    np.testing.assert_allclose(small if small.ndim == 3 else small[..., None], boxes, atol=1e-6)


def test_16_bit_png_agrees_with_the_same_image_at_8_bits(tmp_path, rng):
    """The same picture as a PNG by Pillow at 8 bits, whose samples are those of 16 with both bytes equal."""
    small = rng.integers(0, 256, (13, 7, 4)).astype(np.uint8)
    Image.fromarray(small).save(tmp_path / "8.png")
    sixteen = read(tmp_path / "16.png", png(small.astype(np.uint16) * 257, COLOUR_ALPHA))
    with decoder_limits():
        ((_, eight),) = read_frames(tmp_path / "8.png", 64)
    np.testing.assert_allclose(sixteen, eight, atol=1e-6)


@pytest.mark.parametrize("interlaced", [False, True], ids=["rows", "adam7"])
def test_damaged_png_of_16_bits(tmp_path, rng, interlaced):
    samples = noise(rng, 3, (41, 37))
    whole = png(samples, COLOUR, (PAETH, AVERAGE), interlaced, pieces=5)
    for share in (0.9, 0.5, 0.1):
        assert rejection(tmp_path / "cut.png", whole[: int(len(whole) * share)])
    for at in range(60, len(whole) - 30, 397):  # in the pixels: their own sum does not fit
        bent = bytearray(whole)
        bent[at] ^= 4
        assert rejection(tmp_path / "bent.png", bytes(bent))
    header_sum = bytearray(whole)
    header_sum[29] ^= 1
    assert rejection(tmp_path / "sum.png", bytes(header_sum))


def test_wrong_and_excessive_sizes_are_rejected(tmp_path, rng):
    whole = bytearray(png(noise(rng, 3), COLOUR))
    for width, height in ((2**31 - 1, 2**31 - 1), (PIXEL_LIMIT // 9000 + 1, 9000), (0, 13), (7, 0), (9000, 13), (1, 1)):
        whole[16:24] = struct.pack(">II", width, height)
        whole[29:33] = struct.pack(">I", zlib.crc32(bytes(whole[12:29])))
        assert rejection(tmp_path / "a.png", bytes(whole))


def test_data_beyond_the_declared_pixels_are_not_decompressed(tmp_path, rng):
    """A bomb behind an honest picture: 160 MB of zeros after the last row.

    It is read in a process of its own: the peak of this one may have been higher before.
    """
    packer, samples = zlib.compressobj(1), noise(rng, 3)
    packed = packer.compress(filtered(samples, (NO_FILTER,)))
    packed += b"".join(packer.compress(bytes(2**20)) for _ in range(160)) + packer.flush()
    start = struct.pack(">IIBBBBB", 7, 13, 16, COLOUR, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", start) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    with suppress(UnreadableError):  # to be read or refused, either is right
        np.testing.assert_array_equal(read(tmp_path / "a.png", data), unit(samples))
    assert growth_of_memory(tmp_path / "a.png") < 60 * 2**20
    (tmp_path / "control.png").write_bytes(b"")
    assert growth_of_memory(tmp_path / "control.png", ballast=160 * 2**20) > 100 * 2**20


# PPM -----------------------------------------------------------------------------------------------------------------


def test_a_ppm_of_16_bits_is_read_at_8_bits_and_a_note_says_so(tmp_path, rng):
    for white in (65535, 4095, 1000):
        samples = rng.integers(0, white + 1, (13, 7, 3))
        (tmp_path / "a.ppm").write_bytes(b"P6\n7 13\n%d\n" % white + samples.astype(">u2").tobytes())
        text = "# by hand\n".join(" ".join(map(str, row.ravel())) + "\n" for row in samples)
        (tmp_path / "b.ppm").write_text(f"P3\n7 13\n{white}\n{text}")
        for name in ("a.ppm", "b.ppm"):
            with decoder_limits():
                assert "8 bits" in read_header(tmp_path / name, 64).note
                ((_, frame),) = read_frames(tmp_path / name, 64)
            np.testing.assert_allclose(frame, samples / white, atol=1 / 255)


def test_damaged_ppm_files_are_rejected(tmp_path, rng):
    samples = noise(rng, 3)
    data = b"P6\n7 13\n65535\n" + samples.astype(">u2").tobytes()
    text = b"P3\n7 13\n65535\n" + b" ".join(b"%d" % value for value in samples.ravel())
    for whole in (data, text):
        for share in (0.9, 0.3):
            assert rejection(tmp_path / "a.ppm", whole[: int(len(whole) * share)])
    assert rejection(tmp_path / "a.ppm", text.replace(b" ", b" -", 1))
    assert rejection(tmp_path / "a.ppm", text.replace(b" ", b" 99999999999 ", 1))
    assert rejection(tmp_path / "a.ppm", b"P6\n99999 99999\n65535\n" + bytes(99))
