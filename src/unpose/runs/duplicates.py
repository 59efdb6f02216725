"""The folder of a search for duplicates: what is known of every photograph, the matches, and the results.

The search can be stopped at any time and continues where it was. A later search in the same folder reads only files
that are new or were changed, and compares only pairs with at least one of them. Sources are only read.
"""

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unpose.dedupe import (
    FRAME_SIDE,
    Comparison,
    Entries,
    Match,
    Quality,
    Region,
    check,
    choose_keeper,
    chunks,
    describe,
    duplicate_sets,
    find_candidates,
    grey_frame,
    sharpness,
)
from unpose.files import Folder, printable_name
from unpose.files.formats import as_unreadable_error, decoder_limits, read_grey
from unpose.files.listing import list_images, list_paths

__all__ = ["DuplicateSearch", "DuplicateSet", "Duplicates", "Photograph", "Relation", "holds_search"]

_VERSION = 3
"""Of the stored files; others are computed anew."""
_LARGEST_FILE = 2**33
_REMEMBERED = 20_000
"""Grey frames that are kept in memory from reading to comparing: at most 25 KB each."""
_STORED_PROBABILITY = 0.5
"""Matches that are less probable are not kept."""
_MANY_FRAMES = "compared by its bytes only"

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Photograph:
    """A file, and what is known of the photograph in it."""

    path: Path
    name: str  # relative to the input, safe to print
    size: int  # bytes
    modified: int  # when it was last changed, in nanoseconds
    height: int  # of the photograph, upright; 0 if it was not read
    width: int
    sharpness: float  # from unpose.dedupe.sharpness
    reason: str  # why it was not read; empty for good files

    @property
    def key(self) -> str:
        """Says whether a file is still the one that was read."""
        return f"{self.path}|{self.size}|{self.modified}"


@dataclass(frozen=True)
class Relation:
    """Two photographs of a set that are the same."""

    one: Photograph
    two: Photograph
    exact: bool  # whether their files have the same bytes
    probability: float  # that they show the same picture
    pose: NDArray  # (3, 3), brings the second photograph onto the first, in pixels of both
    comparison: Comparison | None  # of their pixels; None for the same bytes


@dataclass(frozen=True)
class DuplicateSet:
    """Photographs that are the same, and which of them to keep."""

    keep: Photograph
    reason: str  # why this one is kept
    others: list[Photograph]
    relations: list[Relation]  # pairs that were found, most probable first


@dataclass
class Duplicates:
    """The result of a search."""

    sets: list[DuplicateSet] = field(default_factory=list)
    photographs: int = 0  # files that were compared
    read: int = 0  # files that were read in this run; the others were known
    links: list[str] = field(default_factory=list)  # symbolic links, which are left alone
    names: list[tuple[str, str]] = field(default_factory=list)  # second names (hard links), and the first ones
    rejected: list[tuple[str, str]] = field(default_factory=list)  # files that could not be read, and why


def holds_search(folder: Path) -> bool:
    """Whether a folder holds a search for duplicates, finished or stopped.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as name:
    ...     holds_search(Path(name))
    False
    """
    index = _names(folder, "index", "*")  # the first thing that a search writes
    is_begun = bool(index) and all(name.endswith((".npz", ".tmp")) for name in index)
    return is_begun or "searched" in _read_json(folder, "state.json")


@dataclass(frozen=True)
class DuplicateSearch:
    """A search for duplicates whose progress is kept in a folder.

    Parameters
    ----------
    folder : Path
        Where the search keeps what it knows.
    jobs : int, optional
        Threads that read files; as many as there are processors by default.
    block : int, default 256
        Files that are read before what is known of them is stored.

    Examples
    --------
    >>> import tempfile
    >>> from unpose.files import write_image
    >>> with tempfile.TemporaryDirectory() as name:
    ...     picture = np.random.default_rng(0).random((12, 16)).repeat(6, 0).repeat(6, 1)
    ...     _ = write_image(f"{name}/a.png", picture), write_image(f"{name}/b.png", np.rot90(picture))
    ...     found = DuplicateSearch(Path(name) / "out").run([Path(name)])
    >>> [(each.keep.name, [other.name for other in each.others]) for each in found.sets]
    [('a.png', ['b.png'])]
    """

    folder: Path
    jobs: int | None = None
    block: int = 256

    def run(
        self,
        paths: Sequence[Path],
        *,
        threshold: float = 0.95,
        exclude: Sequence[Path] = (),
        progress: Progress | None = None,
    ) -> Duplicates:
        """Search the photographs in some files and folders.

        Parameters
        ----------
        paths : sequence of Path
            Files and folders.
        threshold : float, default 0.95
            Least probability of duplicates.
        exclude : sequence of Path
            Folders that are not searched; the folder of the search never is.
        progress : callable, optional
            Called as ``progress(stage, done, total)``.

        Returns
        -------
        Duplicates
        """
        report = progress or (lambda stage, done, total: None)
        result = Duplicates()
        files = self._list(paths, [self.folder, *exclude], result)
        known = self._load_index()
        with decoder_limits():
            frames: dict[str, NDArray] = {}
            photographs, entries = self._describe(files, known, frames, result, report)
            exact = _same_bytes(photographs)
            good = [k for k, photograph in enumerate(photographs) if not photograph.reason]
            first = sorted(set(good) - {k for copies in exact for k in copies[1:]})
            matches = self._match(photographs, entries, frames, np.array(first, int), report)
        result.photographs = len(good)
        result.rejected += [
            (each.name, each.reason) for each in photographs if each.reason and _MANY_FRAMES not in each.reason
        ]
        result.sets = _sets(photographs, exact, [match for match in matches if match.probability >= threshold])
        return result

    # Listing and reading ---------------------------------------------------------------------------------------------

    def _list(self, paths: Sequence[Path], excluded: Sequence[Path], result: Duplicates) -> list[Photograph]:
        """The files to look at: no links, and one name of each file."""
        for path in paths:
            if not path.exists():
                raise ValueError(f"{printable_name(str(path))} does not exist; give folders or image files")
        listing = list_images(paths[0]) if len(paths) == 1 else list_paths(paths)
        result.rejected += listing.rejected
        outside = [Path(os.path.realpath(path)) for path in excluded]
        seen: dict[tuple[int, int], str] = {}
        real_parents: dict[Path, Path] = {}
        files: list[Photograph] = []
        for listed in listing.files:
            path = listed.path.absolute()
            if path.is_symlink():
                result.links.append(listed.name)
                continue
            if path.parent not in real_parents:
                real_parents[path.parent] = Path(os.path.realpath(path.parent))
            if any(real_parents[path.parent].is_relative_to(folder) for folder in outside):
                continue
            try:
                status = path.stat()
            except OSError as error:
                result.rejected.append((listed.name, str(as_unreadable_error(error))))
                continue
            if not path.is_file():
                continue
            identity = (status.st_dev, status.st_ino)
            if identity in seen:
                if seen[identity] != listed.name:
                    result.names.append((listed.name, seen[identity]))
                continue
            seen[identity] = listed.name
            files.append(Photograph(path, listed.name, status.st_size, status.st_mtime_ns, 0, 0, 0.0, ""))
        return files

    def _describe(
        self,
        files: list[Photograph],
        known: dict[str, tuple[Photograph, Entries]],
        frames: dict[str, NDArray],
        result: Duplicates,
        report: Progress,
    ) -> tuple[list[Photograph], Entries]:
        """Read the files that are not known, and put all together; owners are indices of the photographs."""
        unknown = [each for each in files if each.key not in known]
        with ThreadPoolExecutor(self._workers) as pool:
            for start in range(0, len(unknown), self.block):
                known |= self._read_block(unknown[start : start + self.block], frames, pool)
                report("reading", min(start + self.block, len(unknown)), len(unknown))
        result.read = len(unknown)
        photographs, parts = [], []
        for k, each in enumerate(files):
            found, entries = known[each.key]
            photographs.append(replace(found, name=each.name))
            parts.append(replace(entries, owners=np.full(len(entries.regions), k)))
        return photographs, _joined(parts)

    def _read_block(
        self, files: list[Photograph], remembered: dict[str, NDArray], pool: ThreadPoolExecutor
    ) -> dict[str, tuple[Photograph, Entries]]:
        """Read some files and store what was found; the first frames are remembered, so as not to read them twice."""
        photographs, frames = [], []
        for each, (grey, shape, reason) in zip(files, pool.map(_read, [each.path for each in files]), strict=True):
            detail = 0.0 if grey is None else sharpness(grey)
            photographs.append(replace(each, height=shape[0], width=shape[1], sharpness=detail, reason=reason))
            frames.append(grey)
            if grey is not None and len(remembered) < _REMEMBERED:
                remembered[each.key] = grey
        good = [k for k, frame in enumerate(frames) if frame is not None]
        entries = describe([frame for frame in frames if frame is not None])
        entries = replace(entries, owners=np.array(good, int)[entries.owners])
        about = [{**vars(each), "path": str(each.path)} for each in photographs]
        arrays: dict[str, Any] = {
            "version": _VERSION, "about": np.frombuffer(json.dumps(about).encode(), np.uint8), "owners": entries.owners,
            "regions": np.array([astuple(region) for region in entries.regions]).reshape(-1, 6),
            "patches": entries.patches, **entries.vectors,
        }  # fmt: skip
        stream = io.BytesIO()
        np.savez(stream, **arrays)
        name = hashlib.sha256("".join(each.key for each in files).encode(errors="surrogateescape")).hexdigest()[:16]
        with Folder(self.folder, create=True) as folder, folder.folder("index", create=True) as index:
            index.write_chunks(f"{name}.npz", [stream.getvalue()])
        return _by_key(photographs, entries)

    def _load_index(self) -> dict[str, tuple[Photograph, Entries]]:
        """Everything that earlier searches stored; a damaged file counts as missing."""
        known: dict[str, tuple[Photograph, Entries]] = {}
        for name in _names(self.folder, "index", "*.npz"):
            try:
                with Folder(self.folder) as folder:
                    content = folder.read(f"index/{name}", _LARGEST_FILE)
                with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                    if int(stored["version"]) != _VERSION:
                        continue
                    about = json.loads(stored["about"].tobytes())
                    photographs = [Photograph(**{**each, "path": Path(each["path"])}) for each in about]
                    regions = [Region(*map(float, row)) for row in stored["regions"]]
                    vectors = {kind: stored[kind] for kind in ("whole", "parts")}
                    entries = Entries(stored["owners"], regions, stored["patches"], vectors)
            except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
                continue
            known |= _by_key(photographs, entries)
        return known

    @property
    def _workers(self) -> int:
        return min(self.jobs or os.cpu_count() or 1, 16)

    # Matching --------------------------------------------------------------------------------------------------------

    def _match(
        self,
        photographs: list[Photograph],
        entries: Entries,
        frames: dict[str, NDArray],
        used: NDArray,
        report: Progress,
    ) -> list[Match]:
        """Matches among the photographs of some indices: those that are known, and those of new photographs."""
        by_key = {photographs[k].key: int(k) for k in used}
        state = _read_json(self.folder, "state.json")
        searched = set(state.get("searched", ())) if state.get("version") == _VERSION else set()
        matches = [
            match for stored in (state["matches"] if searched else ())
            if (match := _match_from(stored, by_key)) is not None
        ]  # fmt: skip
        rows = np.flatnonzero(np.isin(entries.owners, used))
        is_new = np.array([photographs[owner].key not in searched for owner in entries.owners[rows]], bool)
        if is_new.any():
            some = entries if len(rows) == len(entries.owners) else Entries(
                entries.owners[rows], [entries.regions[row] for row in rows], entries.patches[rows],
                {name: vectors[rows] for name, vectors in entries.vectors.items()},
            )  # fmt: skip
            candidates = find_candidates(some.vectors, some.owners, is_new=is_new, progress=report)
            digest = hashlib.sha256(f"{_VERSION} {''.join(by_key)}".encode(errors="surrogateescape"))
            digest.update(candidates.queries.tobytes() + candidates.entries.tobytes())
            parts = chunks(some.owners, candidates)
            with ThreadPoolExecutor(self._workers) as pool:

                def read(which: Sequence[int]) -> list[NDArray | None]:
                    missing = [k for k in which if photographs[k].key not in frames]
                    found = pool.map(_read, [photographs[k].path for k in missing])  # None if it changed meanwhile
                    again = {k: grey for k, (grey, *_) in zip(missing, found, strict=True)}
                    return [again[k] if k in again else frames[photographs[k].key] for k in which]

                for number, part in enumerate(parts):
                    name = f"checked/{digest.hexdigest()[:16]}-{number}-of-{len(parts)}.json"
                    stored = _read_json(self.folder, name)
                    if "matches" not in stored:
                        found = [match for match in check(some, part, read) if match.probability >= _STORED_PROBABILITY]
                        stored = {"matches": [_as_json(match, photographs) for match in found]}
                        with Folder(self.folder, create=True) as folder:
                            folder.folder("checked", create=True).close()
                            folder.write_text(name, json.dumps(stored))
                    matches += [match for each in stored["matches"] if (match := _match_from(each, by_key)) is not None]
                    report("comparing", number + 1, len(parts))
        stored_state = {
            "version": _VERSION, "searched": sorted(by_key),
            "matches": [_as_json(match, photographs) for match in matches],
        }  # fmt: skip
        with Folder(self.folder, create=True) as folder:
            folder.write_text("state.json", json.dumps(stored_state))
            for name in folder.folder_names("checked", "*.json"):
                folder.remove(f"checked/{name}")
        return matches


def _read(path: Path) -> tuple[NDArray | None, tuple[int, int], str]:
    """The grey frame of a file, (h, w) uint8, its height and width, and why it could not be read if it could not."""
    try:
        frame, header = read_grey(path, FRAME_SIDE)
        if frame is None:
            return None, (0, 0), f"holds {len(header.sizes):,} images and is {_MANY_FRAMES}"
        grey = grey_frame(frame)
        grey = grey if grey.dtype == np.uint8 else (grey * 255 + 0.5).astype(np.uint8)
        return grey, header.sizes[0], ""
    except Exception as error:  # decoders raise any exception; Ctrl-C is not an Exception and passes
        return None, (0, 0), str(as_unreadable_error(error))


def _by_key(photographs: list[Photograph], entries: Entries) -> dict[str, tuple[Photograph, Entries]]:
    """The entries of each photograph by its key."""
    found = {}
    ends = np.searchsorted(entries.owners, np.arange(len(photographs) + 1))
    for k, photograph in enumerate(photographs):
        part = slice(ends[k], ends[k + 1])
        vectors = {name: vectors[part] for name, vectors in entries.vectors.items()}
        found[photograph.key] = (
            photograph, Entries(entries.owners[part], entries.regions[part], entries.patches[part], vectors)
        )  # fmt: skip
    return found


def _joined(parts: list[Entries]) -> Entries:
    if not parts:
        return describe([])
    return Entries(
        np.concatenate([part.owners for part in parts]), [region for part in parts for region in part.regions],
        np.concatenate([part.patches for part in parts]),
        {name: np.concatenate([part.vectors[name] for part in parts]) for name in parts[0].vectors},
    )  # fmt: skip


def _same_bytes(photographs: list[Photograph]) -> list[list[int]]:
    """Indices of the files that have the same bytes, in sets. Only files of the same size are read."""
    by_size: dict[int, list[int]] = {}
    for k, each in enumerate(photographs):
        by_size.setdefault(each.size, []).append(k)
    by_content: dict[tuple[int, bytes], list[int]] = {}
    for size, members in by_size.items():
        for k in members if len(members) > 1 and size > 0 else ():
            try:
                with photographs[k].path.open("rb") as stream:
                    content = hashlib.file_digest(stream, "sha256").digest()
            except OSError:
                continue
            by_content.setdefault((size, content), []).append(k)
    return [members for members in by_content.values() if len(members) > 1]


def _as_json(match: Match, photographs: list[Photograph]) -> dict[str, Any]:
    return {
        "one": photographs[match.one].key, "two": photographs[match.two].key, "pose": match.pose.tolist(),
        "comparison": vars(match.comparison), "probability": match.probability,
        "region_one": vars(match.region_one), "region_two": vars(match.region_two),
    }  # fmt: skip


def _match_from(stored: dict[str, Any], by_key: dict[str, int]) -> Match | None:
    """A stored match, unless one of its files is gone or was changed."""
    if stored["one"] not in by_key or stored["two"] not in by_key:
        return None
    return Match(
        by_key[stored["one"]], by_key[stored["two"]], np.array(stored["pose"]), Comparison(**stored["comparison"]),
        stored["probability"], Region(**stored["region_one"]), Region(**stored["region_two"]),
    )  # fmt: skip


def _names(path: Path, name: str, pattern: str) -> list[str]:
    if not path.is_dir():
        return []
    with Folder(path) as folder:
        return folder.folder_names(name, pattern)


def _read_json(path: Path, name: str) -> dict[str, Any]:
    try:
        with Folder(path) as folder:
            found = folder.read_json(name, _LARGEST_FILE)
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _sets(photographs: list[Photograph], exact: list[list[int]], matches: list[Match]) -> list[DuplicateSet]:
    """Join what was found to sets, and choose which photograph of each to keep."""
    relations: dict[tuple[int, int], Relation] = {}
    areas = {k: float(each.height * each.width) for k, each in enumerate(photographs)}
    framed: dict[int, float] = {}
    for match in matches:
        for k, region in ((match.one, match.region_one), (match.two, match.region_two)):
            pixels = 4 * region.half_width * region.half_height * _frame_scale(photographs[k]) ** 2
            framed[k] = max(framed.get(k, 0.0), min(pixels, areas[k]))
        scales = [_frame_scale(photographs[k]) for k in (match.one, match.two)]
        pose = np.diag([scales[0], scales[0], 1]) @ match.pose @ np.diag([1 / scales[1], 1 / scales[1], 1])
        relations[match.one, match.two] = Relation(
            photographs[match.one], photographs[match.two], False, match.probability, pose, match.comparison
        )
    for copies in exact:
        for k in copies[1:]:
            relations[copies[0], k] = Relation(photographs[copies[0]], photographs[k], True, 1.0, np.eye(3), None)
            framed[k] = framed.get(copies[0], areas[copies[0]])
    found, of_first = [], dict[int, list[Relation]]()
    for (one, _), relation in relations.items():
        of_first.setdefault(one, []).append(relation)
    for members in duplicate_sets(list(relations)):
        qualities = [
            Quality(
                framed.get(k, areas[k]), photographs[k].sharpness, photographs[k].modified / 1e9, photographs[k].name
            )
            for k in members
        ]
        best, reason = choose_keeper(qualities)
        inside = [relation for k in members for relation in of_first.get(k, ())]
        others = [photographs[k] for k in members if k != members[best]]
        inside.sort(key=lambda relation: (-relation.probability, relation.one.name, relation.two.name))
        found.append(DuplicateSet(photographs[members[best]], reason, others, inside))
    return found


def _frame_scale(photograph: Photograph) -> float:
    """Pixels of the photograph per pixel of its grey frame."""
    return max(1.0, max(photograph.height, photograph.width) / FRAME_SIDE)
