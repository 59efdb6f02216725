"""Pictures to and from the disk, each written whole or not at all."""

import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo


def write_image(path: str | os.PathLike[str], picture: Image.Image | NDArray, *, software: str | None = None) -> Path:
    """Write a picture as PNG: a Pillow image, or floats in [0, 1] of shape (h, w) or (h, w, 3).

    Folders on the way are made. The file can say what ``software`` wrote it, near its beginning.
    """
    if not isinstance(picture, Image.Image):
        picture = Image.fromarray((np.clip(picture, 0, 1) * 255 + 0.5).astype(np.uint8))
    about = PngInfo()
    if software is not None:
        about.add_text("Software", software)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _whole_file(target) as temporary:
        picture.save(temporary, format="PNG", optimize=True, pnginfo=about)
    return target


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file in UTF-8."""
    target = Path(path)
    with _whole_file(target) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return target


def write_chunks(path: str | os.PathLike[str], chunks: Iterable[bytes]) -> Path:
    """Write bytes as they come; what raises on the way leaves no file. Folders on the way are made."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _whole_file(target) as temporary, temporary.open("wb") as stream:
        for chunk in chunks:
            stream.write(chunk)
    return target


def read_file(path: str | os.PathLike[str], most: int) -> bytes:
    """The bytes of a file, if there are at most so many."""
    source = Path(path)
    if (size := source.stat().st_size) > most:
        raise ValueError(f"{source} has {size} bytes, more than the {most} that are read")
    return source.read_bytes()


class _whole_file:
    """A temporary file whose content comes to the target only when everything is written.

    It takes the place of a file and has the mode of it, or the one that ``open`` gives to a new file. A link stays, and
    what it leads to is replaced. A device or a pipe would no longer be one, so the content is copied into it.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._replaced: Path | None = None

    def __enter__(self) -> Path:
        self._mode = _mode(self._target)
        if self._mode is not None and not stat.S_ISREG(self._mode) and not stat.S_ISDIR(self._mode):
            handle, name = tempfile.mkstemp(suffix=".tmp")
            os.close(handle)
            self._temporary = Path(name)
            return self._temporary
        # Only now: /dev/stdout leads to a pipe that has no path.
        self._replaced = Path(os.path.realpath(self._target))
        self._temporary = self._replaced.parent / f".{self._replaced.name}.{secrets.token_hex(4)}.tmp"
        # Made here and not by mkstemp, so that the umask and the folder's own rules decide. What replaces a private
        # file is never open to others.
        self._temporary.touch(0o666 if self._mode is None else 0o600, exist_ok=False)
        return self._temporary

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._deliver()
        finally:
            self._temporary.unlink(missing_ok=True)

    def _deliver(self) -> None:
        if self._replaced is None:
            with self._temporary.open("rb") as written, self._target.open("wb") as stream:
                shutil.copyfileobj(written, stream)
            return
        if self._mode is not None:
            self._temporary.chmod(self._mode & 0o777)
        os.replace(self._temporary, self._replaced)


def _mode(path: Path) -> int | None:
    """Kind and rights of what a path leads to; None where there is nothing yet."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None
