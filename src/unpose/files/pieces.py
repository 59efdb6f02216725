"""Images that stay on disk and are read in pieces: files of arrays, and arrays of other libraries.

:class:`ImagesInPieces` has the length, the shape and the indices of an array, and reads what is asked for. It reads by
calls to the file, not by a memory map, so that what was read does not stay in memory. One opened from a file is sent to
other processes as its path.
"""

import mmap
import os
import secrets
import shutil
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unpose.files.folder import Folder
from unpose.files.formats import open_array
from unpose.files.frames import UnreadableError, as_unreadable_error
from unpose.files.stacks import StoredArray

_GAP = 8
"""Rows that are read although nobody asked for them, if that saves a call to the file."""


class ImagesInPieces:
    """Images that are read when they are indexed, by slices or by arrays of indices, which are fastest if sorted.

    Parameters
    ----------
    read : callable
        ``read(start, stop)`` returns the images of a range as an array.
    shape : tuple of int
        (n, h, w) or (n, h, w, c).
    dtype : numpy.dtype
        Type of the pixels.
    chunk_length : int, default 1
        Images that are stored, and therefore read, together.
    rows : (m,) array of int, optional
        Which of the images these are; all by default.
    factors : (m,) array of float32, optional
        Multiply the images, which are then float32.
    origin : (callable, tuple), optional
        Function and arguments that give the same images, all of them and without factors, in another process.

    Examples
    --------
    >>> pixels = np.arange(2 * 3 * 5).reshape(2, 3, 5)
    >>> images = ImagesInPieces(lambda start, stop: pixels[start:stop], pixels.shape, pixels.dtype)
    >>> images[1:].shape, images[[1, 0, 1]].shape, images[-1].shape, len(images.take(np.array([1])))
    ((1, 3, 5), (3, 3, 5), (3, 5), 1)
    """

    def __init__(
        self,
        read: Callable[[int, int], NDArray],
        shape: tuple[int, ...],
        dtype: np.dtype,
        chunk_length: int = 1,
        rows: NDArray | None = None,
        factors: NDArray | None = None,
        origin: tuple[Callable[..., Any], tuple[Any, ...]] | None = None,
    ) -> None:
        self._read, self._chunk_length, self._rows, self._factors = read, chunk_length, rows, factors
        self._stored, self.origin = int(shape[0]), origin
        self.shape = (self._stored if rows is None else len(rows), *shape[1:])
        self.dtype = np.dtype(dtype) if factors is None else np.dtype(np.float32)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def path(self) -> Path | None:
        """The file that the images were opened from, if any."""
        return Path(self.origin[1][0]).resolve() if self.origin is not None else None

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[NDArray]:
        for piece in self.pieces():
            yield from piece

    def pieces(self, length: int = 1024) -> Iterator[NDArray]:
        """The images in pieces of ``length``."""
        for start in range(0, len(self), length):
            yield self[start : start + length]

    def take(self, rows: NDArray) -> "ImagesInPieces":
        """Some of the images, which are not read yet."""
        inner = rows if self._rows is None else self._rows[rows]
        factors = None if self._factors is None else self._factors[rows]
        return self._with(inner, factors)

    def scaled(self, factors: NDArray) -> "ImagesInPieces":
        """The images, each multiplied by a factor (n,) when it is read."""
        return self._with(self._rows, np.asarray(factors, np.float32))

    def cropped(self, margin: int) -> "ImagesInPieces":
        """The images without ``margin`` pixels at every side."""
        _, height, width, *channels = self.shape
        sides, read = (height - 2 * margin, width - 2 * margin), self._read

        def inside(start: int, stop: int) -> NDArray:
            return read(start, stop)[:, margin : height - margin, margin : width - margin]

        shape = (self._stored, *sides, *channels)
        origin = None if self.origin is None else (_open_cropped, (*self.origin[1], margin))
        return ImagesInPieces(inside, shape, self.dtype, self._chunk_length, self._rows, self._factors, origin)

    def _with(self, rows: NDArray | None, factors: NDArray | None) -> "ImagesInPieces":
        stored = (self._stored, *self.shape[1:])
        return ImagesInPieces(self._read, stored, self.dtype, self._chunk_length, rows, factors, self.origin)

    def __getitem__(self, key: Any) -> NDArray:
        if isinstance(key, tuple):
            return self[key[0]][(slice(None), *key[1:])] if not np.isscalar(key[0]) else self[key[0]][key[1:]]
        if isinstance(key, int | np.integer):
            return self[np.array([range(len(self))[key]])][0]  # negative and wrong indices as those of a list
        if isinstance(key, slice):
            key = np.arange(len(self))[key]
        wanted = np.asarray(key)
        wanted = np.flatnonzero(wanted) if wanted.dtype == bool else np.where(wanted < 0, wanted + len(self), wanted)
        if len(wanted) and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"indices must be between 0 and {len(self) - 1}, got {wanted.min()} to {wanted.max()}")
        images = self._gather((wanted if self._rows is None else self._rows[wanted]).astype(np.int64))
        if self._factors is None:
            return images
        factors = self._factors[wanted].reshape(-1, *(1,) * (images.ndim - 1))
        return images.astype(np.float32, copy=False) * factors

    def _gather(self, wanted: NDArray) -> NDArray:
        """Read stored rows (m,), each run of rows that lie close together at once."""
        rows, inverse = np.unique(wanted, return_inverse=True)
        found = np.empty((len(rows), *self.shape[1:]), self.dtype)
        breaks = np.flatnonzero(np.diff(rows) > max(_GAP, self._chunk_length)) + 1
        for run in np.split(np.arange(len(rows)), breaks) if len(rows) else []:
            start = int(rows[run[0]])
            block = self._read(start, int(rows[run[-1]]) + 1)
            found[run] = block[rows[run] - start]
        return found if np.array_equal(inverse, np.arange(len(wanted))) else found[inverse]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        return self[:].astype(dtype) if dtype is not None else self[:]

    def __reduce__(self) -> tuple[Any, ...]:
        if self.origin is None:
            raise TypeError(
                "images in pieces that were not opened from a file cannot be sent to another process; save them as "
                ".npy, Zarr or HDF5 and give the path"
            )
        return _again, (self.origin, self._rows, self._factors)


def _again(
    origin: tuple[Callable[..., Any], tuple[Any, ...]], rows: NDArray | None, factors: NDArray | None
) -> ImagesInPieces:
    images: ImagesInPieces = origin[0](*origin[1])
    return images._with(rows, factors)


def _open_cropped(path: str, key: str | None, *margins: int) -> ImagesInPieces:
    images = open_images(path, key)
    for margin in margins:
        images = images.cropped(margin)
    return images


def open_images(path: str | os.PathLike[str], key: str | None = None) -> ImagesInPieces:
    """Open the images of a file without reading them: ``.npy``, MRC, HDF5, Zarr.

    Parameters
    ----------
    path : str or path
        A file, or the folder of a Zarr array.
    key : str, optional
        The array to read from a file that holds several.

    Returns
    -------
    ImagesInPieces
        The images as stored: ``uint8`` and ``uint16`` are not scaled.

    Raises
    ------
    ValueError
        If the file does not hold an array of images (n, h, w) or (n, h, w, c).

    Examples
    --------
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(folder + "/stack.npy", np.zeros((7, 31, 17), np.uint8))
    ...     images = open_images(folder + "/stack.npy")
    ...     images.shape, images[2:5].dtype.name
    ((7, 31, 17), 'uint8')
    """
    return _open(path, key, None)


class _OpenFile:
    """An array file that is open as long as this object lives; threads read one after the other."""

    def __init__(self, path: Path, key: str | None, temporary: str | None) -> None:
        stack = ExitStack()
        if temporary is not None:
            stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        weakref.finalize(self, stack.close)
        opener = open_array(path, key)
        if opener is None:
            raise UnreadableError("is an image file, not an array of images")
        self.array: StoredArray = stack.enter_context(opener)
        self._lock = threading.Lock()

    def read(self, start: int, stop: int) -> NDArray:
        with self._lock:
            return self.array.read(start, stop)


def _open(path: str | os.PathLike[str], key: str | None, temporary: str | None) -> ImagesInPieces:
    """See :func:`open_images`; ``temporary`` is a folder that is removed when the file is closed."""
    place = Path(os.path.abspath(path))
    try:
        file = _OpenFile(place, key, temporary)
        array = file.array
        if len(array.shape) not in (3, 4) or array.dtype.kind not in "biuf":
            raise UnreadableError(
                f"holds an array of shape {array.shape} and type {array.dtype}; images are (n, h, w) or (n, h, w, c)"
            )
        if array.is_indivisible:
            raise UnreadableError("is stored in Fortran order, so that no image lies together; save it in C order")
    except Exception as error:
        raise ValueError(f"{path} {as_unreadable_error(error)}") from error
    origin = (open_images, (str(place), key))
    return ImagesInPieces(file.read, array.shape, array.dtype, array.chunk_length, origin=origin)


def images_in_pieces(images: Any) -> ImagesInPieces:
    """Any array of images that can be sliced, such as those of Dask, Zarr, h5py and memory maps, read in pieces.

    Parameters
    ----------
    images : array-like
        Has ``shape``, ``dtype`` and slices of its first axis.

    Returns
    -------
    ImagesInPieces
        Slices are converted to NumPy arrays when they are read.

    Examples
    --------
    >>> images_in_pieces(np.zeros((5, 8, 8)))[3:].shape
    (2, 8, 8)
    """
    if isinstance(images, ImagesInPieces):
        return images
    chunks, lock = getattr(images, "chunks", None), threading.Lock()
    length = chunks[0] if chunks else 1  # a number, or of Dask the lengths of all chunks
    length = max(length) if isinstance(length, tuple) else length

    # The pages of a memory map that were read count as memory of the process until they are given back. Those of a
    # private map (mode "c") may have been written to and are kept.
    mapped: Any = images if isinstance(images, np.memmap) and images.mode != "c" else None

    def read(start: int, stop: int) -> NDArray:
        with lock:
            block = np.asarray(images[start:stop])
            if mapped is not None and hasattr(mmap, "MADV_DONTNEED"):
                block = block.copy()
                mapped._mmap.madvise(mmap.MADV_DONTNEED)
            return block

    return ImagesInPieces(read, tuple(int(side) for side in images.shape), np.dtype(images.dtype), int(length))


def store_images(pieces: Iterable[NDArray], folder: str | os.PathLike[str] | None = None) -> ImagesInPieces:
    """Write pieces of images to a ``.npy`` file, one after the other, and open it.

    Parameters
    ----------
    pieces : iterable of (m, h, w) or (m, h, w, c) arrays
        At least one; all of one shape and type.
    folder : str or path, optional
        Where the file is written; it stays there. By default it is a temporary file, which is removed together with the
        result.

    Returns
    -------
    ImagesInPieces

    Examples
    --------
    >>> store_images(np.full((2, 8, 8), k) for k in range(3))[5, 0, 0]
    np.int64(2)
    """
    if folder is not None:
        return _open(_write_pieces(pieces, folder), None, None)
    temporary = tempfile.mkdtemp(prefix="unpose-")
    try:
        return _open(_write_pieces(pieces, temporary), None, temporary)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_pieces(pieces: Iterable[NDArray], folder: str | os.PathLike[str]) -> str:
    """Write pieces to a new ``.npy`` file in a folder, and return its path; if they raise, no file is left."""
    name = f"images-{secrets.token_hex(8)}.npy"
    with Folder(folder, create=True, durable=False) as place, place.write(name) as stream:
        _write_stream(stream, pieces)
    return os.path.join(folder, name)


def _write_stream(stream: Any, pieces: Iterable[NDArray]) -> None:
    count = 0
    for piece in pieces:
        if count == 0:
            _write_header(stream, piece, 0)
        stream.write(np.ascontiguousarray(piece).data)
        count += len(piece)
    if count == 0:
        raise ValueError("there are no images to store")
    stream.seek(0)
    _write_header(stream, piece, count)  # NumPy leaves room for a larger number in the header


def _write_header(stream: Any, piece: NDArray, count: int) -> None:
    kind = np.lib.format.dtype_to_descr(piece.dtype)
    header = {"descr": kind, "fortran_order": False, "shape": (count, *piece.shape[1:])}
    np.lib.format.write_array_header_1_0(stream, header)
