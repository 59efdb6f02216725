"""Arrays of images on disk: ``.npy``, ``.npz``, MRC stacks and HDF5 (Zarr beside it), all through one small window.

Shapes: ``(h, w)`` is one image, ``(h, w, 3)`` and ``(h, w, 4)`` are one in colour, ``(n, h, w)`` are n images, and so
are ``(n, h, w, c)`` and ``(n, c, h, w)`` with c = 1 (grey), 3 (colour) or 4 (colour with transparency). Where a file
holds several arrays, the one named like images is read, or the only one that could be images; else the caller names it.

Headers are read first and believed by nobody: declared sizes are compared with the file and with the limits before
anything is allocated. No object is unpickled, nothing leads out of the file.
"""

import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from types import ModuleType
from typing import IO

import numpy as np
from numpy.typing import NDArray

from unpose.files.frames import (
    FRAME_LIMIT,
    Frame,
    Header,
    Unreadable,
    check_size,
    checked_frame,
    natural_units,
    over_ground,
)

_BLOCK = 16 * 2**20
"""Bytes read at a time, unless the file is cut into larger pieces."""

_MOST_CHUNKS = 1_000_000
"""A file of a few bytes can declare more chunks than anyone can wait for."""

_NAMES = ("images", "image", "x", "data", "stack", "particles", "frames")
"""Names by which an array of images goes, the likelier first."""


@dataclass(frozen=True)
class Window:
    """An array on disk that is read by rows of its first axis."""

    shape: tuple[int, ...]
    dtype: np.dtype
    rows: Callable[[int, int], NDArray]  # rows a to b, (b - a, ...) as stored
    piece: int = 1  # rows that are stored, and therefore read, together
    piece_bytes: int = 0  # what one stored piece takes when it is unpacked
    whole: bool = False  # the file can only be read all at once


@dataclass(frozen=True)
class _Layout:
    count: int
    height: int
    width: int
    channels: int
    channels_first: bool = False
    single: bool = False


def probe(window: Window) -> Header:
    """What an opened array holds."""
    layout = _layout(window.shape)
    if window.dtype.kind not in "biuf":
        raise Unreadable(f"holds values of type {window.dtype}, which are not pixels")
    check_size(layout.height, layout.width)
    if layout.count > FRAME_LIMIT:
        raise Unreadable(f"declares {layout.count:,} images, more than the limit of {FRAME_LIMIT:,}")
    step = layout.count if window.whole else _step(window, layout)
    # The block as stored, and each of its frames as floats while it is blended.
    pixels = layout.height * layout.width * layout.channels
    cost = step * pixels * window.dtype.itemsize + 12 * pixels + window.piece_bytes
    return Header([(layout.height, layout.width)] * layout.count, layout.channels > 1, cost)


def read(window: Window, wanted: set[int] | None) -> Iterator[Frame]:
    """The frames of an opened array, all or those wanted."""
    layout = _layout(window.shape)
    numbers = range(layout.count) if wanted is None else sorted(wanted & set(range(layout.count)))
    step = _step(window, layout)
    block, start, stop = np.empty(0), 0, 0
    for number in numbers:
        if not start <= number < stop:
            start = number - number % step
            stop = min(start + step, layout.count)
            block = window.rows(0, window.shape[0])[None] if layout.single else window.rows(start, stop)
        try:
            yield number, checked_frame(_frame(block[number - start], layout))
        except Unreadable as reason:
            yield number, reason


def _frame(stored: NDArray, layout: _Layout) -> NDArray:
    frame = natural_units(np.moveaxis(stored, 0, -1) if layout.channels_first else stored)
    if layout.channels == 4:
        return over_ground(frame)
    return frame[..., 0] if layout.channels == 1 and frame.ndim == 3 else frame


def _step(window: Window, layout: _Layout) -> int:
    if layout.single:
        return 1
    row = prod(window.shape[1:]) * window.dtype.itemsize
    pieces = max(1, _BLOCK // max(1, row * window.piece))
    return min(window.piece * pieces, max(1, layout.count))


def _layout(shape: tuple[int, ...]) -> _Layout:
    match shape:
        case (height, width):
            return _Layout(1, height, width, 1, single=True)
        case (height, width, 3 | 4 as channels):
            return _Layout(1, height, width, channels, single=True)
        case (count, height, width):
            return _Layout(count, height, width, 1)
        case (count, height, width, 1 | 3 | 4 as channels):
            return _Layout(count, height, width, channels)
        case (count, 1 | 3 | 4 as channels, height, width):
            return _Layout(count, height, width, channels, channels_first=True)
    raise Unreadable(f"holds an array of shape {shape}; images are (n, h, w) or (n, h, w, c) with c = 1, 3 or 4")


def choose(shapes: dict[str, tuple[int, ...]], key: str | None) -> str:
    """Which of the named arrays holds the images; an error that lists them where that cannot be told."""
    listed = ", ".join(f"{name!r} {shape}" for name, shape in sorted(shapes.items())[:12]) or "none"
    if key is not None:
        if key not in shapes:
            raise Unreadable(f"holds no array {key!r}; it holds: {listed}")
        return key
    stacks = [name for name, shape in shapes.items() if _is_images(shape) and len(shape) > 2]
    candidates = stacks or [name for name, shape in shapes.items() if _is_images(shape)]
    for wanted in _NAMES:
        named = [name for name in candidates if name.rpartition("/")[2].lower() == wanted]
        if len(named) == 1:
            return named[0]
    if len(candidates) == 1:
        return candidates[0]
    few = "no array" if not candidates else f"{len(candidates)} arrays"
    raise Unreadable(f"holds {few} that could be images; name one as FILE::NAME. It holds: {listed}")


def _is_images(shape: tuple[int, ...]) -> bool:
    try:
        layout = _layout(shape)
    except Unreadable:
        return False
    return layout.height > 1 and layout.width > 1


# NumPy ---------------------------------------------------------------------------------------------------------------


@contextmanager
def open_npy(path: Path, key: str | None) -> Iterator[Window]:
    """A ``.npy`` file, read in blocks and never whole."""
    if key is not None:
        raise Unreadable(f"is a single array; it holds no {key!r}")
    with path.open("rb") as handle:
        yield _npy_window(handle, path.stat().st_size)


@contextmanager
def open_npz(path: Path, key: str | None) -> Iterator[Window]:
    """One member of a ``.npz``, unpacked as it is read."""
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if member.filename.endswith(".npy")]
        if not members or len(members) < len(archive.infolist()):
            raise Unreadable("is an archive; archives are not unpacked")
        shapes = {}
        for member in members:
            with archive.open(member) as stream:
                shapes[member.filename.removesuffix(".npy")] = _npy_header(stream)[0]
        chosen = archive.getinfo(choose(shapes, key) + ".npy")
        with archive.open(chosen) as stream:
            yield _npy_window(stream, chosen.file_size)


def _npy_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(stream)
    if version == (2, 0):
        return np.lib.format.read_array_header_2_0(stream)
    raise Unreadable(f"is a NumPy file of version {version[0]}.{version[1]}, which does not hold images")


def _npy_window(stream: IO[bytes], size: int) -> Window:
    shape, fortran, dtype = _npy_header(stream)
    if dtype.hasobject:
        raise Unreadable("holds Python objects, which are not unpickled")
    if any(length < 0 for length in shape):
        raise Unreadable(f"declares the shape {shape}")
    start, declared = stream.tell(), prod(shape) * dtype.itemsize
    if start + declared > size:
        raise Unreadable(f"is cut short: declares {declared:,} bytes of pixels and has {size - start:,}")
    row = prod(shape[1:]) * dtype.itemsize

    def rows(first: int, last: int) -> NDArray:
        if fortran:
            stream.seek(start)
            return np.frombuffer(_exactly(stream, declared), dtype).reshape(shape[::-1]).T[first:last]
        stream.seek(start + first * row)
        return np.frombuffer(_exactly(stream, (last - first) * row), dtype).reshape(last - first, *shape[1:])

    if fortran and shape:  # the last axis varies slowest: no row can be had alone
        return Window(shape, dtype, rows, piece=max(1, shape[0]), whole=True)
    return Window(shape, dtype, rows)


def _exactly(stream: IO[bytes], count: int) -> bytes:
    data = stream.read(count)
    if len(data) < count:
        raise Unreadable("is cut short")
    return data


# MRC -----------------------------------------------------------------------------------------------------------------


@contextmanager
def open_mrc(path: Path, key: str | None) -> Iterator[Window]:
    """An MRC or MRCS file: every section is an image, whether the header calls it a stack or a volume."""
    if key is not None:
        raise Unreadable(f"is a single stack; it holds no {key!r}")
    mrcfile = extra("mrcfile", "em", "an MRC file")
    # Mapped and strict: a header that promises more than the file has is refused before anything is allocated.
    with mrcfile.mmap(path, mode="r", permissive=False) as file:
        data = file.data
        if data is None or data.ndim not in (2, 3):
            raise Unreadable("holds no image or stack of images")
        # Copied block by block: nothing may point into the file when it is closed.
        yield Window(data.shape, data.dtype, lambda first, last: np.array(data[first:last]))


# HDF5 ----------------------------------------------------------------------------------------------------------------


@contextmanager
def open_hdf5(path: Path, key: str | None) -> Iterator[Window]:
    """One dataset of an HDF5 file; links out of the file, virtual and external storage are not followed."""
    h5py = extra("h5py", "formats", "an HDF5 file")
    with h5py.File(path, "r") as file:
        found = {}

        def visit(name: str, item: object) -> None:  # visits what is in this file, never a link to another
            if isinstance(item, h5py.Dataset) and item.shape is not None and item.dtype.kind in "biuf":
                found[name] = item

        file.visititems(visit)
        dataset = found[choose({name: item.shape for name, item in found.items()}, key)]
        if dataset.is_virtual or dataset.external:
            raise Unreadable("keeps its pixels in other files, which are not followed")
        yield chunked(dataset.shape, dataset.dtype, dataset.chunks or (1,), lambda first, last: dataset[first:last])


# Chunks --------------------------------------------------------------------------------------------------------------


def chunked(
    shape: tuple[int, ...], dtype: np.dtype, chunks: tuple[int, ...], rows: Callable[[int, int], NDArray]
) -> Window:
    """The window of an array that is stored in chunks of a shape."""
    if len(chunks) == len(shape):
        count = prod(-(-length // max(1, chunk)) for length, chunk in zip(shape, chunks, strict=True))
        if count > _MOST_CHUNKS:
            raise Unreadable(f"is cut into {count:,} chunks, more than the limit of {_MOST_CHUNKS:,}")
    return Window(shape, dtype, rows, piece=max(1, int(chunks[0])), piece_bytes=prod(chunks) * dtype.itemsize)


def extra(module: str, extra: str, what: str) -> ModuleType:
    """A reader's library, or the line that says how to get it."""
    try:
        return import_module(module)
    except ImportError as error:
        raise Unreadable(f"is {what}; pip install unpose[{extra}] reads it") from error
