"""The folder of a run: one writer at a time, checkpoints to continue from, and files that are complete or absent.

While a run is in progress its folder contains ``.pieces``: ``begun.json`` (what the run is), ``lock``, and one file for
each finished stage of the work. The folder ``.pieces`` disappears in one step after all results are written. A folder
with a ``config.toml`` that a run wrote and without ``begun.json`` holds a finished run.
"""

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

import unpose
from unpose.runs.settings import RunConfig, RunError, RunSettings, config_text, is_users_mistake, read_config
from unpose.runs.tables import csv_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.data import ImageSet

__all__ = ["LOCK", "RunFolder", "check_apart", "cluster_name", "fingerprint", "folder_lock"]

MEANS_FOLDER = "means"
LOCK = ".lock"
"""File that a process holds while it works in a folder of results; a killed process leaves it."""
_CHECKPOINTS = ".pieces"
_COMPLETE = ".complete"
"""Folder of complete new results, which only need to be moved into place."""
_RESULTS = (
    "labels.csv", "rejected.csv", "added.csv", "clusters.json", "images.json", "model.json", "model.safetensors",
    "pictures.safetensors", "report.html", "config.toml", "poses.csv", "mean.png", "error.png", "aligned.npy",
    "montage.png",
)  # fmt: skip
"""Every file that a run writes at the top of its folder, apart from log.txt."""


@dataclass(frozen=True)
class RunFolder:
    """The folder that ``unpose cluster`` or ``unpose align`` writes its results to.

    Use :func:`read_run` to read the results of a clustering. This class says what a folder holds, and gives the
    process that runs a command exclusive access to it. :meth:`begin` creates it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = RunFolder(Path(place))
    ...     folder.is_unfinished, folder.finished_config()
    (False, None)
    """

    path: Path

    @property
    def _checkpoints(self) -> Path:
        return self.path / _CHECKPOINTS

    @property
    def scratch_folder(self) -> Path:
        """Where a run keeps files of the size of its images until it is finished."""
        return self._checkpoints

    @contextmanager
    def reading(self) -> Iterator[Path]:
        """Yield the folder for decoded images; if the block raises and no run has begun here, leave no trace of it."""
        made = [place for place in (self._checkpoints, self.path) if not place.exists()]
        try:
            yield self._checkpoints
        except BaseException:
            if self._checkpoints in made and not self.is_unfinished:
                shutil.rmtree(self._checkpoints, ignore_errors=True)
            if self.path in made and self.path.is_dir() and not any(self.path.iterdir()):
                self.path.rmdir()
            raise

    @property
    def _mark(self) -> Path:
        return self._checkpoints / "begun.json"

    @property
    def is_unfinished(self) -> bool:
        """Whether a run has begun here and has not ended."""
        return self._mark.exists()

    @property
    def has_checkpoints(self) -> bool:
        """Whether an unfinished run has completed a stage that it can continue from."""
        return any(self._checkpoints.glob("*.safetensors"))

    def finished_config(self) -> RunConfig | None:
        """What ``config.toml`` says about the finished run in this folder; None where there is no finished run."""
        return None if self.is_unfinished else read_config(self.path / "config.toml")

    def check(self, source: Path, *, force: bool, resume: bool) -> None:
        """Raise a :class:`RunError` if a run on the images at ``source`` must not be written here.

        :meth:`begin` checks the same. This check needs no images, so a command can fail before it reads any.
        """
        check_apart(self.path, source)
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"{self.path} is a file; a run needs a folder of its own")
        self.remove_leftovers()
        if resume and not self.is_unfinished:
            raise RunError(f"{self.path} holds no run to continue; leave out --resume to begin one")
        if self.path.is_dir():
            self._check_free(force)

    def check_same(self, config: RunConfig, command: str, settings: RunSettings, images: "ImageSet") -> None:
        """Raise a :class:`RunError` if the finished run described by ``config`` answers another question."""
        before = {
            "kind": config.command, "version": config.about["version"], "input": config.about.get("fingerprint"),
            "settings": config.settings.decisive(),
        }  # fmt: skip
        if difference := _difference(before, _identity(command, settings, images)):
            raise RunError(
                f"{self.path} holds a finished run that was made {difference}. Give another folder, or --force to "
                "replace it"
            )

    @contextmanager
    def begin(self, command: str, settings: RunSettings, images: "ImageSet", *, force: bool) -> Iterator[None]:
        """Begin a run, or continue the unfinished one, while holding the folder's lock.

        A run that the user's mistake ends before its first checkpoint leaves no trace.
        """
        now = _identity(command, settings, images)
        try:
            self._checkpoints.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"{self.path} cannot be written: {error.strerror}") from error
        with _locked(self._checkpoints / "lock", self.path):
            for decoded in self._checkpoints.glob("images-*.npy"):  # those of a run that was stopped
                if getattr(images.images, "path", None) != decoded.resolve():
                    decoded.unlink()
            is_new = self._prepare(now, force)
            try:
                yield
            except ValueError as error:
                if is_new and is_users_mistake(error) and not self.has_checkpoints:
                    self._abandon()
                raise

    @contextmanager
    def replacing(self) -> Iterator[Path]:
        """Yield a folder for new results, which replace those of the finished run at the end of the block.

        Nothing is replaced if the block raises an error or the process is killed in it. If it is killed afterwards,
        while files are moved, :meth:`complete_replacement` moves the others. Files that no run wrote stay.
        """
        self.complete_replacement()
        self._checkpoints.mkdir(exist_ok=True)
        with (
            _locked(self._checkpoints / "lock", self.path),
            TemporaryDirectory(dir=self.path, prefix=".new.", suffix=".tmp") as place,
        ):
            new = Path(place) / "results"
            new.mkdir()
            yield new
            os.replace(new, self.path / _COMPLETE)  # from here on the new results count
            self.complete_replacement()

    def complete_replacement(self) -> None:
        """Move the new results of :meth:`replacing` into place, if a process was killed while it did so."""
        new = self.path / _COMPLETE
        if not new.is_dir():
            return
        (self.path / MEANS_FOLDER).mkdir(exist_ok=True)
        kept = new / "means.txt"  # which pictures the new results have, also after some of them were moved
        if not kept.exists():
            names = sorted(picture.name for picture in (new / MEANS_FOLDER).glob("cluster-*.png"))
            kept.with_suffix(".tmp").write_text("\n".join(names))
            os.replace(kept.with_suffix(".tmp"), kept)
        names = kept.read_text().split("\n")
        for file in sorted(new.rglob("*")):
            if file.is_file() and file != kept:
                os.replace(file, self.path / file.relative_to(new))
        for picture in (self.path / MEANS_FOLDER).glob("cluster-*.png"):
            if picture.name not in names:
                picture.unlink()
        shutil.rmtree(new, ignore_errors=True)

    def load(self, name: str) -> "dict[str, NDArray] | None":
        """The arrays of a finished stage; None where the stage is not finished."""
        import safetensors.numpy

        file = self._checkpoints / f"{name}.safetensors"
        return safetensors.numpy.load(file.read_bytes()) if file.exists() else None

    def store(self, name: str, arrays: "dict[str, NDArray]") -> None:
        """Keep the arrays of a finished stage."""
        import numpy as np
        import safetensors.numpy

        from unpose.files import write_chunks

        contiguous = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
        write_chunks(self._checkpoints / f"{name}.safetensors", [safetensors.numpy.save(contiguous)])

    def log(self, line: str) -> None:
        """Append a line with the time to ``log.txt``."""
        with (self.path / "log.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")

    def write_rejected(self, rejected: Sequence[tuple[str, str]]) -> None:
        """Write ``rejected.csv``: the images that could not be read, and why."""
        from unpose.files import write_text

        write_text(self.path / "rejected.csv", csv_text(("path", "reason"), rejected))

    def write_config(
        self, settings: RunSettings, source: Path, images: "ImageSet", digest: str, *,
        facts: dict[str, Any] | None = None, omit: tuple[str, ...] = (),
    ) -> dict[str, Any]:  # fmt: skip
        """Write ``config.toml``, whose presence makes the run a finished one, and return what it says about the run.

        ``digest`` is the fingerprint of the images, ``facts`` are added to what every run states, and the settings
        named in ``omit`` are left out.
        """
        from unpose.files import printable_name, write_text

        about = {
            "version": unpose.__version__, "input": printable_name(str(source)), "canvas": images.canvas,
            "fingerprint": digest,
        }  # fmt: skip
        about |= facts or {}
        write_text(self.path / "config.toml", config_text(settings, about, omit))
        return about

    def finish(self) -> None:
        """Remove the checkpoints in one step, after all results are written."""
        removed = self.path / f"{_CHECKPOINTS}.{os.getpid()}.tmp"
        os.replace(self._checkpoints, removed)
        self.remove_leftovers()

    def remove_leftovers(self) -> None:
        """Remove checkpoints that a process renamed for removal in :meth:`finish`, and was killed before it removed."""
        for removed in self.path.glob(f"{_CHECKPOINTS}.*.tmp"):
            shutil.rmtree(removed, ignore_errors=True)  # another process may be removing them, too

    def _check_free(self, force: bool) -> None:
        """Protect a finished run unless forced, and always protect files that no run wrote."""
        if self.is_unfinished:
            return
        if self.finished_config() is not None:
            if not force:
                raise RunError(f"{self.path} holds a finished run; give another folder, or --force to replace it")
        elif any(entry.name != _CHECKPOINTS for entry in self.path.iterdir()):
            why = ", and --force replaces nothing else" if force else ""
            raise RunError(f"{self.path} is not empty and holds no run{why}; give another folder")

    def _prepare(self, now: dict[str, Any], force: bool) -> bool:
        """Remove what a killed process left, and return whether the run is new rather than continued."""
        from unpose.files import write_text

        path = self.path
        self._check_free(force)  # another process may have finished between the first check and the lock
        for stale in (*path.glob(".*.tmp"), *path.glob(f"{MEANS_FOLDER}/.*.tmp"), *self._checkpoints.glob(".*.tmp")):
            shutil.rmtree(stale) if stale.is_dir() else stale.unlink(missing_ok=True)
        is_new = force or not self.is_unfinished
        if is_new:
            for checkpoint in self._checkpoints.glob("*.safetensors"):
                checkpoint.unlink()
            write_text(self._mark, json.dumps(now, indent=1) + "\n")
            (path / "log.txt").unlink(missing_ok=True)
        elif difference := _difference(json.loads(self._mark.read_text(encoding="utf-8")), now):
            raise RunError(
                f"{path} holds an unfinished run that was begun {difference}. Repeat that command, give another "
                "folder, or --force to begin again"
            )
        for name in _RESULTS:
            (path / name).unlink(missing_ok=True)
        for picture in (path / MEANS_FOLDER).glob("cluster-*.png"):
            picture.unlink()
        if (path / MEANS_FOLDER).is_dir() and not any((path / MEANS_FOLDER).iterdir()):
            (path / MEANS_FOLDER).rmdir()  # so that a run that fails leaves the folder as empty as it found it
        return is_new

    def _abandon(self) -> None:
        """Leave no trace of a run that could not begin."""
        # The log goes first: without checkpoints beside it, it would look like a file that no run wrote.
        (self.path / "log.txt").unlink(missing_ok=True)
        shutil.rmtree(self._checkpoints)
        if not any(self.path.iterdir()):
            self.path.rmdir()


def check_apart(folder: Path, source: Path) -> None:
    """Raise a :class:`RunError` if a folder of results and the images at ``source`` contain each other.

    >>> check_apart(Path("run"), Path("photos"))
    >>> try:
    ...     check_apart(Path("photos/run"), Path("photos"))
    ... except RunError as error:
    ...     print(str(error)[:65])
    the folder photos/run and the images photos must not contain each
    """
    results, images = folder.resolve(), source.resolve()
    if results == images or images in results.parents or results in images.parents:
        raise RunError(
            f"the folder {folder} and the images {source} must not contain each other, or results would be read as "
            "input; give another folder"
        )


def fingerprint(images: "ImageSet") -> str:
    """The SHA-256 of everything that was read from the input: pixels, names, classes, and files that were left out."""
    import numpy as np

    facts = [images.names, images.labels, images.rejected, list(images.images.shape), str(images.images.dtype)]
    digest = hashlib.sha256(json.dumps(facts).encode("ascii"))
    for start in range(0, len(images), 1024):  # they may be in a file
        digest.update(np.ascontiguousarray(images.images[start : start + 1024]).data)
    return digest.hexdigest()


def cluster_name(label: int) -> str:
    """The name of a cluster in files and folders.

    >>> cluster_name(7), cluster_name(-1)
    ('cluster-007', 'no-cluster')
    """
    return f"cluster-{label:03d}" if label >= 0 else "no-cluster"


def _identity(command: str, settings: RunSettings, images: "ImageSet") -> dict[str, Any]:
    """Everything that decides the results of a run."""
    return {
        "kind": command, "version": unpose.__version__, "input": fingerprint(images), "settings": settings.decisive(),
    }  # fmt: skip


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """How one run's identity differs from another's, as the end of a sentence; empty where it does not."""
    phrases = {"kind": "by `unpose {}`, not `unpose {}`", "version": "by version {}, not {}"}
    for key, phrase in phrases.items():
        if before.get(key) != now[key]:
            return phrase.format(before.get(key), now[key])
    others = {
        name: (before.get("settings", {}).get(name), value)
        for name, value in now["settings"].items()
        if before.get("settings", {}).get(name) != value
    }
    if not others and before.get("input") != now["input"]:
        return "with other images: the input has changed since"
    return ", ".join(f"with --{name.replace('_', '-')} {was}, not {is_now}" for name, (was, is_now) in others.items())


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Be the only process that works in a folder of results, or raise a :class:`RunError`.

    The folder is created, and removed if nothing is in it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, folder_lock(Path(place) / "out"):
    ...     [file.name for file in (Path(place) / "out").iterdir()]
    ['.lock']
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"{folder} cannot be written: {error.strerror}") from error
    file = folder / LOCK
    with _held(file, folder):
        try:
            yield
        finally:
            with suppress(OSError):  # Windows removes no open file; the next process locks the one that is left
                file.unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def _locked(file: Path, run: Path) -> Iterator[None]:
    """Hold the lock of a run, and leave no folder of checkpoints if no run has begun."""
    held = False
    try:
        with _held(file, run):
            held = True
            yield
    finally:
        if held and file.parent.is_dir() and not (file.parent / "begun.json").exists():
            shutil.rmtree(file.parent, ignore_errors=True)


@contextmanager
def _held(file: Path, folder: Path) -> Iterator[None]:
    """Hold the lock on a file, which the operating system releases however the process ends."""
    while True:
        stream = file.open("a+", encoding="ascii")
        if not _try_lock(stream):
            stream.seek(0)
            owner = stream.read().strip() or "unknown"
            stream.close()
            raise RunError(
                f"another unpose (process {owner}) is working in {folder}; wait until it ends, or give another folder"
            )
        if file.exists() and os.path.samestat(os.fstat(stream.fileno()), file.stat()):
            break
        stream.close()  # the other process finished in the meantime and removed the file
        file.parent.mkdir(exist_ok=True)
    try:
        stream.truncate(0)
        stream.write(f"{os.getpid()}\n")
        stream.flush()
        yield
    finally:
        stream.close()


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
