"""TIFF: pages, 16-bit and float colour, orientation, and channels of one image that lie on several pages."""

import struct

import numpy as np
import pytest
import tifffile
from PIL import Image

from kit.formats import blended, frames, header, noise, only, rejection, unit
from unpose.data import read_folder


def read(path):
    """All frames of a file and the note of its header, which must agree with the frames."""
    told, found = header(path, 64), frames(path, 64)
    assert list(found) == list(range(len(told.sizes)))
    assert told.sizes == [frame.shape[:2] for frame in found.values()]
    assert told.colour == any(frame.ndim == 3 for frame in found.values())
    return list(found.values()), told.note


def without_loss(path, data):
    """The single frame of a file that holds these bytes."""
    path.write_bytes(data)
    assert header(path).note == ""
    return only(path)


# Colour of 16 bits ---------------------------------------------------------------------------------------------------


def tiff(words, photometric, extra=None, order="<", planar=1):
    """A 16-bit TIFF with one strip, or one per channel, written according to the specification."""
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


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@pytest.mark.parametrize("planar", [1, 2], ids=["contiguous", "planar"])
def test_16_bit_colour_keeps_every_bit(tmp_path, rng, order, planar):
    words = noise(rng, 13, 7, 4)
    path, options = tmp_path / "a.tif", {"order": order, "planar": planar}
    np.testing.assert_array_equal(without_loss(path, tiff(words[..., :3], 2, **options)), unit(words[..., :3]))
    frame = without_loss(path, tiff(words, 2, extra=0, **options))  # a fourth channel without a meaning
    np.testing.assert_array_equal(frame, unit(words[..., :3]))
    np.testing.assert_allclose(without_loss(path, tiff(words, 2, extra=2, **options)), blended(words), atol=1e-6)
    premultiplied = words.copy()
    premultiplied[..., :3] = np.round(words[..., :3] * (words[..., 3:] / 65535))
    frame = without_loss(path, tiff(premultiplied, 2, extra=1, **options))
    np.testing.assert_allclose(frame, blended(words), atol=2 / 65535)
    inks = 1 - unit(words)
    np.testing.assert_allclose(without_loss(path, tiff(words, 5, **options)), inks[..., :3] * inks[..., 3:], atol=1e-6)


@pytest.mark.parametrize("compression", ["tiff_lzw", "packbits", "tiff_adobe_deflate"])
def test_compressed_16_bit_colour_keeps_every_bit_or_a_note_says_that_8_are_read(tmp_path, rng, compression):
    """Pillow cannot write 16-bit colour, but a grey image of three times the width has the same strips."""
    words = noise(rng, 13, 7, 3)
    Image.fromarray(words.reshape(13, 21)).save(tmp_path / "a.tif", compression=compression, strip_size=10**6)
    (tmp_path / "b.tif").write_bytes(_in_colour(bytearray((tmp_path / "a.tif").read_bytes())))
    (frame,), note = read(tmp_path / "b.tif")
    if compression == "tiff_lzw" and 5 not in tifffile.TIFF.DECOMPRESSORS:  # imagecodecs is not installed
        assert "pip install imagecodecs" in note
        np.testing.assert_allclose(frame, unit(words), atol=1 / 255)
    else:
        assert note == ""
        np.testing.assert_array_equal(frame, unit(words))


def _in_colour(data):
    """A grey TIFF whose tags are changed to a third of the width, three samples per pixel, and RGB."""
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


def test_pages_of_16_bits_can_be_read_one_by_one(tmp_path, rng):
    pages = noise(rng, 5, 13, 7, 3)
    with tifffile.TiffWriter(tmp_path / "a.tif") as file:
        for page in pages:
            file.write(page, photometric="rgb", contiguous=False)
    assert header(tmp_path / "a.tif", 64).sizes == [(13, 7)] * 5
    found = frames(tmp_path / "a.tif", 64, wanted={1, 4})
    assert set(found) == {1, 4}
    for number, frame in found.items():
        np.testing.assert_array_equal(frame, unit(pages[number]))


def test_large_16_bit_colour_is_shrunk_by_averaging(tmp_path, rng):
    words = noise(rng, 60, 84, 3)
    tifffile.imwrite(tmp_path / "a.tif", words, photometric="rgb")
    small = frames(tmp_path / "a.tif", 14)[0]
    expected = (words.astype(float) / 65535).reshape(20, 3, 28, 3, 3).mean((1, 3))
    np.testing.assert_allclose(small, expected, atol=1e-6)


def test_two_grey_samples_of_unknown_meaning_are_channels_and_rejected(tmp_path, rng):
    tifffile.imwrite(tmp_path / "a.tif", noise(rng, 13, 7, 2), photometric="minisblack", extrasamples=["unspecified"])
    assert "2 channels" in rejection(tmp_path / "a.tif")


@pytest.mark.parametrize("order", ["<", ">"], ids=["little", "big"])
@pytest.mark.parametrize("kind", ["u1", "u2"])
def test_grey_tiff_whose_zero_is_white(tmp_path, rng, kind, order):
    words = rng.integers(0, 256, (13, 7)).astype(kind)
    most = np.iinfo(words.dtype).max
    for photometric, expected in (("miniswhite", most - words), ("minisblack", words)):
        tifffile.imwrite(tmp_path / "a.tif", words, photometric=photometric, byteorder=order)
        np.testing.assert_array_equal(only(tmp_path / "a.tif"), np.divide(expected, most, dtype=np.float32))


# Channels ------------------------------------------------------------------------------------------------------------


def save(path, pages, description):
    """A TIFF written by Pillow, one page after the other, with a description."""
    first, *others = [Image.fromarray(page) for page in pages]
    first.save(path, save_all=True, append_images=others, tiffinfo={270: description})
    return path


def stack(rng, *shape, kind=np.uint8):
    return rng.integers(0, 255, (*shape, 13, 7)).astype(kind)


IMAGEJ = "ImageJ=1.54f\nimages={images}\n{axes}hyperstack=true\nmode=composite\nloop=false\nmin=0.0\nmax=255.0\n"
OME = (
    '<?xml version="1.0" encoding="UTF-8"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID='
    '"Image:0"><Pixels DimensionOrder="{order}" ID="Pixels:0" SizeC="{c}" SizeT="{t}" SizeX="7" SizeY="13" SizeZ="{z}" '
    'Type="uint8"><Channel ID="Channel:0:0" SamplesPerPixel="{samples}"/><TiffData/></Pixels></Image></OME>'
)


def imagej(images, **axes):
    return IMAGEJ.format(images=images, axes="".join(f"{name}={length}\n" for name, length in axes.items()))


def ome(order="XYCZT", c=1, z=1, t=1, samples=1):
    return OME.format(order=order, c=c, z=z, t=t, samples=samples)


def shaped(*shape, axes):
    return f'{{"shape": {list(shape)}, "axes": "{axes}"}}'


@pytest.mark.parametrize(
    ("positions", "description"),
    [(1, imagej(3, channels=3)), (2, imagej(6, channels=3, slices=2)), (2, imagej(6, channels=3, frames=2)),
     (1, ome(c=3)), (2, ome(c=3, z=2)), (2, ome("XYZCT", c=3, t=2)), (1, ome("XYZTC", c=3)),
     (1, shaped(3, 13, 7, axes="CYX")), (2, shaped(2, 3, 13, 7, axes="ZCYX")), (2, shaped(3, 13, 7, axes="CYX"))],
)  # fmt: skip
@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32])
def test_three_channels_are_the_colours_of_one_image(tmp_path, rng, positions, description, kind):
    pages = stack(rng, positions * 3, kind=kind)
    found, note = read(save(tmp_path / "a.tif", pages, description))
    assert "red, green and blue" in note
    np.testing.assert_array_equal(found, unit(np.moveaxis(pages.reshape(positions, 3, 13, 7), 1, -1)))


@pytest.mark.parametrize("count", [2, 4, 5])
def test_other_numbers_of_channels_are_rejected(tmp_path, rng, count):
    for description in (
        imagej(2 * count, channels=count, frames=2),
        ome(c=count, z=2),
        ome("XYZCT", c=count, z=2),
        shaped(2, count, 13, 7, axes="TCYX"),
    ):
        reason = rejection(save(tmp_path / "a.tif", stack(rng, 2 * count), description))
        assert f"has {count} channels at each position; give one channel each" in reason


@pytest.mark.parametrize(
    "description", [imagej(6, channels=3, slices=2) + "order=zct\n", ome("XYZCT", c=3, z=2), ome("XYTCZ", c=3, t=2),
                    shaped(3, 2, 13, 7, axes="CZYX")],
)  # fmt: skip
def test_channels_that_are_stored_as_separate_stacks_are_rejected(tmp_path, rng, description):
    assert "each a stack of its own" in rejection(save(tmp_path / "a.tif", stack(rng, 6), description))


@pytest.mark.parametrize(
    "description",
    ["", "three of something", imagej(6, slices=6), imagej(6, frames=6), imagej(6, channels=1, slices=6), ome(z=6),
     ome(t=6), shaped(6, 13, 7, axes="ZYX"), shaped(6, 13, 7, axes="QYX"), '{"shape": [3, 13, 7]}',
     # Not about these pages: metadata copied from another file, or of a set of files.
     imagej(4, channels=4), ome(c=3, z=6),
     # Nonsense.
     "{", "[" * 9999, '{"shape": 3, "axes": "C"}', '{"shape": [3, 13], "axes": "CYX"}', "<Pixels SizeC='x'>",
     imagej(0, channels=0), imagej(6, channels="9" * 5000), '{"shape": [-3, 13, 7], "axes": "CYX"}', ome("XYZT", c=3)],
)  # fmt: skip
def test_slices_time_points_and_plain_pages_are_separate_images(tmp_path, rng, description):
    pages = stack(rng, 6)
    found, note = read(save(tmp_path / "a.tif", pages, description))
    assert note == ""
    np.testing.assert_array_equal(found, unit(pages))


def test_a_page_in_colour_is_one_image_however_its_samples_are_counted(tmp_path, rng):
    colour = rng.integers(0, 255, (13, 7, 3)).astype(np.uint8)
    for description in (ome(c=3, samples=3), imagej(1, channels=3), shaped(13, 7, 3, axes="YXS")):
        ((found,), note) = read(save(tmp_path / "a.tif", [colour], description))
        assert note == ""
        np.testing.assert_array_equal(found, unit(colour))
    assert "2 channels" in rejection(save(tmp_path / "a.tif", [colour, colour], ome(c=6, samples=3)))


def test_a_bad_channel_costs_only_its_own_image(tmp_path, rng):
    pages = stack(rng, 9, kind=np.float32)
    pages[4, 0, 0] = np.nan
    uneven = [*pages[:8], pages[8, :11]]
    save(tmp_path / "a.tif", uneven, imagej(9, channels=3, slices=3))
    found = frames(tmp_path / "a.tif", 64)
    assert set(frames(tmp_path / "a.tif", 64, wanted={0, 2})) == {0, 2}
    np.testing.assert_array_equal(found[0], np.moveaxis(pages[:3], 0, -1))
    assert "NaN" in str(found[1])
    assert "not grey images of one size" in str(found[2])


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("big", [False, True])
def test_channels_as_tifffile_writes_them(tmp_path, rng, kind, order, big):
    two, three = stack(rng, 5, 2, kind=kind), stack(rng, 5, 3, kind=kind)
    ways = [{"ome": True, "metadata": {"axes": "ZCYX"}}, {"metadata": {"axes": "ZCYX"}}]
    if not big and kind != np.float64:
        ways.append({"imagej": True, "metadata": {"axes": "ZCYX"}})
    for way in ways:
        options = {"photometric": "minisblack", "byteorder": order, "bigtiff": big, **way}
        tifffile.imwrite(tmp_path / "a.tif", three, **options)
        np.testing.assert_array_equal(read(tmp_path / "a.tif")[0], unit(np.moveaxis(three, 1, -1)))
        tifffile.imwrite(tmp_path / "a.tif", two, **options)
        assert "2 channels" in rejection(tmp_path / "a.tif")
        options["metadata"] = {"axes": "ZYX"}
        tifffile.imwrite(tmp_path / "a.tif", two[:, 0], **options)
        np.testing.assert_array_equal(read(tmp_path / "a.tif")[0], unit(two[:, 0]))


def test_a_folder_counts_each_position_once_and_lists_what_it_rejects(tmp_path, rng):
    save(tmp_path / "two.tif", stack(rng, 2), imagej(2, channels=2))
    save(tmp_path / "three.tif", stack(rng, 6), imagej(6, channels=3, slices=2))
    save(tmp_path / "time.tif", stack(rng, 5), imagej(5, frames=5))
    found = read_folder(tmp_path)
    assert found.names == ["three.tif[0]", "three.tif[1]", *(f"time.tif[{k}]" for k in range(5))]
    assert found.images.shape == (7, 13, 7, 3)
    assert [name for name, _ in found.rejected] == ["two.tif"]
    assert found.notes == ["1 file: 3 channels of each position read as red, green and blue"]
