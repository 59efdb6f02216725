"""The folder of a run: one writer at a time, finished pieces for going on, every file whole or not at all.

While a run is under way the folder holds ``.pieces``: what was begun (``begun.json``), the lock, and every finished
piece of work. It disappears in one step when everything else is written; a folder without ``begun.json`` and with a
``config.toml`` that a run wrote holds a finished run.
"""

import hashlib
import json
import os
import shutil
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

import unpose
from unpose.cli.shared.errors import Refused, failed
from unpose.cli.shared.settings import Made, Settings, read_toml

if TYPE_CHECKING:
    from unpose.align.checkpoints import Arrays
    from unpose.data import ImageSet

PIECES = ".pieces"
FILES = (
    "labels.csv", "rejected.csv", "clusters.json", "images.json", "model.json", "model.safetensors",
    "pictures.safetensors", "report.html", "config.toml", "poses.csv", "mean.png", "error.png", "aligned.npy",
    "montage.png",
)  # fmt: skip
"""Everything that a run writes at the top of its folder, besides log.txt."""
MEANS = "means"


@dataclass
class RunFolder:
    """An open run folder; only the process that holds the lock has one."""

    path: Path

    @property
    def pieces(self) -> Path:
        return self.path / PIECES

    def load(self, name: str) -> "Arrays | None":
        """A finished piece of work."""
        import safetensors.numpy

        file = self.pieces / f"{name}.safetensors"
        return safetensors.numpy.load(file.read_bytes()) if file.exists() else None

    def store(self, name: str, arrays: "Arrays") -> None:
        """Keep a finished piece of work."""
        import numpy as np
        import safetensors.numpy

        from unpose.files.atomic import write_chunks

        plain = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
        write_chunks(self.pieces / f"{name}.safetensors", [safetensors.numpy.save(plain)])

    def log(self, line: str) -> None:
        """A line with the time into log.txt."""
        _log(self.path, line)

    def finish(self) -> None:
        """Everything is written: the pieces go, in one step."""
        done = self.path / f"{PIECES}.{os.getpid()}.tmp"
        os.replace(self.pieces, done)
        shutil.rmtree(done)


def _log(path: Path, line: str) -> None:
    with (path / "log.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")


def fingerprint(images: "ImageSet") -> str:
    """A hash of what was read: pixels, names, classes, and what was left out."""
    import numpy as np

    told = [images.names, images.labels, images.rejected, list(images.images.shape), str(images.images.dtype)]
    digest = hashlib.sha256(json.dumps(told).encode("ascii"))
    digest.update(np.ascontiguousarray(images.images).data)
    return digest.hexdigest()


def check_run(path: Path, source: Path, *, force: bool, resume: bool) -> None:
    """Refuse before anything is read what :func:`open_run` would refuse after."""
    _check_places(path, source)
    if path.exists() and not path.is_dir():
        raise Refused(f"{path} is a file; a run needs a folder of its own")
    if resume and not (path / PIECES / "begun.json").exists():
        raise Refused(f"{path} holds no run to go on with; leave out --resume to begin one")
    if path.is_dir():
        _check_free(path, force)


def finished(path: Path) -> Made | None:
    """The complete run that a folder holds, as its config.toml tells it."""
    return None if (path / PIECES / "begun.json").exists() else read_toml(path / "config.toml")


def check_same(path: Path, made: Made, kind: str, settings: Settings, images: "ImageSet") -> None:
    """Refuse a finished run that is not the one asked for."""
    before = {
        "kind": made.kind, "version": made.about["version"], "input": made.about.get("fingerprint"),
        "settings": made.settings.decisive(),
    }  # fmt: skip
    if difference := _difference(before, _identity(kind, settings, images)):
        raise Refused(
            f"{path} holds a finished run that was made {difference}. Give another folder, or --force to replace it"
        )


def _identity(kind: str, settings: Settings, images: "ImageSet") -> dict[str, Any]:
    """What decides the results of a run."""
    return {
        "kind": kind, "version": unpose.__version__, "input": fingerprint(images), "settings": settings.decisive(),
    }  # fmt: skip


@contextmanager
def open_run(path: Path, kind: str, settings: Settings, images: "ImageSet", *, force: bool) -> Iterator[RunFolder]:
    """Begin a run in a folder, or go on with the one that was begun there; one process at a time."""
    now = _identity(kind, settings, images)
    try:
        (path / PIECES).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.ClickException(f"{path} cannot be written: {error.strerror}") from error
    with _locked(path / PIECES / "lock", path):
        fresh = _begin(path, now, force)
        try:
            yield RunFolder(path)
        except (Refused, ValueError):
            if fresh and not list((path / PIECES).glob("*.safetensors")):
                _abandon(path)
            raise


def _check_places(path: Path, source: Path) -> None:
    run, images = path.resolve(), source.resolve()
    if run == images or images in run.parents or run in images.parents:
        raise Refused(
            f"the run folder {path} and the images {source} must lie apart, or results would be read as input"
        )


def _check_free(path: Path, force: bool) -> None:
    """A finished run stays as it is unless forced; a folder without a run must be empty: its files are not ours."""
    if (path / PIECES / "begun.json").exists():
        return
    if finished(path) is not None:
        if not force:
            raise Refused(f"{path} holds a finished run; give another folder, or --force to replace it")
    elif any(entry.name != PIECES for entry in path.iterdir()):
        why = ", and --force replaces nothing else" if force else ""
        raise Refused(f"{path} is not empty and holds no run{why}; give another folder")


def _begin(path: Path, now: dict[str, Any], force: bool) -> bool:
    """Whether the run begins here, and does not go on; what a killed process left half done goes."""
    from unpose.files.atomic import write_text

    _check_free(path, force)  # another process may have finished between the first look and the lock
    for stale in (*path.glob(".*.tmp"), *path.glob(f"{MEANS}/.*.tmp"), *path.glob(f"{PIECES}/.*.tmp")):
        shutil.rmtree(stale) if stale.is_dir() else stale.unlink(missing_ok=True)
    mark = path / PIECES / "begun.json"
    fresh = force or not mark.exists()
    if fresh:
        for piece in (path / PIECES).glob("*.safetensors"):
            piece.unlink()
        write_text(mark, json.dumps(now, indent=1) + "\n")
        (path / "log.txt").unlink(missing_ok=True)
    elif difference := _difference(json.loads(mark.read_text(encoding="utf-8")), now):
        raise Refused(
            f"{path} holds an unfinished run that was begun {difference}. Repeat that, give another folder, or "
            "--force to begin again"
        )
    for name in FILES:
        (path / name).unlink(missing_ok=True)
    for picture in (path / MEANS).glob("cluster-*.png"):
        picture.unlink()
    if (path / MEANS).is_dir() and not any((path / MEANS).iterdir()):
        (path / MEANS).rmdir()  # a run that ends in an error leaves the folder as empty as it found it
    return fresh


def _abandon(path: Path) -> None:
    """Leave no trace of a run that could not begin."""
    (path / "log.txt").unlink(missing_ok=True)  # first: beside nothing of a run it would be taken for somebody's file
    shutil.rmtree(path / PIECES)
    if not any(path.iterdir()):
        path.rmdir()


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    spoken = {"kind": "by `unpose {}`, not `unpose {}`", "version": "by version {}, not {}"}
    for what, text in spoken.items():
        if before.get(what) != now[what]:
            return text.format(before.get(what), now[what])
    others = {
        name: (before.get("settings", {}).get(name), value)
        for name, value in now["settings"].items()
        if before.get("settings", {}).get(name) != value
    }
    if not others and before.get("input") != now["input"]:
        return "with other images: the input has changed since"
    return ", ".join(f"with --{name.replace('_', '-')} {was}, not {is_now}" for name, (was, is_now) in others.items())


@contextmanager
def _locked(file: Path, path: Path) -> Iterator[None]:
    """Hold the file's lock, which the system lets go when the process ends, however it ends."""
    while True:
        stream = file.open("a+", encoding="ascii")
        if not _try_lock(stream):
            stream.seek(0)
            owner = stream.read().strip() or "unknown"
            stream.close()
            raise Refused(f"another unpose (process {owner}) is working in {path}; wait for it, or give another folder")
        if file.exists() and os.path.samestat(os.fstat(stream.fileno()), file.stat()):
            break
        stream.close()  # the other one finished meanwhile and took the file with it
        file.parent.mkdir(exist_ok=True)
    try:
        stream.truncate(0)
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield
    finally:
        stream.close()
        if file.parent.is_dir() and not (file.parent / "begun.json").exists():
            shutil.rmtree(file.parent, ignore_errors=True)  # nothing was begun


def _try_lock(stream: IO[str]) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(stream.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


@contextmanager
def spoken_errors(path: Path, again: str) -> Iterator[None]:
    """Errors as one line: 2 for what was given, 1 for what failed, 130 for Ctrl-C, which says how to go on.

    What happened to a run that has begun in the folder is in its log, too.
    """
    mark = path / PIECES / "begun.json"

    def log(line: str) -> None:
        if mark.exists():
            _log(path, line)

    try:
        yield
    except KeyboardInterrupt:
        log("stopped by Ctrl-C")
        if any((path / PIECES).glob("*.safetensors")):
            click.echo(f"\nStopped; finished work is kept. Go on with: {again}", err=True)
        else:
            click.echo(f"\nStopped before any work was finished. Begin again with: {again}", err=True)
        raise click.exceptions.Exit(130) from None
    except click.exceptions.Exit:
        raise
    except click.ClickException as error:
        log(error.message)
        raise
    except ValueError as error:
        log(str(error))
        raise Refused(str(error)) from error
    except OSError as error:
        log(str(error))
        raise click.ClickException(str(error)) from error
    except Exception as error:
        if not mark.exists():
            raise  # there is no log; the traceback goes where those of other commands go
        log(traceback.format_exc())
        raise failed(error, path / "log.txt") from error
