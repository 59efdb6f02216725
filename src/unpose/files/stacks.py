"""Reads arrays of images from ``.npy``, ``.npz``, MRC and HDF5 files, all as a :class:`StoredArray`.

Shapes: ``(h, w)`` is one image, ``(h, w, 3)`` and ``(h, w, 4)`` are one colour image, ``(n, h, w)`` are n images, and
so are ``(n, h, w, c)`` and ``(n, c, h, w)`` with c = 1 (grey), 3 (colour) or 4 (colour with alpha). If a file holds
several arrays, the one with a usual name for images is read, or the only one that could be images; otherwise the user
names it.

Headers are not trusted: declared sizes are compared with the file and the limits before anything is allocated. No
object is unpickled, and no link out of the file is followed.
"""

import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from unpose.files.frames import (
    Frame,
    Header,
    UnreadableError,
    blend_over_background,
    check_count,
    check_frame,
    check_size,
    import_optional,
    to_float32,
)

_BLOCK_BYTES = 16 * 2**20
"""Bytes read at a time, unless the file is stored in larger chunks."""

_MAX_CHUNKS = 1_000_000
"""A file of a few bytes can declare more chunks than can be read in reasonable time."""

_MAX_NPY_HEADER = 2**16
"""Bytes in which the header of a NumPy file must end. It declares its own length, of up to 4 GiB in an archive."""

_HDF5_BYTES_OF_CHUNK = 10_000
"""Memory in which HDF5 describes each of the chunks that are read together."""

_USUAL_NAMES = ("images", "image", "x", "data", "stack", "particles", "frames")
"""Usual names of an array of images, the most likely first."""


@dataclass(frozen=True)
class StoredArray:
    """An array on disk that is read in ranges of its first axis."""

    shape: tuple[int, ...]
    dtype: np.dtype
    read: Callable[[int, int], NDArray]  # (start, stop) -> (stop - start, ...) as stored
    chunk_length: int = 1  # indices of the first axis that are stored, and therefore read, together
    chunk_bytes: int = 0  # size of one decompressed chunk
    is_indivisible: bool = False  # the file can only be read all at once
    note: str = ""  # what reading does to the values


@dataclass(frozen=True)
class _Layout:
    count: int
    height: int
    width: int
    channels: int
    channels_first: bool = False
    is_single: bool = False


def header(array: StoredArray) -> Header:
    """The header of an opened array."""
    layout = _layout(array.shape)
    if array.dtype.kind not in "biuf":
        raise UnreadableError(f"holds values of type {array.dtype}, which are not pixels")
    check_size(layout.height, layout.width)
    check_count(layout.count)
    block_length = layout.count if array.is_indivisible else _block_length(array, layout)
    # One block as stored, and one frame as floats while it is blended.
    pixels = layout.height * layout.width * layout.channels
    cost = block_length * pixels * array.dtype.itemsize + 12 * pixels + array.chunk_bytes
    return Header([(layout.height, layout.width)] * layout.count, layout.channels > 1, cost, array.note)


def read_frames(array: StoredArray, wanted: set[int] | None) -> Iterator[Frame]:
    """Read all frames of an opened array, or those wanted."""
    layout = _layout(array.shape)
    indices = range(layout.count) if wanted is None else sorted(wanted & set(range(layout.count)))
    block_length = _block_length(array, layout)
    block, start, stop = np.empty(0), 0, 0
    for index in indices:
        if not start <= index < stop:
            start = index - index % block_length
            stop = min(start + block_length, layout.count)
            block = np.empty(0)  # so that two blocks are never held
            block = array.read(0, array.shape[0])[None] if layout.is_single else array.read(start, stop)
        try:
            yield index, check_frame(_frame(block[index - start], layout))
        except UnreadableError as error:
            yield index, error


def _frame(stored: NDArray, layout: _Layout) -> NDArray:
    frame = to_float32(np.moveaxis(stored, 0, -1) if layout.channels_first else stored)
    if layout.channels == 4:
        return blend_over_background(frame)
    return frame[..., 0] if layout.channels == 1 and frame.ndim == 3 else frame


def _block_length(array: StoredArray, layout: _Layout) -> int:
    """How many images to read at a time: whole chunks, about ``_BLOCK_BYTES``."""
    if layout.is_single:
        return 1
    image_bytes = prod(array.shape[1:]) * array.dtype.itemsize
    n_chunks = max(1, _BLOCK_BYTES // max(1, image_bytes * array.chunk_length))
    return min(array.chunk_length * n_chunks, max(1, layout.count))


def _layout(shape: tuple[int, ...]) -> _Layout:
    match shape:
        case (height, width):
            return _Layout(1, height, width, 1, is_single=True)
        case (height, width, 3 | 4 as channels):
            return _Layout(1, height, width, channels, is_single=True)
        case (count, height, width):
            return _Layout(count, height, width, 1)
        case (count, height, width, 1 | 3 | 4 as channels):
            return _Layout(count, height, width, channels)
        case (count, 1 | 3 | 4 as channels, height, width):
            return _Layout(count, height, width, channels, channels_first=True)
    raise UnreadableError(f"holds an array of shape {shape}; images are (n, h, w) or (n, h, w, c) with c = 1, 3 or 4")


def choose_array(shapes: dict[str, tuple[int, ...]], key: str | None) -> str:
    """The name of the array that holds the images; an error that lists all arrays if that is not clear."""
    listed = ", ".join(f"{name!r} {shape}" for name, shape in sorted(shapes.items())[:12]) or "none"
    if key is not None:
        if key not in shapes:
            raise UnreadableError(f"holds no array {key!r}; it holds: {listed}")
        return key
    stacks = [name for name, shape in shapes.items() if _is_images(shape) and len(shape) > 2]
    candidates = stacks or [name for name, shape in shapes.items() if _is_images(shape)]
    for wanted in _USUAL_NAMES:
        named = [name for name in candidates if name.rpartition("/")[2].lower() == wanted]
        if len(named) == 1:
            return named[0]
    if len(candidates) == 1:
        return candidates[0]
    few = "no array" if not candidates else f"{len(candidates)} arrays"
    raise UnreadableError(f"holds {few} that could be images; name one as FILE::NAME. It holds: {listed}")


def _is_images(shape: tuple[int, ...]) -> bool:
    try:
        layout = _layout(shape)
    except UnreadableError:
        return False
    return layout.height > 1 and layout.width > 1


# NumPy ---------------------------------------------------------------------------------------------------------------


@contextmanager
def open_npy(path: Path, key: str | None) -> Iterator[StoredArray]:
    """Open a ``.npy`` file."""
    if key is not None:
        raise UnreadableError(f"is a single array; it holds no {key!r}")
    with path.open("rb") as handle:
        yield _npy_array(handle, path.stat().st_size)


@contextmanager
def open_npz(path: Path, key: str | None) -> Iterator[StoredArray]:
    """Open one array of an ``.npz`` file, which is decompressed as it is read."""
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        if not members or len(members) < len(archive.infolist()):
            raise UnreadableError("is an archive; archives are not unpacked")
        shapes = {}
        for member in members:
            with archive.open(member) as stream:
                shapes[member.filename.removesuffix(".npy")] = _npy_header(stream)[0]
        chosen = archive.getinfo(choose_array(shapes, key) + ".npy")
        with archive.open(chosen) as stream:
            yield _npy_array(stream, chosen.file_size)


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, whether it is in Fortran order, type, and the offset of the pixels."""
    start = BytesIO(stream.read(_MAX_NPY_HEADER))
    version = np.lib.format.read_magic(start)
    if version == (1, 0):
        return *np.lib.format.read_array_header_1_0(start), start.tell()
    if version == (2, 0):
        return *np.lib.format.read_array_header_2_0(start), start.tell()
    raise UnreadableError(f"is a NumPy file of version {version[0]}.{version[1]}, which does not hold images")


def _npy_array(stream: IO[bytes], size: int) -> StoredArray:
    shape, fortran, dtype, offset = _npy_header(stream)
    if dtype.hasobject:
        raise UnreadableError("holds Python objects, which are not unpickled")
    if any(length < 0 for length in shape):
        raise UnreadableError(f"declares the shape {shape}")
    declared = prod(shape) * dtype.itemsize
    if offset + declared > size:
        raise UnreadableError(f"is cut short: declares {declared:,} bytes of pixels and has {size - offset:,}")

    def read_all(start: int, stop: int) -> NDArray:
        stream.seek(offset)
        return np.frombuffer(_read_exactly(stream, declared), dtype).reshape(shape[::-1]).T[start:stop]

    if fortran and shape:  # the first axis varies fastest: no image is stored contiguously
        return StoredArray(shape, dtype, read_all, chunk_length=max(1, shape[0]), is_indivisible=True)
    return _rows_of(stream, offset, shape, dtype)


def _rows_of(stream: IO[bytes], offset: int, shape: tuple[int, ...], dtype: np.dtype) -> StoredArray:
    """An array whose bytes lie in C order from an offset on."""
    item_bytes = prod(shape[1:]) * dtype.itemsize

    def read(start: int, stop: int) -> NDArray:
        stream.seek(offset + start * item_bytes)
        data = _read_exactly(stream, (stop - start) * item_bytes)
        return np.frombuffer(data, dtype).reshape(stop - start, *shape[1:])

    return StoredArray(shape, dtype, read)


def _read_exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise UnreadableError("is cut short")
    return data


# MRC -----------------------------------------------------------------------------------------------------------------


@contextmanager
def open_mrc(path: Path, key: str | None) -> Iterator[StoredArray]:
    """Open an MRC or MRCS file: every section is an image, whether the header declares a stack or a volume."""
    if key is not None:
        raise UnreadableError(f"is a single stack; it holds no {key!r}")
    mrcfile = import_optional("mrcfile", "em", "an MRC file")
    _check_mrc_extended_header(path)
    # Memory-mapped and strict: a header that declares more than the file has is rejected before anything is allocated.
    with mrcfile.mmap(path, mode="r", permissive=False) as file:
        data = file.data
        if data is None or data.ndim not in (2, 3):
            raise UnreadableError("holds no image or stack of images")
        # Pages of a memory map would count as memory of the process, up to the size of the file.
        offset = 1024 + int(file.header.nsymbt)
        shape, dtype = data.shape, data.dtype
    with path.open("rb") as handle:
        yield _rows_of(handle, offset, shape, dtype)


def _check_mrc_extended_header(path: Path) -> None:
    """Reject an extended header that is longer than the file: mrcfile allocates the declared length before it reads."""
    with path.open("rb") as handle:
        start = handle.read(216)
    order = ">" if start[212:213] == b"\x11" else "<"  # the machine stamp; mrcfile rejects unknown ones
    (length,) = struct.unpack_from(order + "i", start, 92)
    if not 0 <= length <= path.stat().st_size:
        raise UnreadableError(f"declares an extended header of {length:,} bytes, which the file does not have")


# HDF5 ----------------------------------------------------------------------------------------------------------------


@contextmanager
def open_hdf5(path: Path, key: str | None) -> Iterator[StoredArray]:
    """Open one dataset of an HDF5 file; external links, virtual datasets and external storage are not followed."""
    h5py = import_optional("h5py", "formats", "an HDF5 file")
    with h5py.File(path, "r") as file:
        found = {}

        def visit(name: str, item: object) -> None:  # visititems never follows links to other files
            if isinstance(item, h5py.Dataset) and item.shape is not None and item.dtype.kind in "biuf":
                found[name] = item

        file.visititems(visit)
        dataset = found[choose_array({name: item.shape for name, item in found.items()}, key)]
        if dataset.is_virtual or dataset.external:
            raise UnreadableError("keeps its pixels in other files, which are not followed")
        stored = chunked_array(
            dataset.shape, dataset.dtype, dataset.chunks or (1,), lambda start, stop: dataset[start:stop]
        )
        if dataset.chunks and stored.chunk_bytes:
            along, *across = (-(-n // chunk) for n, chunk in zip(dataset.shape, dataset.chunks, strict=True))
            of_image = prod(across)
            at_once = min(along * of_image, max(of_image, _BLOCK_BYTES // stored.chunk_bytes))
            stored = replace(stored, chunk_bytes=stored.chunk_bytes + _HDF5_BYTES_OF_CHUNK * at_once)
        yield stored


# Chunks --------------------------------------------------------------------------------------------------------------


def chunked_array(
    shape: tuple[int, ...], dtype: np.dtype, chunks: tuple[int, ...], read: Callable[[int, int], NDArray]
) -> StoredArray:
    """An array that is stored in chunks of a given shape."""
    if len(chunks) == len(shape):
        count = prod(-(-length // max(1, chunk)) for length, chunk in zip(shape, chunks, strict=True))
        if count > _MAX_CHUNKS:
            raise UnreadableError(f"is stored in {count:,} chunks, more than the limit of {_MAX_CHUNKS:,}")
    return StoredArray(
        shape, dtype, read, chunk_length=max(1, int(chunks[0])), chunk_bytes=prod(chunks) * dtype.itemsize
    )
