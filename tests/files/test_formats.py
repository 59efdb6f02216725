"""What is special to one format, and for which reasons files are rejected; ``test_contract`` holds what all share."""

import io
import os
import re
import shutil
import struct
import warnings
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from kit.formats import dicom, frames, header, only, png_of, rejection, stretched
from unpose.files import LUMINANCE, UnreadableError, formats, open_images, printable_name
from unpose.images import onto_canvas

PIXEL_LIMIT = 20_000 * 20_000

GREY = (np.arange(13 * 7).reshape(13, 7) * 2).astype(np.uint8)  # (13, 7), no two rows or columns alike
DEEP = (np.arange(13 * 7).reshape(13, 7) * 700).astype(np.uint16)
COLOUR = np.stack([GREY, 255 - GREY, np.full_like(GREY, 17)], axis=-1)  # (13, 7, 3)


def write(path, array, form=None, **options):
    Image.fromarray(array).save(path, format=form, **options)
    return path


# Values --------------------------------------------------------------------------------------------------------------


def test_transparent_images_with_dark_content_are_blended_over_white_others_over_black(tmp_path):
    shape = np.zeros((13, 7), bool)
    shape[4:9, 2:5] = True
    for ink, ground in ((10, 1.0), (200, 0.0)):
        rgba = np.zeros((13, 7, 4), np.uint8)
        rgba[shape] = (ink, ink, ink, 255)
        frame = only(write(tmp_path / "a.png", rgba))[..., 0]
        np.testing.assert_allclose(frame, np.where(shape, ink / 255, ground), atol=1e-6)
    half = np.full((13, 7, 4), (255, 255, 255, 128), np.uint8)
    np.testing.assert_allclose(only(write(tmp_path / "b.png", half)), 128 / 255, atol=1e-6)
    np.testing.assert_array_equal(only(write(tmp_path / "c.png", np.zeros((13, 7, 4), np.uint8))), 0)


def test_transparent_grey_and_palettes(tmp_path):
    Image.fromarray(np.stack([GREY + 60, np.full_like(GREY, 255)], axis=-1)).save(tmp_path / "la.png")
    np.testing.assert_allclose(only(tmp_path / "la.png"), (GREY + 60) / 255, atol=1e-6)
    picture = Image.fromarray(np.where(GREY > 90, 1, 0).astype(np.uint8)).convert("P")
    picture.putpalette([0, 0, 0, 255, 255, 255])
    picture.save(tmp_path / "p.png", transparency=0)
    np.testing.assert_array_equal(only(tmp_path / "p.png")[..., 0], GREY > 90)


@pytest.mark.parametrize("ending", ["jpg", "png", "webp", "tiff"])
@pytest.mark.parametrize("turn", [0, 6, 9])
def test_the_declared_size_is_that_of_the_frame(tmp_path, ending, turn):
    exif = Image.Exif()
    exif[0x0112] = turn  # 0 and 9 mean nothing
    path = write(tmp_path / f"a.{ending}", COLOUR, exif=exif)
    assert header(path, 64).sizes == [only(path).shape[:2]]


@pytest.mark.parametrize("ending", ["gif", "png", "webp", "tiff"])
def test_every_frame_of_an_animation_is_an_image_as_every_page_of_a_tiff_is(tmp_path, ending):
    values = [GREY + 10 * k for k in range(5)]
    pages = [Image.fromarray(value) for value in values]
    more = {"lossless": True} if ending == "webp" else {}
    path = tmp_path / f"a.{ending}"
    pages[0].save(path, save_all=True, append_images=pages[1:], **more)
    told = header(path, 64)
    assert told.sizes == [(13, 7)] * 5
    assert formats.read_grey(path, 64) == (None, told)
    assert ("every frame is an image" in told.note) == (ending != "tiff")
    found = frames(path, 64)
    for k in range(5):
        np.testing.assert_allclose(found[k] if found[k].ndim == 2 else found[k][..., 0], values[k] / 255, atol=1e-6)
    assert set(frames(path, 64, wanted={1, 3})) == {1, 3}
    np.testing.assert_array_equal(frames(path, 64, wanted={3})[3], found[3])


def test_a_still_picture_in_an_animated_format_has_no_note(tmp_path):
    for ending in ("gif", "png", "webp"):
        assert header(write(tmp_path / f"a.{ending}", GREY), 64).note == ""


def test_frames_after_a_damaged_one_are_rejected(tmp_path, rng):
    first, *others = [Image.fromarray(rng.integers(0, 256, (31, 17)).astype(np.uint8)) for _ in range(4)]
    first.save(tmp_path / "a.png", save_all=True, append_images=others)
    data = (tmp_path / "a.png").read_bytes()
    third = [at for at in range(len(data)) if data.startswith(b"fdAT", at)][1]
    (tmp_path / "a.png").write_bytes(data[: third + 30] + bytes(40) + data[third + 70 :])
    found = frames(tmp_path / "a.png", 64)
    assert [isinstance(found[k], UnreadableError) for k in range(4)] == [False, False, True, True]


def test_animations_that_declare_too_many_frames_are_rejected(tmp_path):
    pages = [Image.fromarray(GREY + k) for k in range(2)]
    pages[0].save(tmp_path / "a.png", save_all=True, append_images=pages[1:])
    whole = (tmp_path / "a.png").read_bytes()
    at = whole.index(b"acTL")
    for count, words in ((9_000_000, "more than a file of its size"), (2**31 - 1, "the limit")):
        control = b"acTL" + struct.pack(">II", count, 0)
        data = whole[:at] + control + struct.pack(">I", zlib.crc32(control)) + whole[at + 16 :]
        (tmp_path / "b.png").write_bytes(data)
        assert words in rejection(tmp_path / "b.png")
    blank, other = (Image.new("L", (4000, 4000), k) for k in (0, 1))
    blank.save(tmp_path / "large.gif", save_all=True, append_images=[other])
    data = (tmp_path / "large.gif").read_bytes()
    small = b"\x21\xf9\x04\0\0\0\0\0,\0\0\0\0\1\0\1\0\0\2\2D\1\0"
    (tmp_path / "long.gif").write_bytes(data[:-1] + small * 400 + b";")
    assert "pixels in all" in rejection(tmp_path / "long.gif")


def test_the_format_is_recognised_by_content_not_by_name(tmp_path):
    for stored, named in (("png", "jpg"), ("tiff", "png"), ("bmp", "mrc"), ("png", "npy")):
        path = write(tmp_path / f"{stored}.{named}", GREY, form=stored.upper())
        np.testing.assert_allclose(only(path), GREY / 255, atol=1e-6)


def test_a_large_image_is_shrunk_and_keeps_its_content(tmp_path, rng):
    coarse = rng.random((11, 13)).astype(np.float32)
    large = (np.kron(coarse, np.ones((64, 64))) * 255).astype(np.uint8)  # (704, 832)
    for ending in ("png", "jpg"):
        path = write(tmp_path / f"a.{ending}", large)
        small = frames(path, 26)[0]
        assert 2 * 26 <= max(small.shape) <= 8 * 26
        direct = onto_canvas((large / 255).astype(np.float32), (22, 26))
        np.testing.assert_allclose(onto_canvas(small, (22, 26)), direct, atol=0.08)
        assert abs(small.mean() - coarse.mean()) < 0.01


# Rejected files ------------------------------------------------------------------------------------------------------


def test_empty_tiny_and_nonsense(tmp_path, rng):
    (tmp_path / "zero.png").touch()
    assert rejection(tmp_path / "zero.png") == "is empty"
    (tmp_path / "text.png").write_text("no picture")
    assert "not an image" in rejection(tmp_path / "text.png")
    (tmp_path / "noise.jpg").write_bytes(rng.bytes(5000))
    assert rejection(tmp_path / "noise.jpg")
    assert "1 x 1" in rejection(write(tmp_path / "one.png", np.zeros((1, 1), np.uint8)))
    assert "does not exist" in rejection(tmp_path / "missing.png")
    assert "array" in rejection(write(tmp_path / "a.png", GREY), key="x")


def test_the_error_for_an_unknown_file_names_every_format_of_the_documentation(tmp_path):
    (tmp_path / "notes.png").write_text("no picture")
    reason = rejection(tmp_path / "notes.png").lower()
    table = (Path(__file__).parents[2] / "docs" / "howto" / "formats.md").read_text()
    rows = re.findall(r"^\| (.*?) \|", table.partition("|---|")[2].partition("| ND2")[0], re.MULTILINE)
    formats = {name.split()[0].strip("`.").lower() for row in rows for name in row.split(", ")}
    assert len(formats) > 12
    for name in formats - {"mrcs", "star"}:  # the same as MRC, and lists of images in MRC files
        assert re.search(rf"\b{name}\b", reason), name


def declared(path, height, width):
    """A PNG that says how large it is, and has the pixels of a small one."""
    png_of(height, width)(write(path, GREY))
    return path


@pytest.mark.parametrize("shape", [(14_000, 14_000), (PIXEL_LIMIT // 9000, 9000)])
def test_a_large_image_is_not_a_decompression_bomb(tmp_path, shape):
    assert header(declared(tmp_path / "a.png", *shape), 64).sizes == [shape]


@pytest.mark.parametrize("shape", [(PIXEL_LIMIT // 9000 + 1, 9000), (60_000, 70_000), (2**31 - 1, 2**31 - 1)])
def test_decompression_bombs_are_rejected_before_they_are_decoded(tmp_path, shape):
    reason = rejection(declared(tmp_path / "bomb.png", *shape))
    assert f"{shape[0] * shape[1]:,} pixels" in reason
    assert f"the limit of {PIXEL_LIMIT:,}" in reason
    assert "crop it or scale it down" in reason
    assert "damaged" not in reason


@pytest.mark.parametrize("limit", [Image.MAX_IMAGE_PIXELS, 12_345, None])
def test_pillows_limit_is_restored_after_the_last_reader(limit):
    filters, before = list(warnings.filters), Image.MAX_IMAGE_PIXELS
    first, second = formats.decoder_limits(), formats.decoder_limits()
    try:
        Image.MAX_IMAGE_PIXELS = limit  # a user's own
        for enter in (first, second):
            enter.__enter__()
            assert 2 * Image.MAX_IMAGE_PIXELS == PIXEL_LIMIT
        first.__exit__(None, None, None)  # as threads do: the first to come need not be the last to go
        assert 2 * Image.MAX_IMAGE_PIXELS == PIXEL_LIMIT
        second.__exit__(None, None, None)
        assert limit == Image.MAX_IMAGE_PIXELS
    finally:
        Image.MAX_IMAGE_PIXELS = before
    assert warnings.filters == filters


def test_decoders_that_run_programs_or_read_documents_are_never_used(tmp_path):
    (tmp_path / "a.png").write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n%%EOF\n"
    )
    assert "not an image" in rejection(tmp_path / "a.png")
    for form in ("PCX", "ICO", "TGA", "PDF"):
        Image.fromarray(COLOUR).save(tmp_path / "b.png", format=form)
        assert "not an image" in rejection(tmp_path / "b.png")


def test_archives_are_not_unpacked(tmp_path):
    inside = io.BytesIO()
    Image.fromarray(GREY).save(inside, "PNG")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.png", inside.getvalue())
    assert "archives are not unpacked" in rejection(tmp_path / "a.npz")
    for start in (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd"):  # a compressed file holds one or many
        (tmp_path / "b.fits.gz").write_bytes(start + zlib.compress(inside.getvalue()))
        assert rejection(tmp_path / "b.fits.gz") == "is compressed; decompress it first"


def test_nan_and_infinite_pixels_are_rejected(tmp_path):
    for bad in (np.nan, np.inf):
        values = np.ones((13, 7), np.float32)
        values[5, 2] = bad
        assert "NaN or infinite" in rejection(write(tmp_path / "a.tiff", values))


@pytest.mark.parametrize("value", [3e38, -3e38, 1e16])
def test_pixels_whose_squares_overflow_are_rejected_with_their_size(tmp_path, value):
    values = np.ones((13, 7), np.float32)
    values[5, 2] = value
    np.save(tmp_path / "a.npy", values)
    assert f"pixels of up to {abs(value):.3g}" in rejection(write(tmp_path / "a.tiff", values))
    assert "divide all images by the same number" in rejection(tmp_path / "a.npy")


def test_one_bad_page_costs_only_itself(tmp_path):
    values = [np.full((13, 7), k, np.float32) for k in range(3)]
    values[1][0, 0] = np.nan
    pages = [Image.fromarray(page) for page in values]
    pages[0].save(tmp_path / "a.tiff", save_all=True, append_images=pages[1:])
    found = frames(tmp_path / "a.tiff", 64)
    assert isinstance(found[1], UnreadableError)
    np.testing.assert_array_equal(found[2], values[2])


@pytest.mark.parametrize("offset", [8, 9])
def test_page_chains_that_form_a_loop_are_rejected(tmp_path, offset):
    # One page without tags that names itself, or a place inside itself, as the next one.
    (tmp_path / "a.tif").write_bytes(b"II*\0" + struct.pack("<IHI", 8, 0, offset) + bytes(3))
    assert rejection(tmp_path / "a.tif")
    whole = bytearray(write(tmp_path / "b.tif", GREY).read_bytes())
    (first,) = struct.unpack_from("<I", whole, 4)
    (tags,) = struct.unpack_from("<H", whole, first)
    struct.pack_into("<I", whole, first + 2 + 12 * tags, first)
    (tmp_path / "b.tif").write_bytes(whole)
    assert "longer than the file" in rejection(tmp_path / "b.tif")


class Interrupted(type(Path())):
    """A file whose reader is interrupted."""

    def open(self, *_args, **_options):
        raise KeyboardInterrupt


def test_keyboard_interrupts_are_not_swallowed(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        formats.read_header(Interrupted(write(tmp_path / "a.png", GREY)), 64)


# Arrays --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "count", "colour"),
    [((13, 7), 1, False), ((13, 7, 3), 1, True), ((5, 13, 7), 5, False), ((5, 13, 7, 1), 5, False),
     ((5, 13, 7, 3), 5, True), ((5, 3, 13, 7), 5, True), ((5, 1, 13, 7), 5, False), ((5, 13, 7, 4), 5, True)],
)  # fmt: skip
def test_shapes_of_arrays(tmp_path, shape, count, colour, rng):
    stack = rng.random(shape).astype(np.float32)
    stack[..., 3:] = 1  # opaque, where there is a fourth channel
    np.save(tmp_path / "a.npy", stack)
    found = frames(tmp_path / "a.npy", 64)
    assert header(tmp_path / "a.npy", 64).colour == colour
    assert [frame.shape for frame in found.values()] == [(13, 7, 3) if colour else (13, 7)] * count
    if shape == (5, 3, 13, 7):
        np.testing.assert_array_equal(found[2], np.moveaxis(stack[2], 0, -1))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_finds_the_images(tmp_path, save, rng):
    stack = rng.integers(0, 255, (5, 13, 7)).astype(np.uint8)
    save(tmp_path / "named.npz", x=stack, contour=rng.random((5, 2, 9)), y=np.arange(5))
    save(tmp_path / "only.npz", pictures=stack, y=np.arange(5), centre=rng.random((5, 2)))
    save(tmp_path / "two.npz", x_train=stack, x_test=stack[:2])
    for name, key, count in (("named", None, 5), ("only", None, 5), ("two", "x_test", 2)):
        found = frames(tmp_path / f"{name}.npz", 64, key=key)
        assert len(found) == count
        np.testing.assert_allclose(found[1], stack[1] / 255, atol=1e-7)
    reason = rejection(tmp_path / "two.npz")
    assert "'x_train' (5, 13, 7)" in reason
    assert "FILE::NAME" in reason
    assert "'z'" in rejection(tmp_path / "two.npz", key="z")


def test_arrays_that_are_not_images_are_rejected(tmp_path, rng):
    np.save(tmp_path / "a.npy", np.arange(5))
    assert "(5,)" in rejection(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", np.array(["a", {}], dtype=object), allow_pickle=True)
    assert "Python objects" in rejection(tmp_path / "b.npy")
    np.save(tmp_path / "c.npy", np.zeros((3, 5, 7), complex))
    assert "complex" in rejection(tmp_path / "c.npy")
    np.savez(tmp_path / "d.npz", x=np.array([[None]], dtype=object))
    assert rejection(tmp_path / "d.npz")
    values = rng.random((3, 5, 7))
    values[1, 2, 3] = 1e300  # beyond float32
    np.save(tmp_path / "e.npy", values)
    found = frames(tmp_path / "e.npy", 64)
    assert [isinstance(frame, UnreadableError) for frame in found.values()] == [False, True, False]


def test_headers_that_declare_more_than_the_file_has_are_rejected(tmp_path):
    promise = np.lib.format.header_data_from_array_1_0(np.zeros((1, 1, 1), np.float32)) | {"shape": (10**6, 100, 100)}
    with (tmp_path / "a.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, promise)
        file.write(bytes(4000))
    assert "cut short" in rejection(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", (tmp_path / "a.npy").read_bytes())
    assert "cut short" in rejection(tmp_path / "a.npz")


@pytest.mark.extra("formats")
def test_hdf5(tmp_path, rng):
    import h5py

    stack = rng.random((5, 13, 7)).astype(np.float32)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["entry/images"] = stack
        file["entry/other"] = stack[:3]
        file.create_dataset("packed", data=stack, chunks=(2, 13, 7), compression="gzip")
    for key in (None, "packed"):
        np.testing.assert_array_equal(frames(tmp_path / "a.h5", 64, key=key)[4], stack[4])
    assert len(frames(tmp_path / "a.h5", 64, key="entry/other")) == 3


@pytest.mark.extra("formats")
def test_hdf5_files_that_declare_too_much_or_refer_to_other_files_are_rejected(tmp_path, rng):
    import h5py

    with h5py.File(tmp_path / "huge.h5", "w") as file:
        file.create_dataset("images", shape=(10**9, 64, 64), dtype="f4", chunks=(1000, 64, 64))
    assert (tmp_path / "huge.h5").stat().st_size < 10_000
    assert "limit" in rejection(tmp_path / "huge.h5")
    np.save(tmp_path / "secret.raw", rng.random((5, 13, 7)))
    with h5py.File(tmp_path / "outside.h5", "w") as file:
        file.create_dataset("images", (2, 5, 7), "f4", external=[(str(tmp_path / "secret.raw"), 0, 2 * 5 * 7 * 4)])
    assert "other files" in rejection(tmp_path / "outside.h5")


@pytest.mark.extra("formats")
@pytest.mark.parametrize("version", [2, 3])
def test_zarr(tmp_path, version, rng):
    import zarr

    stack = rng.random((5, 13, 7)).astype(np.float32)
    array = zarr.create_array(tmp_path / "a", shape=stack.shape, chunks=(2, 13, 7), dtype="f4", zarr_format=version)
    array[:] = stack
    group = zarr.create_group(tmp_path / "g", zarr_format=version)
    inner = group.create_array("deep/images", shape=stack.shape, chunks=(2, 5, 7), dtype="f4")
    inner[:] = stack
    for folder in ("a", "g"):
        assert header(tmp_path / folder, 64).sizes == [(13, 7)] * 5
        np.testing.assert_array_equal(frames(tmp_path / folder, 64)[4], stack[4])


@pytest.mark.extra("formats")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("what", ["metadata", "chunk", "folder", "pipe"])
def test_nothing_in_a_zarr_array_leads_elsewhere(tmp_path, version, what):
    import zarr

    for name in ("a", "secret"):
        options = {"chunk_key_encoding": {"name": "v2", "separator": "/"}} if version == 2 else {}
        group = zarr.create_group(tmp_path / name, zarr_format=version)
        array = group.create_array("x", shape=(4, 13, 7), chunks=(2, 13, 7), dtype="u1", **options)
        array[:] = 7
    assert len(frames(tmp_path / "a", 64)) == 4
    chunks = [path for path in (tmp_path / "a" / "x").rglob("*") if path.is_file() and path.name.isdigit()]
    metadata = next(tmp_path.glob("a/x/zarr.json"), tmp_path / "a" / "x" / ".zarray")
    place = {"metadata": metadata, "folder": chunks[0].parent}.get(what, chunks[0])
    if what == "pipe":
        place.unlink()
        os.mkfifo(place)
    else:
        outside = tmp_path / "secret" / place.relative_to(tmp_path / "a")
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        place.symlink_to(outside)
    assert re.search(
        "not a regular file" if what == "pipe" else "a link, which is not followed", rejection(tmp_path / "a")
    )


@pytest.mark.extra("formats")
def test_zarr_never_unpickles(tmp_path):
    # Pickle as a filter: reading a chunk of this array through zarr alone would run what the chunk says.
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / ".zarray").write_text(
        '{"zarr_format": 2, "shape": [2, 5, 7], "chunks": [2, 5, 7], "dtype": "|u1", "order": "C", "fill_value": 0,'
        ' "compressor": null, "filters": [{"id": "pickle", "protocol": 5}]}'
    )
    (tmp_path / "a" / "0.0.0").write_bytes(b"cos\nmkdir\n(V" + str(tmp_path / "ran").encode() + b"\ntR.")
    assert "'pickle'" in rejection(tmp_path / "a")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("module", "content", "extra"),
    [("mrcfile", bytes(208) + b"MAP " + bytes(900), "em"), ("h5py", b"\x89HDF\r\n\x1a\n" + bytes(90), "formats"),
     ("astropy.io.fits", b"SIMPLE  =                    T", "fits"), ("pydicom", bytes(128) + b"DICM", "dicom"),
     ("pillow_heif", bytes(4) + b"ftypheic" + bytes(90), "heic")],
)  # fmt: skip
def test_the_error_for_a_missing_library_names_the_extra(tmp_path, monkeypatch, module, content, extra):
    monkeypatch.setitem(__import__("sys").modules, module, None)  # as if it were not installed
    (tmp_path / "a.dat").write_bytes(content)
    assert f"pip install unpose[{extra}]" in rejection(tmp_path / "a.dat")


# Astronomy, medicine, telephones and microscopes --------------------------------------------------------------------


@pytest.mark.extra("fits")
def test_fits_is_stretched_and_upright(tmp_path, rng):
    from astropy.io import fits

    values = rng.lognormal(3, 2, (31, 17)).astype(np.float32)
    fits.writeto(tmp_path / "a.fits", values)
    np.testing.assert_allclose(only(tmp_path / "a.fits"), stretched(values), atol=1e-5)
    assert header(tmp_path / "a.fits", 64).note == "brightness stretched by asinh"
    values[3, 4] = np.nan
    units = [fits.PrimaryHDU(), fits.ImageHDU(values, name="SCI"), fits.ImageHDU(values[:13] * 0 + 2, name="ERR")]
    fits.HDUList(units).writeto(tmp_path / "b.fits")
    frame = only(tmp_path / "b.fits")
    assert frame.shape == (31, 17)
    assert frame[::-1][3, 4] == 0
    assert only(tmp_path / "b.fits", key="ERR").shape == (13, 17)
    assert "holds no image 'X'" in rejection(tmp_path / "b.fits", key="X")
    stack = rng.integers(0, 60_000, (5, 13, 7)).astype(np.uint16)  # stored with an offset, BZERO
    fits.writeto(tmp_path / "c.fits", stack)
    found = frames(tmp_path / "c.fits", 64)
    for k in range(5):
        np.testing.assert_allclose(found[k], stretched(stack[k].astype(float)), atol=1e-5)
    fits.CompImageHDU(stack[0]).writeto(tmp_path / "d.fits")
    np.testing.assert_array_equal(only(tmp_path / "d.fits"), found[0])
    whole = (tmp_path / "c.fits").read_bytes()
    for cut in (
        whole[: len(whole) // 2],
        whole.replace(b"NAXIS3  =                    5", b"NAXIS3  =            500000000"),
    ):
        (tmp_path / "cut.fits").write_bytes(cut)
        assert rejection(tmp_path / "cut.fits")


@pytest.mark.extra("dicom")
def test_dicom(tmp_path):
    # An even number of bytes, as the format wants.
    deep, colour = DEEP[:12], COLOUR[:12]
    path = dicom(tmp_path / "a", deep)
    np.testing.assert_allclose(only(path), deep / 65535, atol=1e-6)
    np.testing.assert_allclose(only(dicom(path, deep // 16, BitsStored=12, HighBit=11)), (deep // 16) / 4095, atol=1e-6)
    white = only(dicom(path, deep, PhotometricInterpretation="MONOCHROME1"))
    np.testing.assert_allclose(white, 1 - deep / 65535, atol=1e-6)
    scan = dicom(
        path,
        deep.astype(np.int16) // 4,
        RescaleSlope=2,
        RescaleIntercept=-1000,
        WindowCenter=[50, 1],
        WindowWidth=[400, 1],
    )
    window = np.clip((deep.astype(np.int16) // 4 * 2.0 - 1000 + 150) / 400, 0, 1)
    np.testing.assert_allclose(only(scan), window, atol=1e-6)
    np.testing.assert_allclose(only(dicom(path, colour)), colour / 255, atol=1e-6)
    stack = np.stack([deep, deep[::-1], deep[:, ::-1]])
    found = frames(dicom(path, stack, NumberOfFrames=3), 64)
    np.testing.assert_allclose(np.stack([found[k] for k in range(3)]), stack / 65535, atol=1e-6)
    with pytest.raises(ValueError, match="can only be read as a whole") as error:
        open_images(path)
    assert "Fortran" not in str(error.value)
    assert "cut short" in rejection(dicom(path, deep, Rows=60_000, Columns=60_000))
    assert "neither grey nor RGB" in rejection(dicom(path, GREY[:12], PhotometricInterpretation="PALETTE COLOR"))
    path.write_bytes(dicom(path, deep).read_bytes().replace(b"1.2.840.10008.1.2.1\0", b"1.2.840.10008.1.2.5\0"))
    assert "gdcmconv" in rejection(path)


@pytest.mark.parametrize("start", [b"\xda\xce\xbe\x0a", b"ZISRAWFILE"])
def test_microscope_formats_are_rejected_with_advice(tmp_path, start):
    (tmp_path / "a.tif").write_bytes(start + bytes(2000))
    assert "convert it to TIFF" in rejection(tmp_path / "a.tif")


# Frames --------------------------------------------------------------------------------------------------------------


def test_luminance_of_grey_is_grey():
    assert abs(LUMINANCE.sum() - 1) < 1e-6


def test_printable_names_are_printable_and_distinct():
    names = ["a\nb", "a\\nb", "a\x1b[31m", "a\udcff", "a\\xff", "\u202egpj", "q\"u'o<script>te", "é", "日本"]
    shown = [printable_name(name) for name in names]
    assert all(name.isprintable() for name in shown)
    assert len(set(shown)) == len(names)
    assert [shown[i] for i in (3, 6, 7, 8)] == ["a\\xff", *names[6:]]
    assert all(name.encode("utf-8") for name in shown)
