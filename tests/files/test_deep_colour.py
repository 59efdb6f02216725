"""Colour of 16 bits: every bit of PNG, TIFF and PPM comes through, whatever the filter, and damage is refused."""

import struct
import sys
import zlib
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from unpose.files.formats import frames, guarded, header
from unpose.files.frames import PIXEL_LIMIT, Unreadable

GREY, COLOUR, GREY_ALPHA, COLOUR_ALPHA = 0, 2, 4, 6
CHANNELS = {GREY: 1, COLOUR: 3, GREY_ALPHA: 2, COLOUR_ALPHA: 4}
NO_FILTER, SUB, UP, AVERAGE, PAETH = range(5)
PASSES = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
"""Adam7: first row and column of each pass, and their steps."""


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def paeth(left, up, corner):
    guess = int(left) + int(up) - int(corner)
    return min((left, up, corner), key=lambda value: abs(guess - int(value)))  # the first of equals, as the norm says


def filtered(words, filters):
    """Rows (h, w, c) as PNG stores them, filter k on every row whose number is k modulo the filters."""
    before, stored = np.zeros(words[0].size * 2, np.uint8), b""
    step = 2 * words.shape[2]  # bytes of a pixel
    for number, row in enumerate(words):
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


def png(words, colour_type, filters=(NO_FILTER,), interlaced=False, more=b"", pieces=1):
    """A 16-bit PNG of words (h, w, c), written from the norm and with no library."""
    height, width = words.shape[:2]
    if interlaced:
        parts = [words[top::down, left::across] for top, left, down, across in PASSES]
        data = b"".join(filtered(part, filters) for part in parts if part.size)
    else:
        data = filtered(words, filters)
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
    with guarded():
        told = header(path, side)
        ((_, frame),) = frames(path, side)
    if isinstance(frame, Unreadable):
        raise frame
    assert frame.dtype == np.float32
    assert told.note == ""
    assert told.colour == (frame.ndim == 3)
    if side == 4096:
        assert told.sizes == [frame.shape[:2]]
    return frame


def refused(path, data):
    with pytest.raises(Unreadable) as reason:
        read(path, data)
    assert str(reason.value).isprintable()
    return str(reason.value)


def unit(words):
    return words.astype(np.float32) / np.float32(65535)


def blended(words, ground):
    """Straight transparency by its definition, in double precision."""
    values = words.astype(float) / 65535
    return values[..., :-1] * values[..., -1:] + ground * (1 - values[..., -1:])


# PNG -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interlaced", [False, True], ids=["rows", "adam7"])
@pytest.mark.parametrize(
    "filters",
    [(NO_FILTER,), (SUB,), (UP,), (AVERAGE,), (PAETH,), (PAETH, UP, AVERAGE, NO_FILTER, SUB)],
    ids=["none", "sub", "up", "average", "paeth", "mixed"],
)
def test_png_keeps_every_bit_whatever_its_filters(tmp_path, rng, filters, interlaced):
    words = noise(rng, 3)
    frame = read(tmp_path / "a.png", png(words, COLOUR, filters, interlaced, pieces=3))
    np.testing.assert_array_equal(frame, unit(words))


@pytest.mark.parametrize("interlaced", [False, True], ids=["rows", "adam7"])
@pytest.mark.parametrize("colour_type", [GREY_ALPHA, COLOUR_ALPHA], ids=["grey", "colour"])
@pytest.mark.parametrize("bright", [True, False], ids=["bright", "dark"])
def test_transparency_of_16_bits_lies_on_the_same_grounds_as_that_of_8(tmp_path, rng, colour_type, bright, interlaced):
    words = noise(rng, CHANNELS[colour_type])
    if not bright:
        words[..., :-1] //= 8
    frame = read(tmp_path / "a.png", png(words, colour_type, (PAETH, SUB), interlaced))
    expected = blended(words, ground=0.0 if bright else 1.0)
    np.testing.assert_allclose(frame, expected if colour_type == COLOUR_ALPHA else expected[..., 0], atol=1e-6)


@pytest.mark.parametrize("colour_type", [GREY, COLOUR], ids=["grey", "colour"])
def test_one_colour_that_stands_for_transparent(tmp_path, rng, colour_type):
    words = 40000 + noise(rng, CHANNELS[colour_type]) // 4
    key = words[5, 3].copy()
    words[5, 4] = key
    words[5, 4, -1] += 1  # differs in the last bit of the last channel, and is therefore seen
    words[7] = key
    frame = read(tmp_path / "a.png", png(words, colour_type, more=chunk(b"tRNS", key.astype(">u2").tobytes())))
    seen = (words != key).any(-1, keepdims=True)
    expected = np.where(seen, unit(words), 0)
    np.testing.assert_array_equal(frame, expected if colour_type == COLOUR else expected[..., 0])
    assert frame[5, 4].max() > 0


@pytest.mark.parametrize("turn", range(1, 9))
def test_png_of_16_bits_is_turned_as_its_exif_says(tmp_path, rng, turn):
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
def test_large_ones_come_smaller_as_boxes_of_pixels(tmp_path, rng, colour_type):
    words = noise(rng, CHANNELS[colour_type], (59, 83))
    words[..., :1] |= 32768  # bright: the ground is black
    small = read(tmp_path / "a.png", png(words, colour_type), side=13)
    values = words.astype(float) / 65535
    if colour_type != COLOUR:
        values = blended(words, 0.0)  # on black a mean of what is seen is the mean of the blended pixels
    rows, columns = (range(0, side, 83 // 26) for side in (59, 83))
    boxes = [[values[i : i + 3, j : j + 3].mean((0, 1)) for j in columns] for i in rows]
    np.testing.assert_allclose(small if small.ndim == 3 else small[..., None], boxes, atol=1e-6)


def test_another_programs_png_of_16_bits(tmp_path, rng):
    """The same picture as a PNG by Pillow at 8 bits, whose samples are those of 16 with both bytes equal."""
    small = rng.integers(0, 256, (13, 7, 4)).astype(np.uint8)
    Image.fromarray(small).save(tmp_path / "8.png")
    sixteen = read(tmp_path / "16.png", png(small.astype(np.uint16) * 257, COLOUR_ALPHA))
    with guarded():
        ((_, eight),) = frames(tmp_path / "8.png", 64)
    np.testing.assert_allclose(sixteen, eight, atol=1e-6)


@pytest.mark.parametrize("interlaced", [False, True], ids=["rows", "adam7"])
def test_damaged_png_of_16_bits(tmp_path, rng, interlaced):
    words = noise(rng, 3, (41, 37))
    whole = png(words, COLOUR, (PAETH, AVERAGE), interlaced, pieces=5)
    for share in (0.9, 0.5, 0.1):
        assert refused(tmp_path / "cut.png", whole[: int(len(whole) * share)])
    for at in range(60, len(whole) - 30, 397):  # in the pixels: their own sum does not fit
        bent = bytearray(whole)
        bent[at] ^= 4
        assert refused(tmp_path / "bent.png", bytes(bent))
    header_sum = bytearray(whole)
    header_sum[29] ^= 1
    assert refused(tmp_path / "sum.png", bytes(header_sum))


def test_sizes_that_lie_or_are_beyond_all_bounds(tmp_path, rng):
    whole = bytearray(png(noise(rng, 3), COLOUR))
    for width, height in ((2**31 - 1, 2**31 - 1), (PIXEL_LIMIT // 9000 + 1, 9000), (0, 13), (7, 0), (9000, 13), (1, 1)):
        whole[16:24] = struct.pack(">II", width, height)
        whole[29:33] = struct.pack(">I", zlib.crc32(bytes(whole[12:29])))
        assert refused(tmp_path / "a.png", bytes(whole))


def test_pixels_that_unpack_to_more_than_was_declared_are_not_unpacked(tmp_path, rng):
    """A bomb behind an honest picture: 160 MB of zeros after the last row."""
    import resource

    packer, words = zlib.compressobj(1), noise(rng, 3)
    packed = packer.compress(filtered(words, (NO_FILTER,)))
    packed += b"".join(packer.compress(bytes(2**20)) for _ in range(160)) + packer.flush()
    start = struct.pack(">IIBBBBB", 7, 13, 16, COLOUR, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", start) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(Unreadable):  # to be read or refused, either is right
        np.testing.assert_array_equal(read(tmp_path / "a.png", data), unit(words))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown * (1 if sys.platform == "darwin" else 1024) < 60 * 2**20


# PPM -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [65535, 4095, 1000])
def test_pixmaps_of_16_bits_in_bytes_and_as_text(tmp_path, rng, most):
    words = rng.integers(0, most + 1, (13, 7, 3))
    frame = read(tmp_path / "a.ppm", b"P6\n7 13\n%d\n" % most + words.astype(">u2").tobytes())
    np.testing.assert_allclose(frame, words / most, atol=1e-7)
    text = "# by hand\n".join(" ".join(map(str, row.ravel())) + "\n" for row in words)
    frame = read(tmp_path / "b.ppm", f"P3\n7 13\n{most}\n{text}".encode())
    np.testing.assert_allclose(frame, words / most, atol=0.51 / 65535)


def test_damaged_pixmaps(tmp_path, rng):
    words = noise(rng, 3)
    data = b"P6\n7 13\n65535\n" + words.astype(">u2").tobytes()
    text = b"P3\n7 13\n65535\n" + b" ".join(b"%d" % value for value in words.ravel())
    for whole in (data, text):
        for share in (0.9, 0.3):
            assert refused(tmp_path / "a.ppm", whole[: int(len(whole) * share)])
    assert refused(tmp_path / "a.ppm", text.replace(b" ", b" -", 1))
    assert refused(tmp_path / "a.ppm", text.replace(b" ", b" 99999999999 ", 1))
    assert refused(tmp_path / "a.ppm", b"P6\n99999 99999\n65535\n" + bytes(99))
    over = b"P6\n2 2\n300\n" + np.full(12, 60000, ">u2").tobytes()  # beyond its own white
    np.testing.assert_array_equal(read(tmp_path / "a.ppm", over), 1)


# TIFF ----------------------------------------------------------------------------------------------------------------


def tiff(words, photometric, extra=None, order="<", planar=1):
    """A TIFF of 16 bits with one strip, or one for each plane, written from the norm."""
    height, width, channels = words.shape
    stored = words if planar == 1 else np.moveaxis(words, -1, 0)
    pixels = stored.astype(f"{order}u2").tobytes()
    strips = 1 if planar == 1 else channels
    tags = {
        256: (3, [width]), 257: (3, [height]), 258: (3, [16] * channels), 259: (3, [1]), 262: (3, [photometric]),
        273: (4, [8 + k * len(pixels) // strips for k in range(strips)]), 277: (3, [channels]), 278: (3, [height]),
        279: (4, [len(pixels) // strips] * strips), 284: (3, [planar]),
    }  # fmt: skip
    if extra is not None:
        tags[338] = (3, [extra])
    entries, behind = b"", b""
    after = 8 + len(pixels) + 2 + 12 * len(tags) + 4
    for tag, (kind, values) in sorted(tags.items()):
        packed = struct.pack(f"{order}{len(values)}{'HI'[kind - 3]}", *values)
        if len(packed) > 4:
            behind, packed = behind + packed, struct.pack(f"{order}I", after + len(behind))
        entries += struct.pack(f"{order}HHI", tag, kind, len(values)) + packed.ljust(4, b"\0")
    start = {"<": b"II*\0", ">": b"MM\0*"}[order] + struct.pack(f"{order}I", 8 + len(pixels))
    return start + pixels + struct.pack(f"{order}H", len(tags)) + entries + bytes(4) + behind


@pytest.fixture
def no_tifffile(monkeypatch):
    from unpose.files import tiff as deep_tiff

    def missing():
        raise Unreadable("is a TIFF beyond what Pillow reads")

    monkeypatch.setattr(deep_tiff, "_tifffile", missing)


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
def test_tiff_keeps_16_bits_without_further_libraries(tmp_path, rng, order, no_tifffile):
    words = noise(rng, 4)
    np.testing.assert_array_equal(read(tmp_path / "a.tif", tiff(words[..., :3], 2, order=order)), unit(words[..., :3]))
    frame = read(tmp_path / "b.tif", tiff(words, 2, extra=0, order=order))  # a fourth channel of no meaning
    np.testing.assert_array_equal(frame, unit(words[..., :3]))
    frame = read(tmp_path / "c.tif", tiff(words, 2, extra=2, order=order))
    np.testing.assert_allclose(frame, blended(words, 0.0), atol=1e-6)
    premultiplied = words.copy()
    premultiplied[..., :3] = np.round(words[..., :3] * (words[..., 3:] / 65535))
    frame = read(tmp_path / "d.tif", tiff(premultiplied, 2, extra=1, order=order))
    np.testing.assert_allclose(frame, blended(words, 0.0), atol=2 / 65535)
    inks = 1 - unit(words)
    frame = read(tmp_path / "e.tif", tiff(words, 5, order=order))
    np.testing.assert_allclose(frame, inks[..., :3] * inks[..., 3:], atol=1e-6)


def test_planes_that_pillow_would_misread_need_tifffile(tmp_path, rng, no_tifffile):
    reason = refused(tmp_path / "a.tif", tiff(noise(rng, 3), 2, planar=2))
    assert "pip install unpose[formats]" in reason


@pytest.mark.parametrize("compression", ["tiff_lzw", "packbits", "tiff_adobe_deflate"])
def test_compressed_tiff_keeps_16_bits(tmp_path, rng, compression, no_tifffile):
    """Pillow cannot write 16 bits in colour, but a grey picture of thrice the width has the same strips."""
    words = noise(rng, 3)
    Image.fromarray(words.reshape(13, 21)).save(tmp_path / "a.tif", compression=compression, strip_size=10**6)
    plain = bytearray((tmp_path / "a.tif").read_bytes())
    frame = read(tmp_path / "b.tif", _in_colour(plain))
    np.testing.assert_array_equal(frame, unit(words))


def _in_colour(data):
    """A grey TIFF with its tags set to a third of the width, three samples, and colour."""
    (first,) = struct.unpack_from("<I", data, 4)
    (count,) = struct.unpack_from("<H", data, first)
    wanted = {256: 7, 262: 2, 277: 3}
    entries = {}
    for k in range(count):
        tag, kind, number, value = struct.unpack_from("<HHII", data, first + 2 + 12 * k)
        entries[tag] = (3, 1, wanted[tag]) if tag in wanted else (kind, number, value)
    for tag in wanted:
        entries.setdefault(tag, (3, 1, wanted[tag]))
    end = len(data) + len(data) % 2
    bits = end + 2 + 12 * len(entries) + 4
    entries[258] = (3, 3, bits)
    directory = struct.pack("<H", len(entries))
    directory += b"".join(struct.pack("<HHII", tag, *entries[tag]) for tag in sorted(entries)) + bytes(4)
    struct.pack_into("<I", data, 4, end)
    return bytes(data).ljust(end, b"\0") + directory + struct.pack("<HHH", 16, 16, 16)


def test_pages_of_16_bits_are_told_apart(tmp_path, rng):
    tifffile = pytest.importorskip("tifffile", reason="tifffile, of the extra formats, is not installed")
    pages = noise(rng, 3, (5, 13, 7))
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for page in pages:
            file.write(page, photometric="rgb", contiguous=False)
    with guarded():
        assert header(tmp_path / "a.tif", 64).sizes == [(13, 7)] * 5
        found = dict(frames(tmp_path / "a.tif", 64, wanted={1, 4}))
    assert set(found) == {1, 4}
    for number, frame in found.items():
        np.testing.assert_array_equal(frame, unit(pages[number]))


def test_inks_in_planes_are_not_taken_for_transparent_colours(tmp_path, rng):
    tifffile = pytest.importorskip("tifffile", reason="tifffile, of the extra formats, is not installed")
    tifffile.imwrite(
        tmp_path / "a.tif", np.moveaxis(noise(rng, 4), -1, 0), photometric="separated", planarconfig="separate"
    )
    assert refused(tmp_path / "a.tif", (tmp_path / "a.tif").read_bytes())


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@pytest.mark.parametrize("kind", ["u1", "u2"])
def test_grey_tiff_whose_zero_is_white(tmp_path, rng, kind, order):
    tifffile = pytest.importorskip("tifffile", reason="tifffile, of the extra formats, is not installed")
    words = rng.integers(0, 256, (13, 7)).astype(kind)
    most = np.iinfo(words.dtype).max
    for photometric, expected in (("miniswhite", most - words), ("minisblack", words)):
        tifffile.imwrite(tmp_path / "a.tif", words, photometric=photometric, byteorder=order)
        np.testing.assert_array_equal(read(tmp_path / "a.tif"), np.divide(expected, most, dtype=np.float32))


def test_grey_tiff_with_transparency(tmp_path, rng):
    tifffile = pytest.importorskip("tifffile", reason="tifffile, of the extra formats, is not installed")
    words = noise(rng, 2)
    tifffile.imwrite(tmp_path / "a.tif", words, photometric="minisblack", extrasamples=["unassalpha"])
    np.testing.assert_allclose(read(tmp_path / "a.tif"), blended(words, 0.0)[..., 0], atol=1e-6)
