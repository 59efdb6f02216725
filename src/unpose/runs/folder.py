"""The folder of a run: one writer at a time, checkpoints to continue from, and files that are complete or absent.

While a run is in progress its folder contains ``.pieces``: ``begun.json`` (what the run is), and one file for each
finished stage of the work. The folder ``.pieces`` disappears in one step after all results are written. A folder with a
``config.toml`` that a run wrote and without ``begun.json`` holds a finished run. ``.lock`` is there while a process
changes the folder.

A run folder may come from a stranger: it is read and written through :class:`unpose.files.Folder`, which follows no
link in it, and only the files that a run writes are moved, replaced or removed.
"""

import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import unpose
from unpose.runs.settings import RunConfig, RunError, RunSettings, config_text, is_users_mistake, read_config
from unpose.runs.tables import csv_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.data import ImageSet
    from unpose.files import Folder

__all__ = ["LOCK", "RunFolder", "check_apart", "cluster_name", "fingerprint", "folder_lock"]

MEANS_FOLDER = "means"
LOCK = ".lock"
"""File that a process holds while it works in a folder of results; a killed process leaves it."""
_CHECKPOINTS = ".pieces"
_MARK = f"{_CHECKPOINTS}/begun.json"
_COMPLETE = ".complete"
"""Folder of complete new results, which only need to be moved into place."""
_NEW = ".new."
"""Beginning of the names of folders in which new results are written before they are complete."""
_RESULTS = (
    "labels.csv", "rejected.csv", "added.csv", "clusters.json", "images.json", "model.json", "model.safetensors",
    "pictures.safetensors", "report.html", "config.toml", "poses.csv", "mean.png", "error.png", "aligned.npy",
    "montage.png",
)  # fmt: skip
"""Every file that a run writes at the top of its folder, apart from log.txt."""
_PICTURE = re.compile(r"cluster-\d{3,}(-error)?\.png")
"""The files that a run writes into its folder of means."""
_LARGEST_TEXT = 2**24
_LARGEST_CHECKPOINT = 2**37
_PATIENCE = 10.0
"""Seconds that a reader waits while another process moves new results into place."""


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
    def scratch_folder(self) -> Path:
        """Where a run keeps files of the size of its images until it is finished."""
        return self.path / _CHECKPOINTS

    @contextmanager
    def _opened(self, inner: str = "") -> "Iterator[Folder | None]":
        """The opened run folder, or a folder in it; None where there is none."""
        if not self.path.is_dir():
            yield None
            return
        from unpose.files import Folder

        with Folder(self.path) as folder:
            if not inner:
                yield folder
            elif folder.has(inner):
                with folder.folder(inner) as opened:
                    yield opened
            else:
                yield None

    @contextmanager
    def reading(self) -> Iterator[Path]:
        """Yield the folder for decoded images; if the block raises and no run has begun here, leave no trace of it."""
        made_run = not self.path.exists()
        with self._opened(_CHECKPOINTS) as pieces:  # an error if it is a link
            made = pieces is None
        try:
            yield self.scratch_folder
        except BaseException:
            with self._opened() as folder:
                if folder is not None and made and not folder.has(_MARK):
                    with suppress(OSError):
                        folder.remove_tree(_CHECKPOINTS)
            if made_run:
                with suppress(OSError):
                    self.path.rmdir()
            raise

    @property
    def is_unfinished(self) -> bool:
        """Whether a run has begun here and has not ended."""
        with self._opened() as folder:
            return folder is not None and folder.has(_MARK)

    @property
    def has_checkpoints(self) -> bool:
        """Whether an unfinished run has completed a stage that it can continue from; an encoder is one."""
        with self._opened() as folder:
            return folder is not None and (
                folder.has("encoder/result.json") or any(
                    name.endswith(".safetensors") for name in folder.folder_names(_CHECKPOINTS)
                )
            )  # fmt: skip

    def finished_config(self) -> RunConfig | None:
        """What ``config.toml`` says about the finished run in this folder; None where there is no finished run."""
        with self._opened() as folder:
            if folder is None or folder.has(_MARK) or not folder.has("config.toml"):
                return None
            return read_config(self.path / "config.toml")

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
        with self._opened() as folder:
            if folder is not None:
                self._check_free(folder, force)

    def check_same(self, config: RunConfig, command: str, settings: RunSettings, images: "ImageSet") -> None:
        """Raise a :class:`RunError` if the finished run described by ``config`` answers another question."""
        before = {
            "kind": config.command, "version": config.about["version"], "input": config.about.get("fingerprint"),
            "settings": config.settings.decisive(), "files": config.about.get("files", {}),
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
        with _claimed(self.path) as folder:
            try:
                with folder.folder(_CHECKPOINTS, create=True) as pieces:
                    for name in pieces.names("images-*.npy"):  # those of a run that was stopped
                        if getattr(images.images, "path", None) != (self.scratch_folder / name).resolve():
                            pieces.remove(name)
                if had_encoder := folder.has("encoder"):
                    with folder.folder("encoder") as encoder:
                        encoder.check_no_links()
                is_new = self._prepare(folder, now, force)
                try:
                    yield
                except ValueError as error:
                    if is_new and is_users_mistake(error) and not self.has_checkpoints:
                        # The log goes first: without checkpoints beside it, it would look like a file of nobody.
                        folder.remove("log.txt")
                        if not had_encoder:
                            folder.remove_tree("encoder")
                        folder.remove_tree(_CHECKPOINTS)
                    raise
            finally:
                if not folder.has(_MARK):
                    with suppress(OSError):
                        folder.remove_tree(_CHECKPOINTS)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Be the only process that changes the finished run in this folder, from before it is read.

        A :class:`RunError` names the process that has been faster. A thread that holds the lock may take it again.
        """
        with _locked(self.path, again=True) as folder:
            _check_entries(folder)
            yield

    @contextmanager
    def replacing(self) -> Iterator[Path]:
        """Yield a folder for new results, which replace those of the finished run at the end of the block.

        Nothing is replaced if the block raises an error or the process is killed in it. If it is killed afterwards,
        while files are moved, :meth:`complete_replacement` moves the others. Files that no run wrote stay.
        """
        with _locked(self.path, again=True) as folder:
            _move_complete(folder)
            for stale in folder.names(f"{_NEW}*.tmp"):
                folder.remove_tree(stale)
            name = f"{_NEW}{secrets.token_hex(4)}.tmp"
            try:
                folder.folder(name, create=True).close()
                yield self.path / name
                folder.move(name, folder, _COMPLETE)  # from here on the new results count
                _move_complete(folder)
            finally:
                folder.remove_tree(name)

    def complete_replacement(self) -> None:
        """Move the new results of :meth:`replacing` into place, if a process was killed while it did so."""
        for pause in (0.01, 0.1, 1.0, _PATIENCE, None):
            with self._opened(_COMPLETE) as new:
                if new is None:
                    return
            from unpose.files import BusyError

            try:
                with _locked(self.path, again=True) as folder:
                    _move_complete(folder)
            except RunError as error:
                if pause is None or not isinstance(error.__cause__, BusyError):
                    raise  # else the other process is moving them
                time.sleep(pause)

    def state(self) -> dict[str, tuple[int, ...]]:
        """What tells one state of the folder from another: the identity of each file at its top."""
        with self._opened() as folder:
            return {} if folder is None else folder.state()

    def load(self, name: str) -> "dict[str, NDArray] | None":
        """The arrays of a finished stage; None where the stage is not finished."""
        import safetensors.numpy

        with self._opened(_CHECKPOINTS) as pieces:
            if pieces is None or not pieces.has(f"{name}.safetensors"):
                return None
            return safetensors.numpy.load(pieces.read(f"{name}.safetensors", _LARGEST_CHECKPOINT))

    def store(self, name: str, arrays: "dict[str, NDArray]") -> None:
        """Keep the arrays of a finished stage."""
        import numpy as np
        import safetensors.numpy

        from unpose.files import Folder

        contiguous = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
        with Folder(self.path) as folder:
            folder.write_chunks(f"{_CHECKPOINTS}/{name}.safetensors", [safetensors.numpy.save(contiguous)])

    def log(self, line: str) -> None:
        """Append a line with the time to ``log.txt``."""
        from unpose.files import Folder

        with Folder(self.path) as folder:
            folder.append("log.txt", f"{time.strftime('%Y-%m-%d %H:%M:%S')} {line}\n")

    def write_rejected(self, rejected: Sequence[tuple[str, str]]) -> None:
        """Write ``rejected.csv``: the images that could not be read, and why."""
        from unpose.files import Folder

        with Folder(self.path) as folder:
            folder.write_text("rejected.csv", csv_text(("path", "reason"), rejected))

    def write_config(
        self, settings: RunSettings, source: Path, images: "ImageSet", digest: str, *,
        facts: dict[str, Any] | None = None, omit: tuple[str, ...] = (),
    ) -> dict[str, Any]:  # fmt: skip
        """Write ``config.toml``, whose presence makes the run a finished one, and return what it says about the run.

        ``digest`` is the fingerprint of the images, ``facts`` are added to what every run states, and the settings
        named in ``omit`` are left out.
        """
        from unpose.files import Folder, printable_name

        about = {
            "version": unpose.__version__, "input": printable_name(str(source)), "canvas": images.canvas,
            "fingerprint": digest, "files": settings.checksums(),
        }  # fmt: skip
        about |= facts or {}
        with Folder(self.path) as folder:
            folder.write_text("config.toml", config_text(settings, about, omit))
        return about

    def finish(self) -> None:
        """Remove the checkpoints in one step, after all results are written."""
        from unpose.files import Folder

        with Folder(self.path) as folder:
            try:
                folder.move(_CHECKPOINTS, folder, f"{_CHECKPOINTS}.{os.getpid()}.tmp")
            except PermissionError:  # Windows renames no folder of a file that is open, such as that of the images
                folder.remove(_MARK)
        self.remove_leftovers()

    def remove_leftovers(self) -> None:
        """Remove checkpoints that a process renamed for removal in :meth:`finish`, and was killed before it removed.

        So is the file of a lock that no process holds.
        """
        with self._opened() as folder:
            if folder is None:
                return
            from unpose.files import BusyError

            for removed in folder.names(f"{_CHECKPOINTS}.*.tmp"):
                with suppress(OSError):  # another process may be removing them, too
                    folder.remove_tree(removed)
            if folder.has(LOCK):
                with suppress(BusyError, OSError), folder.lock(LOCK):
                    pass

    def _check_free(self, folder: "Folder", force: bool) -> None:
        """Protect a finished run unless forced, and always protect files that no run wrote."""
        if folder.has(_MARK):
            return
        if self.finished_config() is not None:
            if not force:
                raise RunError(f"{self.path} holds a finished run; give another folder, or --force to replace it")
        elif set(folder.names()) - {_CHECKPOINTS, LOCK}:
            why = ", and --force replaces nothing else" if force else ""
            raise RunError(f"{self.path} is not empty and holds no run{why}; give another folder")

    def _prepare(self, folder: "Folder", now: dict[str, Any], force: bool) -> bool:
        """Remove what a killed process left, and return whether the run is new rather than continued."""
        self._check_free(folder, force)  # another process may have finished between the first check and the lock
        with ExitStack() as opened:
            pieces = opened.enter_context(folder.folder(_CHECKPOINTS))
            means = [opened.enter_context(folder.folder(MEANS_FOLDER))] if folder.has(MEANS_FOLDER) else []
            for place in (folder, pieces, *means):
                for stale in place.names(".*.tmp"):
                    place.remove_tree(stale)
            is_new = force or not folder.has(_MARK)
            if is_new:
                for checkpoint in pieces.names("*.safetensors"):
                    pieces.remove(checkpoint)
                pieces.write_json("begun.json", now, indent=1)
                folder.remove("log.txt")
            elif difference := _difference(_begun(pieces), now):
                raise RunError(
                    f"{self.path} holds an unfinished run that was begun {difference}. Repeat that command, give "
                    "another folder, or --force to begin again"
                )
            for name in _RESULTS:
                folder.remove(name)
            for place in means:
                for picture in place.names("cluster-*.png"):
                    place.remove(picture)
        folder.remove_empty(MEANS_FOLDER)  # so that a run that fails leaves the folder as empty as it found it
        return is_new


def _begun(pieces: "Folder") -> dict[str, Any]:
    """What an unfinished run is."""
    begun = pieces.read_json("begun.json", _LARGEST_TEXT)
    if not isinstance(begun, dict) or not isinstance(begun.get("settings", {}), dict):
        raise RunError(f"{pieces.path / 'begun.json'} does not describe a run; --force begins again")
    return begun


def _check_entries(folder: "Folder") -> None:
    """Raise an error if something that a run writes is a link, before anything is changed."""
    for name in (*_RESULTS, "log.txt"):
        if folder.has(name):
            with folder.open(name):
                pass
    if folder.has(MEANS_FOLDER):
        folder.folder(MEANS_FOLDER).close()


def _move_complete(folder: "Folder") -> None:
    """Move complete new results into place, if there are any: only files that a run writes."""
    if not folder.has(_COMPLETE):
        return
    kept = "means.txt"  # which pictures the new results have, also after some of them were moved
    with folder.folder(_COMPLETE) as new:
        pictures = [name for name in new.folder_names(MEANS_FOLDER) if not name.endswith(".tmp")]
        # A process that was killed leaves temporary files, which are not moved.
        files = [name for name in new.names() if name not in (MEANS_FOLDER, kept) and not name.endswith(".tmp")]
        foreign = [name for name in files if name not in _RESULTS]
        foreign += [f"{MEANS_FOLDER}/{name}" for name in pictures if not _PICTURE.fullmatch(name)]
        if foreign:
            raise RunError(
                f"{new.path} holds {foreign[0]!r}, which no run writes, so nothing was moved; if the run comes from "
                f"somebody else, do not trust it, or remove {_COMPLETE}"
            )
        _check_entries(folder)
        if not new.has(kept) and (files or pictures):  # else it is a rest that version 0.2 left, all is in place
            new.write_text(kept, "\n".join(pictures))
        names = new.read_text(kept, _LARGEST_TEXT).split("\n") if new.has(kept) else None
        for name in [*files, *(f"{MEANS_FOLDER}/{name}" for name in pictures)]:
            new.move(name, folder, name)
    with folder.folder(MEANS_FOLDER, create=True) as means:
        for picture in means.names("cluster-*.png"):
            if names is not None and picture not in names:
                means.remove(picture)
    # In one step, because a rest of it without means.txt would be taken for new results without means.
    removed = f"{_NEW}{secrets.token_hex(4)}.tmp"
    folder.move(_COMPLETE, folder, removed)
    folder.remove_tree(removed)


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


def final_place(path: Path) -> Path:
    """The folder in which results written at a path will lie, which may be that of :meth:`RunFolder.replacing`."""
    return path.parent if path.name.startswith(_NEW) else path


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
        "files": settings.checksums(),
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
    for name, digest in now["files"].items():
        known = before.get("files")  # runs of older versions have none
        if name not in others and isinstance(known, dict) and known.get(name, digest) != digest:
            return f"with another content of --{name} {now['settings'][name]}: the file has changed since"
    if not others and before.get("input") != now["input"]:
        return "with other images: the input has changed since"
    return ", ".join(f"with --{name.replace('_', '-')} {was}, not {is_now}" for name, (was, is_now) in others.items())


@contextmanager
def folder_lock(path: Path) -> "Iterator[Folder]":
    """Be the only process that works in a folder of results, which is yielded, or raise a :class:`RunError`.

    The folder is created, and removed if nothing is in it. No link may be in it, because files are written to it by
    their paths.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place, folder_lock(Path(place) / "out") as folder:
    ...     folder.names()
    ['.lock']
    """
    with _claimed(path) as folder:
        folder.check_no_links()
        yield folder


@contextmanager
def _claimed(path: Path) -> "Iterator[Folder]":
    """Create a folder and hold its lock; it is removed if nothing is in it at the end."""
    try:
        with _locked(path, create=True) as folder:
            yield folder
    finally:
        with suppress(OSError):  # something is in it
            path.rmdir()


@contextmanager
def _locked(path: Path, *, create: bool = False, again: bool = False) -> "Iterator[Folder]":
    """Open a folder and hold its lock, or raise a :class:`RunError`; ``again`` if this thread may hold it already."""
    from unpose.files import BusyError, Folder

    with ExitStack() as held:
        try:
            folder = held.enter_context(Folder(path, create=create))
            held.enter_context(folder.lock(LOCK, again=again))
        except BusyError as error:
            raise RunError(str(error)) from error
        except OSError as error:
            raise OSError(f"{path} cannot be written: {error.strerror}") from error
        yield folder
