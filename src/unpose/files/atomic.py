"""Atomic writes: a file appears complete under its name, or not at all."""

import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo


def write_image(path: str | os.PathLike[str], picture: Image.Image | NDArray, *, software: str | None = None) -> Path:
    """Write a PNG file. Missing folders are created.

    Parameters
    ----------
    path : str or path
        The file to write.
    picture : PIL.Image.Image or ndarray
        A Pillow image, or floats in [0, 1] of shape (h, w) or (h, w, 3).
    software : str, optional
        The name of the program, stored in the file's metadata.

    Returns
    -------
    Path
        The path that was written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_image(folder + "/grey.png", np.full((5, 7), 0.5)).name
    'grey.png'
    """
    if not isinstance(picture, Image.Image):
        picture = Image.fromarray((np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8))
    metadata = PngInfo()
    if software is not None:
        metadata.add_text("Software", software)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(target) as temporary:
        picture.save(temporary, format="PNG", optimize=True, pnginfo=metadata)
    return target


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file in UTF-8.

    Parameters
    ----------
    path : str or path
        The file to write; its folder must exist.
    text : str
        The content.

    Returns
    -------
    Path
        The path that was written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(folder + "/notes.txt", "turned by 90°").read_text(encoding="utf-8")
    'turned by 90°'
    """
    target = Path(path)
    with atomic_file(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return target


def write_chunks(path: str | os.PathLike[str], chunks: Iterable[bytes]) -> Path:
    """Write bytes chunk by chunk. Missing folders are created; if the iterable raises, no file is left.

    Parameters
    ----------
    path : str or path
        The file to write.
    chunks : iterable of bytes
        The content.

    Returns
    -------
    Path
        The path that was written.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_chunks(folder + "/a/b.bin", [b"one ", b"two"]).read_bytes()
    b'one two'
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_file(target) as temporary, temporary.open("wb") as stream:
        for chunk in chunks:
            stream.write(chunk)
    return target


def read_file(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Read a regular file, or raise ValueError if it is another kind of file or larger than a limit.

    Parameters
    ----------
    path : str or path
        The file to read.
    max_bytes : int
        The limit.

    Returns
    -------
    bytes
        The content.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_file(write_text(folder + "/a.txt", "abc"), max_bytes=10)
    b'abc'
    """
    source = Path(path)
    status = source.stat()
    if not stat.S_ISREG(status.st_mode):  # a device or a pipe may never end
        raise ValueError(f"{source} must be a regular file, not a folder, a device or a pipe")
    if status.st_size > max_bytes:
        raise ValueError(f"{source} has {status.st_size} bytes, more than the limit of {max_bytes}")
    return source.read_bytes()


@contextmanager
def atomic_file(target: Path) -> Iterator[Path]:
    """Yield a temporary path, and move it to the target when the block ends without an error.

    The new file keeps the mode of the file it replaces; a new file gets the mode that ``open`` would give it. A
    symbolic link stays, and the file it points to is replaced. Devices and pipes cannot be replaced, so the content is
    copied into them.

    Parameters
    ----------
    target : Path
        The file to write.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with atomic_file(Path(folder) / "a.txt") as temporary:
    ...         _ = temporary.write_text("whole")
    ...     (Path(folder) / "a.txt").read_text()
    'whole'
    """
    mode, replaced = _file_mode(target), None
    if mode is not None and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        handle, name = tempfile.mkstemp(suffix=".tmp")
        os.close(handle)
        temporary = Path(name)
    else:
        # The path is resolved only here: /dev/stdout may lead to a pipe, which has no path.
        replaced = Path(os.path.realpath(target))
        temporary = replaced.parent / f".{replaced.name}.{secrets.token_hex(4)}.tmp"
        # Not mkstemp, so that the umask and the folder's rules decide the mode of a new file. The replacement of a
        # private file is never readable by others.
        temporary.touch(0o666 if mode is None else 0o600, exist_ok=False)
    try:
        yield temporary
        if replaced is None:
            with temporary.open("rb") as written, target.open("wb") as stream:
                shutil.copyfileobj(written, stream)
        else:
            if mode is not None:
                temporary.chmod(mode & 0o777)
            os.replace(temporary, replaced)
    finally:
        temporary.unlink(missing_ok=True)


def _file_mode(path: Path) -> int | None:
    """Type and permissions of the file that a path leads to; None if there is none."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None
