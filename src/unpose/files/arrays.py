"""Whole arrays of a data set's files, as stored: NumPy and HDF5 members, IDX, tables of numbers, fixed-size records.

Nothing is unpickled or unpacked to disk. What a header declares is checked against the limit and against the file
before anything is allocated. Whatever is wrong comes out as :class:`~unpose.files.frames.Unreadable`.
"""

import gzip
import tarfile
import zipfile
from math import prod
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from unpose.files.formats import open_window
from unpose.files.frames import Unreadable, unreadable

LARGEST = 16 * 2**30
"""Bytes of one array; the largest public set read here has 7 GiB."""

_IDX_TYPES = {8: "u1", 9: "i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
_LONGEST_LINE = 2**20


def first_of(folders: list[Path], names: tuple[str, ...]) -> Path | None:
    """The first file there is: folder by folder, in each name by name."""
    return next((found for folder in folders for name in names if (found := folder / name).is_file()), None)


def is_folder(path: Path) -> bool:
    """Whether a path is a folder that is there."""
    return path.is_dir()


def member_names(path: Path) -> list[str]:
    """Names of the arrays of an ``.npz`` file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
    except Exception as error:
        raise _named(path, error) from error


def read_member(path: Path, key: str) -> NDArray:
    """One named array of an ``.npz`` or HDF5 file, whole and as stored."""
    try:
        window = open_window(path, key)
        if window is None:
            raise Unreadable("is neither a NumPy archive nor HDF5")
        with window as opened:
            _check_size(opened.shape, opened.dtype.itemsize)
            return np.asarray(opened.rows(0, opened.shape[0]))
    except Exception as error:  # decoders raise whatever they like
        raise _named(path, error) from error


def read_idx(path: Path) -> NDArray:
    """An IDX file, plain or gzipped: two zeros, a type, the number of axes, their lengths, then the numbers."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        with gzip.open(path, "rb") if packed else path.open("rb") as stream:
            return _idx(stream)
    except Exception as error:
        raise _named(path, error) from error


def _idx(stream: "IO[bytes] | gzip.GzipFile") -> NDArray:
    start = stream.read(4)
    if len(start) < 4 or start[:2] != b"\0\0" or start[2] not in _IDX_TYPES or not 1 <= start[3] <= 4:
        raise Unreadable("is not an IDX file")
    lengths = stream.read(4 * start[3])
    if len(lengths) < 4 * start[3]:
        raise Unreadable("is cut short")
    shape = tuple(int.from_bytes(lengths[at : at + 4], "big") for at in range(0, len(lengths), 4))
    dtype = np.dtype(_IDX_TYPES[start[2]])
    _check_size(shape, dtype.itemsize)
    content = stream.read(prod(shape) * dtype.itemsize + 1)
    if len(content) != prod(shape) * dtype.itemsize:
        raise Unreadable(f"declares {prod(shape) * dtype.itemsize:,} bytes of numbers and has fewer or more")
    return np.frombuffer(content, dtype).reshape(shape)


def read_table(path: Path, columns: int) -> NDArray:
    """A text file of numbers, one row on a line with blanks between: (rows, columns) float32."""
    try:
        with path.open(encoding="ascii") as stream:
            if len(stream.readline(_LONGEST_LINE).split()) != columns:
                raise Unreadable(f"is not a table of {columns} columns")
            stream.seek(0)
            return np.loadtxt(stream, dtype=np.float32, ndmin=2)
    except Exception as error:
        raise _named(path, error) from error


def read_records(path: Path, size: int, member: str | None = None) -> NDArray:
    """A file of records of ``size`` bytes each, or a member of a tar archive by its path there: (records, size)."""
    try:
        if member is None:
            return _records(path.read_bytes(), size)
        with tarfile.open(path) as archive:
            stream = archive.extractfile(member)
            if stream is None:
                raise Unreadable(f"holds no file {member!r}")
            return _records(stream.read(LARGEST), size)
    except Exception as error:
        raise _named(path, error) from error


def _records(content: bytes, size: int) -> NDArray:
    if not content or len(content) % size:
        raise Unreadable(f"has {len(content):,} bytes, which are no whole records of {size:,}")
    return np.frombuffer(content, np.uint8).reshape(-1, size)


def _check_size(shape: tuple[int, ...], itemsize: int) -> None:
    if not shape or prod(shape) * itemsize > LARGEST:
        raise Unreadable(f"declares an array of shape {shape}, which is none or more than {LARGEST >> 30} GiB")


def _named(path: Path, error: Exception) -> Unreadable:
    return Unreadable(f"{path} {unreadable(error)}")
