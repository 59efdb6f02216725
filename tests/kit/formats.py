"""Small files of every image format, what reading each must give, and how such files lie about their size.

To put a new format under the contract of ``files/test_contract.py``, add its samples to :data:`SAMPLES`; a test there
fails for a format without one.
"""

import json
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from unpose.files import LUMINANCE, UnreadableError, formats

# Reading -------------------------------------------------------------------------------------------------------------


def header(path, side=4096, key=None):
    """What a file declares."""
    with formats.decoder_limits():
        return formats.read_header(path, side, key)


def frames(path, side=4096, **options):
    """The frames of a file, or the reasons why they cannot be read, by their numbers."""
    with formats.decoder_limits():
        return dict(formats.read_frames(path, side, **options))


def only(path, side=4096, key=None):
    """The single frame of a file, which its header has announced and of which :func:`read_grey` gives the luminance."""
    told = header(path, side, key)
    ((number, frame),) = frames(path, side, key=key).items()
    if isinstance(frame, UnreadableError):
        raise frame
    assert (number, frame.dtype) == (0, np.float32)
    assert told.sizes == [frame.shape[:2]] or side < max(told.sizes[0])
    assert told.colour or frame.ndim == 2
    if key is None:
        with formats.decoder_limits():
            grey, again = formats.read_grey(path, side)
        grey = grey / 255 if grey.dtype == np.uint8 else grey
        luminance = [each if each.ndim == 2 else each @ LUMINANCE for each in (grey, frame)]
        np.testing.assert_allclose(*luminance, atol=1 / 255)
        assert again == told
    return frame


def rejection(path, data=None, side=4096, **options):
    """Why a file, which consists of ``data`` if they are given, or its only frame is rejected: one printable line."""
    if data is not None:
        path.write_bytes(data)
    try:
        header(path, side, **options)
        reasons = list(frames(path, side, **options).values())
    except UnreadableError as reason:
        reasons = [reason]
    assert len(reasons) == 1
    assert isinstance(reasons[0], UnreadableError)
    assert str(reasons[0]).isprintable()
    return str(reasons[0])


# Values --------------------------------------------------------------------------------------------------------------


def noise(rng, *shape, kind=np.uint16):
    """Random integers over the whole range of a type."""
    return rng.integers(0, np.iinfo(kind).max, shape, dtype=kind, endpoint=True)


def unit(values):
    """Bytes and 16-bit integers by their full scale, other numbers as they are, in single precision."""
    return values.astype(np.float32) / np.float32({"B": 255, "H": 65535}.get(values.dtype.char, 1))


def blended(samples, ground=0.0):
    """Pixels (h, w, 2) or (h, w, 4) whose last channel is alpha, over a ground: by definition, in double precision."""
    values = samples.astype(float) / np.iinfo(samples.dtype).max
    found = values[..., :-1] * values[..., -1:] + ground * (1 - values[..., -1:])
    return found if found.shape[-1] == 3 else found[..., 0]


def stored(upright, orientation):
    """What a camera stores with an EXIF orientation: its inverse, applied to the upright image (h, w, ...)."""
    return np.ascontiguousarray({
        1: upright, 2: upright[:, ::-1], 3: upright[::-1, ::-1], 4: upright[::-1], 5: upright.swapaxes(0, 1),
        6: np.rot90(upright), 7: np.rot90(upright, 2).swapaxes(0, 1), 8: np.rot90(upright, -1),
    }[orientation])  # fmt: skip


def stretched(values):
    """The brightness of an astronomical image (h, w) as it is shown, the first row at the top."""
    low, high = np.percentile(values, (0.25, 99.75))
    return (np.arcsinh(np.clip((values - low) / (high - low), 0, 1) * 10) / np.arcsinh(10))[::-1]


# Writing -------------------------------------------------------------------------------------------------------------


def exif(orientation):
    found = Image.Exif()
    found[0x0112] = orientation
    return found


def by_pillow(path, pixels, orientation=None, *, form, mode=None, **options):
    """A picture (h, w, ...) or an animation (n, h, w)."""
    if mode == "frames":
        first, *others = [Image.fromarray(page) for page in pixels]
        options |= {"save_all": True, "append_images": others}
    else:
        first = Image.fromarray(pixels)
        first = first.quantize(8) if mode == "P" else first.convert(mode) if mode else first
    if orientation is not None:
        options["exif"] = exif(orientation)
    first.save(path, form, **options)


def by_tifffile(path, pixels, orientation=None, **options):
    tags = [] if orientation is None else [(274, 3, 1, orientation, True)]
    tifffile.imwrite(path, pixels, extratags=tags, **options)


PASSES = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
"""Adam7, the order of pixels in an interlaced PNG: first row and column of each pass, and their steps."""


def chunk(kind, data):
    """A chunk of a PNG."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def filtered(samples, filters=(0,)):
    """Rows (h, w, c) of 16 bits as PNG stores them, filter k on every row whose number is k modulo the filters."""
    before, rows = np.zeros(samples[0].size * 2, np.uint8), []
    step = 2 * samples.shape[2]  # bytes of a pixel
    for number, row in enumerate(samples):
        now = np.frombuffer(row.astype(">u2").tobytes(), np.uint8)
        left, corner = (np.concatenate([np.zeros(step, np.uint8), line[:-step]]) for line in (now, before))
        kind = filters[number % len(filters)]
        guess = [np.zeros_like(now), left, before, ((left.astype(int) + before) // 2).astype(np.uint8), None][kind]
        if guess is None:
            guess = np.array([_paeth(*each) for each in zip(left, before, corner, strict=True)])
        rows.append(bytes([kind]) + (now - guess).tobytes())
        before = now
    return b"".join(rows)


def _paeth(left, up, corner):
    guess = int(left) + int(up) - int(corner)
    return min((left, up, corner), key=lambda value: abs(guess - int(value)))  # the first of equals, as the norm says


def deep_png(samples, filters=(0,), interlaced=False, more=b"", pieces=1):
    """A 16-bit PNG of samples (h, w, c), written according to the specification; Pillow cannot write it."""
    height, width, channels = samples.shape
    if interlaced:
        parts = [samples[top::down, left::across] for top, left, down, across in PASSES]
        data = b"".join(filtered(part, filters) for part in parts if part.size)
    else:
        data = filtered(samples, filters)
    packed = zlib.compress(data, 1)
    cuts = [len(packed) * k // pieces for k in range(pieces + 1)]
    body = b"".join(chunk(b"IDAT", packed[a:b]) for a, b in pairwise(cuts))
    start = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, interlaced)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", start) + more + body + chunk(b"IEND", b"")


def by_specification(path, pixels, orientation=None, **options):
    more = b"" if orientation is None else chunk(b"eXIf", exif(orientation).tobytes().removeprefix(b"Exif\0\0"))
    path.write_bytes(deep_png(pixels, more=more, **options))


def portable(path, pixels, *, white, plain=False):
    """A PGM or PPM of integers up to ``white``, as bytes or as text."""
    number = {(2, True): 2, (3, True): 3, (2, False): 5, (3, False): 6}[pixels.ndim, plain]
    data = b" ".join(b"%d" % value for value in pixels.ravel()) if plain else pixels.tobytes()
    if pixels.dtype == np.uint16 and not plain:
        data = pixels.astype(">u2").tobytes()
    path.write_bytes(b"P%d\n%d %d\n%d\n" % (number, pixels.shape[1], pixels.shape[0], white) + data)


def by_numpy(path, pixels, *, save=np.save, order="C"):
    with path.open("wb") as file:
        save(file, np.asarray(pixels, order=order))


def mrc(path, pixels):
    import mrcfile

    with mrcfile.new(path, overwrite=True) as file:
        file.set_data(pixels)


def hdf5(path, pixels, *, libver="earliest", **options):
    import h5py

    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("group/images", data=pixels, **options)


def zarr(path, pixels, *, version):
    import zarr

    chunks = (2, *pixels.shape[1:])
    array = zarr.create_array(path, shape=pixels.shape, chunks=chunks, dtype=pixels.dtype, zarr_format=version)
    array[:] = pixels


def fits(path, pixels, *, packed=False):
    from astropy.io import fits

    (fits.CompImageHDU if packed else fits.PrimaryHDU)(pixels).writeto(path)


def dicom(path, pixels, **elements):
    """Pixels (h, w), (h, w, 3), or (n, h, w) with ``NumberOfFrames``, without compression."""
    import pydicom

    file = pydicom.Dataset()
    file.file_meta = pydicom.dataset.FileMetaDataset()
    file.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    file.file_meta.MediaStorageSOPClassUID = pydicom.uid.SecondaryCaptureImageStorage
    file.file_meta.MediaStorageSOPInstanceUID = "1.2.3"
    is_coloured = pixels.shape[-1] == 3
    file.Rows, file.Columns = pixels.shape[-3:-1] if is_coloured else pixels.shape[-2:]
    file.SamplesPerPixel, file.PhotometricInterpretation = (3, "RGB") if is_coloured else (1, "MONOCHROME2")
    file.PlanarConfiguration = 0
    file.BitsAllocated = file.BitsStored = 8 * pixels.dtype.itemsize
    file.HighBit, file.PixelRepresentation = file.BitsStored - 1, int(pixels.dtype.kind == "i")
    file.PixelData = pixels.tobytes() + bytes(pixels.nbytes % 2)
    if pixels.ndim == 3 and not is_coloured:
        file.NumberOfFrames = len(pixels)
    for name, value in elements.items():
        setattr(file, name, value)
    file.save_as(path, enforce_file_format=True)
    return path


def heic(path, pixels, **options):
    import pillow_heif

    pillow_heif.from_pillow(Image.fromarray(pixels)).save(path, format="HEIF", quality=95, **options)


# Lying ---------------------------------------------------------------------------------------------------------------
# Each of these makes a file declare far more pixels than it has, in place.


def patched(at, form, *values):
    """Writes numbers at a place: an offset, or the one at which a function finds it in the bytes."""

    def lie(path):
        data = bytearray(path.read_bytes())
        struct.pack_into(form, data, at(data) if callable(at) else at, *values)
        path.write_bytes(data)

    return lie


def replaced(old, new):
    """Writes bytes in place of others."""

    def lie(path):
        data = path.read_bytes()
        assert data.count(old) == 1, "the sample holds what the lie changes"
        path.write_bytes(data.replace(old, new))

    return lie


def png_of(height, width):
    """Declares another size, with the right sum."""

    def lie(path):
        data = bytearray(path.read_bytes())
        data[16:24] = struct.pack(">II", width, height)
        data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
        path.write_bytes(data)

    return lie


def _start_of_frame(data):
    """Where a JPEG declares its height and width."""
    return 5 + min(at for kind in (b"\xff\xc0", b"\xff\xc2") if (at := data.find(kind)) > 0)


def jpeg_of(height, width):
    return patched(_start_of_frame, ">HH", height, width)


def bmp_of(height, width):
    return patched(18, "<ii", width, height)


def _large_pages(path):
    with tifffile.TiffFile(path, mode="r+b") as file:
        for page in file.pages:
            for name in ("ImageWidth", "ImageLength"):
                page.tags[name].overwrite(60_000)


def _frame_beyond(path, before=b""):
    """A GIF with a frame far outside of its picture."""
    frame = b"\x21\xf9\x04\x08\0\0\0\0," + struct.pack("<HHHHB", 0, 0, 18_000, 17_000, 0) + b"\2\2D\1\0"
    path.write_bytes(b"GIF89a" + struct.pack("<HHBBB", 9, 9, 0, 0, 0) + before + frame + b";")


def _endless_header(path, length=64 * 2**20):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", length) + b" " * length)


def _sparse_dataset(path):
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("images", shape=(10**9, 64, 64), dtype="f4", chunks=(1000, 64, 64))


def _many_images(path):
    """A Zarr array that declares images of which it holds no chunk."""
    place = next(each for each in (path / "zarr.json", path / ".zarray") if each.exists())
    told = json.loads(place.read_text())
    place.write_text(json.dumps(told | {"shape": [10**9, *told["shape"][1:]]}))


def _many_rows(path):
    import pydicom

    file = pydicom.dcmread(path)
    file.Rows = file.Columns = 60_000
    file.save_as(path)


# The table -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sample:
    """A kind of file: how it is written, from which pixels, and what is read.

    Parameters
    ----------
    form : str
        The format, as the error for an unknown file names it.
    kind : str
        What is special about it.
    write : callable
        Writes pixels to a path; of a sample that ``turns``, with the EXIF orientation as third argument.
    pixels : ndarray
        (h, w) or (h, w, c) for one image; (n, h, w) or (n, h, w, 3) if ``several``.
    expected : callable
        What must be read of the pixels: (h, w) or (h, w, 3) in 0 to 1.
    atol : float
        The loss that is allowed.
    lies : tuple of callable
        Each lets a file declare more than it has.
    """

    form: str
    kind: str
    write: Callable[..., None]
    pixels: Any
    expected: Callable[[Any], Any] = unit
    atol: float = 0.0
    several: bool = False
    turns: bool = False
    extra: str | None = None
    lies: tuple[Callable[[Path], None], ...] = ()

    def __str__(self):
        return f"{self.form}-{self.kind}".lower().replace(" ", "-")

    def images(self):
        """What must be read, (n, h, w) or (n, h, w, 3)."""
        return np.stack([self.expected(page) for page in (self.pixels if self.several else [self.pixels])])


_RNG = np.random.default_rng(0)
_GREY, _COLOUR = noise(_RNG, 41, 37, kind=np.uint8), noise(_RNG, 41, 37, 3, kind=np.uint8)
_ALPHA, _DEEP = noise(_RNG, 41, 37, 4, kind=np.uint8), noise(_RNG, 41, 37, 4)
_STACK = noise(_RNG, 5, 41, 37, kind=np.uint8)
_HALVES = _DEEP[..., :3] // 2  # which a float16 holds, though not exactly
_BITS = _GREY > 127
_ROWS, _COLUMNS = np.mgrid[:112, :80]
_SMOOTH = np.dstack([40 + _ROWS, 220 - 2 * _COLUMNS, 30 + _ROWS // 2 + _COLUMNS]).astype(np.uint8)
_PALETTE = np.array([[250, 3, 40], [9, 200, 7], [0, 70, 255]], np.uint8)[_GREY % 3]
_FLOATS = _RNG.normal(50, 700, (41, 37)).astype(np.float32)


def _of_12_bits(pixels):
    return pixels / np.float32(4095)


def _from_planes(pixels):
    """Of an image that is stored as three planes (3, h, w)."""
    return unit(np.moveaxis(pixels, 0, -1))


_pillow = {form: partial(by_pillow, form=form) for form in ("PNG", "JPEG", "TIFF", "WEBP", "BMP", "GIF", "PPM")}
_lossless = partial(_pillow["WEBP"], lossless=True)
_large_png = (png_of(60_000, 70_000), png_of(2**31 - 1, 2**31 - 1))
_large_webp = (patched(21, "<I", 2**28 - 1),)
_large_ppm = (replaced(b"\n37 41\n", b"\n99999 99999\n"), replaced(b"\n37 41\n", b"\n9000 9000\n"))
_rgb = {"photometric": "rgb"}
_short_npy = replaced(b"(5, 41, 37), }      ", b"(5, 41000, 37000), }")
_LARGE = (60_000, 60_000)
_small_frame = b",\0\0\0\0\1\0\1\0\0\2\2D\1\0"
_gif_lies = (patched(6, "<HH", 65_535, 65_535), _frame_beyond, partial(_frame_beyond, before=_small_frame))
_mrc_lies = (patched(0, "<ii", *_LARGE), *(patched(92, "<i", length) for length in (2**31 - 1, 2**29, -5)))
_large_heic = patched(lambda data: data.index(b"ispe") + 8, ">II", *_LARGE)
_no_loss = 1e-6
"""Rounding of single precision."""

SAMPLES = [
    Sample("PNG", "grey", _pillow["PNG"], _GREY, turns=True, lies=_large_png),
    Sample("PNG", "colour", _pillow["PNG"], _COLOUR, turns=True),
    Sample("PNG", "grey of 16 bits", _pillow["PNG"], _DEEP[..., 0]),
    Sample("PNG", "one bit", _pillow["PNG"], _BITS),
    Sample("PNG", "palette", partial(_pillow["PNG"], mode="P"), _PALETTE),
    Sample("PNG", "alpha", _pillow["PNG"], _ALPHA, blended, _no_loss, turns=True),
    Sample("PNG", "grey with alpha", _pillow["PNG"], _ALPHA[..., :2], blended, _no_loss),
    Sample("PNG", "colour of 16 bits", by_specification, _DEEP[..., :3], turns=True, lies=_large_png[:1]),
    Sample("PNG", "colour of 16 bits interlaced", partial(by_specification, interlaced=True), _DEEP[..., :3]),
    Sample("PNG", "alpha of 16 bits", by_specification, _DEEP, blended, _no_loss, turns=True),
    Sample("PNG", "grey with alpha of 16 bits", by_specification, _DEEP[..., :2], blended, _no_loss),
    Sample("PNG", "animation", partial(_pillow["PNG"], mode="frames"), _STACK, several=True),
    Sample("JPEG", "grey", partial(_pillow["JPEG"], quality=95), _SMOOTH[..., 0], atol=0.03, turns=True,
           lies=(jpeg_of(65_535, 65_535),)),
    Sample("JPEG", "colour", partial(_pillow["JPEG"], quality=95, subsampling=0), _SMOOTH, atol=0.03, turns=True),
    Sample("JPEG", "progressive", partial(_pillow["JPEG"], quality=95, subsampling=0, progressive=True), _SMOOTH,
           atol=0.03),
    Sample("WEBP", "lossless", _lossless, _COLOUR, turns=True, lies=_large_webp),
    Sample("WEBP", "lossy", partial(_pillow["WEBP"], quality=95), _SMOOTH, atol=0.05),
    Sample("WEBP", "alpha", partial(_lossless, exact=True), _ALPHA, blended, _no_loss),
    Sample("WEBP", "animation", partial(_lossless, mode="frames"), _STACK, several=True),
    Sample("BMP", "grey", _pillow["BMP"], _GREY, lies=(bmp_of(60_000, 60_000),)),
    Sample("BMP", "colour", _pillow["BMP"], _COLOUR),
    Sample("GIF", "still", _pillow["GIF"], _GREY, lies=_gif_lies),
    Sample("GIF", "animation", partial(_pillow["GIF"], mode="frames"), _STACK // 2, several=True),
    Sample("PPM", "grey", partial(portable, white=255), _GREY, lies=_large_ppm),
    Sample("PPM", "colour", partial(portable, white=255), _COLOUR),
    Sample("PPM", "text", partial(portable, white=255, plain=True), _COLOUR, lies=_large_ppm),
    Sample("PPM", "grey of 16 bits", partial(portable, white=65_535), _DEEP[..., 0]),
    Sample("PPM", "grey of 12 bits", partial(portable, white=4095), _DEEP[..., 0] // 16, _of_12_bits, 1 / 65_535),
    Sample("PPM", "colour of 16 bits", partial(portable, white=65_535), _DEEP[..., :3], atol=1 / 255),
    Sample("TIFF", "grey", _pillow["TIFF"], _GREY, turns=True, lies=(_large_pages,)),
    Sample("TIFF", "colour", _pillow["TIFF"], _COLOUR, turns=True, lies=(_large_pages,)),
    *(
        Sample("TIFF", name, partial(_pillow["TIFF"], compression=name), _COLOUR, lies=(_large_pages,))
        for name in ("tiff_lzw", "tiff_adobe_deflate", "packbits")
    ),
    Sample("TIFF", "jpeg", partial(_pillow["TIFF"], compression="jpeg", quality=95), _SMOOTH, atol=0.05),
    Sample("TIFF", "one bit", partial(_pillow["TIFF"], compression="group4"), _BITS),
    Sample("TIFF", "four inks", partial(_pillow["TIFF"], mode="CMYK"), _COLOUR, atol=2 / 255),
    Sample("TIFF", "white is zero", partial(by_tifffile, photometric="miniswhite"), _GREY, lambda x: unit(255 - x)),
    Sample("TIFF", "grey of 16 bits", _pillow["TIFF"], _DEEP[..., 0]),
    Sample("TIFF", "floats", _pillow["TIFF"], _FLOATS),
    Sample("TIFF", "signed integers", _pillow["TIFF"], _FLOATS.astype(np.int32)),
    Sample("TIFF", "pages", partial(_pillow["TIFF"], mode="frames"), _STACK, several=True, lies=(_large_pages,)),
    Sample("TIFF", "grey with alpha of 16 bits", partial(by_tifffile, extrasamples=["unassalpha"]), _DEEP[..., :2],
           blended, _no_loss, turns=True),
    Sample("TIFF", "alpha of 16 bits", partial(by_tifffile, extrasamples=["unassalpha"], **_rgb), _DEEP, blended,
           _no_loss, turns=True),
    *(
        Sample("TIFF", f"colour of {kind.__name__} {planes}", partial(by_tifffile, planarconfig=planes, **_rgb),
               (_HALVES if planes == "contig" else np.moveaxis(_HALVES, -1, 0)).astype(kind),
               unit if planes == "contig" else _from_planes, turns=planes == "contig", lies=(_large_pages,))
        for kind in (np.uint16, np.float16, np.float32, np.float64)
        for planes in ("contig", "separate")
    ),
    Sample("NPY", "stack", by_numpy, _STACK, several=True, lies=(_short_npy,)),
    *(
        Sample("NPY", f"{kind} {order}", partial(by_numpy, order=order), _STACK.astype(kind), several=True)
        for kind in ("bool", "int16", "uint16", ">u2", "float16", ">f4", "float64")
        for order in "CF"
    ),
    Sample("NPY", "colour", by_numpy, _COLOUR[None], several=True),
    Sample("NPZ", "stored", partial(by_numpy, save=np.savez), _STACK, several=True, lies=(_short_npy, _endless_header)),
    Sample("NPZ", "packed", partial(by_numpy, save=np.savez_compressed), _STACK, several=True),
    *(
        Sample("MRC", kind, mrc, (_STACK // 2).astype(kind), several=True, extra="em",
               lies=_mrc_lies)
        for kind in ("int8", "int16", "uint16", "float16", "float32")
    ),
    Sample("HDF5", "plain", hdf5, _STACK, several=True, extra="formats", lies=(_sparse_dataset,)),
    Sample("HDF5", "latest", partial(hdf5, libver="latest"), _STACK, several=True, extra="formats"),
    Sample("HDF5", "packed", partial(hdf5, chunks=(2, 41, 37), compression="gzip", shuffle=True), _STACK, several=True,
           extra="formats"),
    *(
        Sample("Zarr", f"version {version}", partial(zarr, version=version), _STACK, several=True, extra="formats",
               lies=(_many_images,))
        for version in (2, 3)
    ),
    # The cut of a tenth must go beyond the zeros that fill the last block of 2,880 bytes.
    Sample("FITS", "image", fits, _FLOATS[:38], stretched, 1e-5, extra="fits"),
    Sample("FITS", "stack", fits, noise(_RNG, 5, 41, 41), stretched, 1e-5, several=True, extra="fits",
           lies=(replaced(b"NAXIS3  =                    5", b"NAXIS3  =            500000000"),)),
    Sample("FITS", "packed", partial(fits, packed=True), _STACK[0].astype(np.int32), stretched, 1e-5, extra="fits"),
    Sample("DICOM", "grey", dicom, _DEEP[..., 0], atol=_no_loss, extra="dicom", lies=(_many_rows,)),
    Sample("DICOM", "colour", dicom, _COLOUR, atol=_no_loss, extra="dicom"),
    Sample("DICOM", "frames", dicom, _STACK, atol=_no_loss, several=True, extra="dicom"),
    Sample("HEIC", "colour", heic, _SMOOTH, atol=0.05, extra="heic", lies=(_large_heic,)),
]  # fmt: skip
"""Kinds of files; of each format, one at least lies."""

EVERY = [pytest.param(sample, id=str(sample), marks=[pytest.mark.extra(sample.extra)] if sample.extra else [])
         for sample in SAMPLES]  # fmt: skip
