"""The door to a folder of results: names are looked up in the opened folder, and no link inside it is followed.

A folder of results may come from a stranger, so what it holds is data and never says where to read or to write. Each
name is walked from the handle of the opened folder, one component after the other, and each component must be what it
is taken for: a folder, or a plain file. On systems without such handles (Windows) the same is checked by path before
each operation. Files that the user names are written with :mod:`unpose.files.outputs`.
"""

import errno
import fnmatch
import io
import json
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

_HAS_HANDLES = hasattr(os, "O_DIRECTORY") and {os.open, os.stat, os.mkdir, os.unlink, os.rmdir, os.rename} <= (
    os.supports_dir_fd
)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}
_JUNCTION = 0xA0000003
"""Tag of a folder of Windows that leads elsewhere, although it is no symbolic link."""
_LOCK_BYTE = 2**20
"""Windows forbids to read a locked byte, so a byte behind the number of the process is locked."""
_held: ContextVar[frozenset[tuple[int, int, str]]] = ContextVar("locks that this thread holds", default=frozenset())


class FolderError(ValueError):
    """An entry of a folder of results is a link, not a plain file, or too large, or a name leads out of the folder."""


class BusyError(FolderError):
    """Another process holds the lock of a folder; the message names it."""


class Folder:
    """An opened folder whose files are read and written by names relative to it.

    A name such as ``means/cluster-001.png`` has no ``..``, and neither the file nor a folder on the way may be a
    symbolic link: reading and writing raise a :class:`FolderError` that names it. Files are written completely or not
    at all. The path of the folder itself comes from the user and may be a link.

    Parameters
    ----------
    path : str or path
        The folder.
    create : bool, default False
        Create the folder if it does not exist.
    durable : bool, default True
        Wait until each file is on the disk, so that a power cut leaves the old file or the new one. Thousands of small
        files that can be written again need not wait.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, Folder(place) as folder:
    ...     folder.write_text("notes.txt", "turned by 90°")
    ...     folder.folder("means", create=True).close()
    ...     os.symlink("/etc/passwd", f"{place}/means/a.png")
    ...     try:
    ...         folder.read("means/a.png", 2**20)
    ...     except FolderError as error:
    ...         print(str(error).removeprefix(place))
    ...     folder.read_text("notes.txt", 2**20), folder.names()
    /means/a.png is a symbolic link, which is not followed; put the file itself there
    ('turned by 90°', ['means', 'notes.txt'])
    """

    def __init__(self, path: str | os.PathLike[str], *, create: bool = False, durable: bool = True) -> None:
        self.path, self._durable = Path(path), durable
        if create:
            self.path.mkdir(parents=True, exist_ok=True)
        self._handle = os.open(self.path, _FOLDER) if _HAS_HANDLES else None
        if not self.path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.path))

    def close(self) -> None:
        """Close the folder."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def has(self, name: str) -> bool:
        """Whether there is an entry of this name, of whatever kind; a link is one."""
        try:
            with self._parent(name) as (place, last):
                return place._status(last) is not None
        except FileNotFoundError:
            return False

    def names(self, pattern: str = "*") -> list[str]:
        """The sorted names of the entries of this folder that fit a pattern."""
        found = os.listdir(self.path if self._handle is None else self._handle)
        return sorted(name for name in found if fnmatch.fnmatchcase(name, pattern))

    def check_no_links(self) -> None:
        """Raise a :class:`FolderError` if there is a link in this folder or below, before files are written by path."""
        for name in self.names():
            if self._is_link(name):
                self._check(name, stat.S_ISREG, "plain file")
            status = self._status(name)
            if status is not None and stat.S_ISDIR(status.st_mode):
                with self._inner(name, create=False) as inner:
                    inner.check_no_links()

    def folder_names(self, name: str, pattern: str = "*") -> list[str]:
        """The sorted names in a folder inside this one; none if there is no such folder."""
        if not self.has(name):
            return []
        with self.folder(name) as inner:
            return inner.names(pattern)

    def state(self) -> dict[str, tuple[int, ...]]:
        """What tells one state of this folder from another: the identity, the time and the size of each entry."""
        found = {name: self._status(name) for name in self.names()}
        return {name: (status.st_ino, status.st_mtime_ns, status.st_size) for name, status in found.items() if status}

    def folder(self, name: str, *, create: bool = False) -> "Folder":
        """Open a folder inside this one, which is closed by itself; ``create`` makes it if it does not exist."""
        with self._parent(name, create=create) as (place, last):
            return place._inner(last, create)

    @contextmanager
    def open(self, name: str) -> Iterator[io.BufferedReader]:
        """Open a plain file for reading."""
        with self._parent(name) as (place, last):
            place._check(last, stat.S_ISREG, "plain file")
            handle = place._open(last, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would wait for a writer
        with os.fdopen(handle, "rb") as stream:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise FolderError(f"{self.path / name} must be a plain file")
            yield stream

    def read(self, name: str, most: int) -> bytes:
        """The content of a plain file of at most so many bytes."""
        with self.open(name) as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > most:
                raise FolderError(f"{self.path / name} has {size:,} bytes, more than the {most:,} that it may have")
            return stream.read(size)

    def read_text(self, name: str, most: int) -> str:
        """The content of a text file in UTF-8 of at most so many bytes."""
        return self.read(name, most).decode()

    def read_json(self, name: str, most: int) -> Any:
        """The value in a JSON file of at most so many bytes."""
        return json.loads(self.read(name, most))

    @contextmanager
    def write(self, name: str) -> Iterator[BinaryIO]:
        """Yield a stream, and give the file its name when the block ends without an error.

        A file that is replaced keeps its mode; a new file gets the mode that ``open`` would give it.
        """
        with self._parent(name) as (place, last):
            mode = place._replaceable(last)
            # The longest names leave no room for an ending.
            temporary = f".{last if len(os.fsencode(last)) < 224 else ''}.{secrets.token_hex(8)}.tmp"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            # The replacement of a private file is never readable by others.
            handle = place._open(temporary, flags, 0o666 if mode is None else 0o600, shown=last)
            try:
                raw = _Output(handle, place.path / last)
                stream = io.BufferedWriter(raw, 2**20)
                try:
                    yield stream
                    stream.flush()
                    if mode is not None and hasattr(os, "fchmod"):
                        os.fchmod(handle, mode & 0o777)
                    if self._durable:
                        raw.synchronize()
                finally:
                    with suppress(OSError):  # what could not be written was reported already
                        stream.close()
                place._replace(temporary, place, last)
            except BaseException:
                with suppress(OSError):
                    place._unlink(temporary)
                raise

    def write_chunks(self, name: str, chunks: Iterable[bytes]) -> None:
        """Write bytes chunk by chunk; if the iterable raises, no file is left."""
        with self.write(name) as stream:
            for chunk in chunks:
                stream.write(chunk)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file in UTF-8."""
        self.write_chunks(name, [text.encode()])

    def write_json(self, name: str, value: Any, indent: int | None = None) -> None:
        """Write a value as JSON, which has no NaN."""
        self.write_text(name, json.dumps(value, indent=indent, allow_nan=False) + "\n")

    def write_image(self, name: str, picture: Image.Image | NDArray, *, software: str | None = None) -> None:
        """Write a PNG file of a Pillow image, or of floats in [0, 1] of shape (h, w) or (h, w, 3)."""
        self.write_chunks(name, [png(picture, software)])

    def append(self, name: str, text: str) -> None:
        """Append a text to a file, which is created if needed."""
        content = text.encode("utf-8", "backslashreplace")
        with self._parent(name) as (place, last):
            if place._replaceable(last) is not None and place._stat(last).st_nlink > 1:
                # The file has another name, perhaps outside of this folder; what is there stays as it is.
                place.write_chunks(last, [place.read(last, sys.maxsize), content])
                return
            handle = place._open(last, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            with io.BufferedWriter(_Output(handle, place.path / last)) as stream:
                stream.write(content)

    def remove(self, name: str) -> None:
        """Remove a file if there is one; of a link only the link itself."""
        with suppress(FileNotFoundError), self._parent(name) as (place, last):
            place._unlink(last)

    def remove_empty(self, name: str) -> None:
        """Remove a folder if there is one and nothing is in it."""
        with suppress(OSError), self._parent(name) as (place, last):
            os.rmdir(place._at(last), dir_fd=place._handle)

    def remove_tree(self, name: str) -> None:
        """Remove a folder with all that is in it, or a file, if there is one; of a link only the link itself."""
        with suppress(FileNotFoundError), self._parent(name) as (place, last):
            if stat.S_ISDIR(place._stat(last).st_mode) and not place._is_link(last):
                with _named(place.path / last):
                    shutil.rmtree(place._at(last), dir_fd=place._handle)
            else:
                place._unlink(last)

    def copy(self, name: str, target: "Folder") -> None:
        """Copy a plain file to the same name in another folder; folders on the way are made."""
        with target._parent(name, create=True) as (place, last), self.open(name) as source, place.write(last) as stream:
            shutil.copyfileobj(source, stream)

    def move(self, name: str, target: "Folder", new_name: str) -> None:
        """Move a file or a folder, replacing a plain file; folders on the way to the new name are made."""
        with self._parent(name) as (place, last), target._parent(new_name, create=True) as (new, new_last):
            if not stat.S_ISDIR(place._check(last, lambda _: True, "file").st_mode):
                place._check(last, stat.S_ISREG, "plain file")
                new._replaceable(new_last)
            place._replace(last, new, new_last)

    @contextmanager
    def lock(self, name: str = ".lock", *, again: bool = False) -> Iterator[None]:
        """Be the only process that changes this folder, or raise a :class:`BusyError`.

        The operating system releases the lock however the process ends. With ``again``, a thread that holds the lock
        may take it once more.
        """
        with self._parent(name) as (place, last):
            status = os.stat(place.path) if place._handle is None else os.fstat(place._handle)
            mine = (status.st_dev, status.st_ino, last)
            if again and mine in _held.get():
                yield
                return
            handle = place._lock_file(last)
            token = _held.set(_held.get() | {mine})
            try:
                yield
            finally:
                _held.reset(token)
                with suppress(OSError):  # Windows removes no open file; the next process locks the one that is left
                    place._unlink(last)
                os.close(handle)

    def _lock_file(self, name: str) -> int:
        """Open and lock a file; the number of this process is written into it."""
        while True:
            self._replaceable(name)
            handle = self._open(name, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if not _try_lock(handle):
                    owner = os.read(handle, 32).decode("ascii", "replace").strip()
                    raise BusyError(
                        f"another unpose (process {owner if owner.isdigit() else 'unknown'}) is working in "
                        f"{self.path}; wait until it ends, or give another folder"
                    )
                status = self._status(name)
                if status is not None and os.path.samestat(os.fstat(handle), status):
                    if status.st_nlink == 1:  # else the file has another name, and what it says may be of worth
                        os.ftruncate(handle, 0)
                        os.write(handle, f"{os.getpid()}\n".encode())
                    return handle
            except BaseException:
                os.close(handle)
                raise
            os.close(handle)  # the other process ended in the meantime and removed the file

    @contextmanager
    def _parent(self, name: str, *, create: bool = False) -> Iterator[tuple["Folder", str]]:
        """The folder in which the last component of a name stands, and that component."""
        parts = str(name).split("/")
        separators = {"\0", "\\", ":"} if os.name == "nt" else {"\0"}
        if any(part in ("", ".", "..") or separators & set(part) for part in parts):
            raise FolderError(f"{str(name)!r} is not the name of a file inside {self.path}")
        with ExitStack() as opened:
            place = self
            for part in parts[:-1]:
                place = opened.enter_context(place._inner(part, create))
            yield place, parts[-1]

    def _inner(self, name: str, create: bool) -> "Folder":
        """Open the folder of this name in this folder."""
        if create and self._status(name) is None:
            with suppress(FileExistsError), _named(self.path / name):
                os.mkdir(self._at(name), dir_fd=self._handle)
        self._check(name, stat.S_ISDIR, "folder")
        inner = object.__new__(Folder)
        inner.path, inner._durable, inner._handle = self.path / name, self._durable, None
        if self._handle is not None:
            inner._handle = self._open(name, _FOLDER)
        return inner

    def _at(self, name: str) -> str:
        """The name as operations take it beside the handle of this folder."""
        return name if self._handle is not None else str(self.path / name)

    def _open(self, name: str, flags: int, mode: int = 0o666, shown: str | None = None) -> int:
        with _named(self.path / (shown or name)):
            return os.open(self._at(name), flags | _NO_LINK | _BINARY, mode, dir_fd=self._handle)

    def _unlink(self, name: str) -> None:
        with _named(self.path / name):
            os.unlink(self._at(name), dir_fd=self._handle)

    def _replace(self, name: str, target: "Folder", new_name: str) -> None:
        for pause in (0.01, 0.1, 1.0, None):
            try:
                with _named(target.path / new_name):
                    os.replace(self._at(name), target._at(new_name), src_dir_fd=self._handle, dst_dir_fd=target._handle)
                return
            except PermissionError:  # Windows replaces no file that a virus scanner has just opened
                if pause is None or os.name != "nt":
                    raise
                time.sleep(pause)

    def _stat(self, name: str) -> os.stat_result:
        with _named(self.path / name):
            return os.stat(self._at(name), dir_fd=self._handle, follow_symlinks=False)

    def _status(self, name: str) -> os.stat_result | None:
        try:
            return self._stat(name)
        except FileNotFoundError:
            return None

    def _is_link(self, name: str) -> bool:
        status = self._status(name)
        return status is not None and (
            stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) == _JUNCTION
        )

    def _check(self, name: str, is_kind: Any, kind: str) -> os.stat_result:
        """The status of an entry, which must be of a kind and no link."""
        status = self._stat(name)
        if self._is_link(name):
            noun = "file" if kind == "plain file" else kind
            raise FolderError(
                f"{self.path / name} is a symbolic link, which is not followed; put the {noun} itself there"
            )
        if not is_kind(status.st_mode):
            raise FolderError(f"{self.path / name} must be a {kind}")
        return status

    def _replaceable(self, name: str) -> int | None:
        """The mode of a plain file that may be written to, None if there is no file of this name."""
        status = self._status(name)
        if status is not None and stat.S_ISDIR(status.st_mode) and not self._is_link(name):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(self.path / name))
        return None if status is None else self._check(name, stat.S_ISREG, "plain file").st_mode


def png(picture: Image.Image | NDArray, software: str | None = None) -> bytes:
    """The content of a PNG file of a picture; ``software`` is the name of a program for the file's metadata."""
    if not isinstance(picture, Image.Image):
        picture = Image.fromarray((np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8))
    metadata = PngInfo()
    if software is not None:
        metadata.add_text("Software", software)
    stream = io.BytesIO()
    picture.save(stream, format="PNG", optimize=True, pnginfo=metadata)
    return stream.getvalue()


class _Output(io.FileIO):
    """A file to write to, whose errors name the path that it is meant for and what a full disk left out."""

    def __init__(self, handle: int, path: Path) -> None:
        super().__init__(handle, "wb")
        self._path, self._handle = path, handle

    def fileno(self) -> int:
        """No number, by which NumPy would write past :meth:`write`."""
        raise io.UnsupportedOperation("fileno")

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        try:
            while done < len(view):
                done += super().write(view[done:]) or 0
        except OSError as error:
            raise self._explained(error, len(view) - done) from error
        return done

    def synchronize(self) -> None:
        """Wait until the content is on the disk."""
        try:
            os.fsync(self._handle)
        except OSError as error:
            if error.errno != errno.EINVAL:  # a file system without it
                raise self._explained(error, os.fstat(self._handle).st_size) from error

    def _explained(self, error: OSError, missing: int) -> OSError:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            reason += f", {missing:,} bytes could not be written"
        return OSError(error.errno, reason, str(self._path))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let errors of the system name the path, not the name in a folder."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _try_lock(handle: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(handle, _LOCK_BYTE, os.SEEK_SET)
            try:
                msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            finally:
                os.lseek(handle, 0, os.SEEK_SET)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
