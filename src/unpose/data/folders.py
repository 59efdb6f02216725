"""Reads a folder, a stack or a list of files into one array of images; unreadable files are listed with a reason."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from unpose.data.decoding import (
    Colour,
    DecodedFrame,
    Source,
    decode_file,
    frame_sizes,
    header_or_error,
    is_coloured,
    stack_frames,
)
from unpose.files import ImagesInPieces, UnreadableError, in_bytes, printable_name, readable_bytes, store_images
from unpose.files.formats import Header, decoder_limits
from unpose.files.listing import ListedFile, Listing, list_images, list_paths, split_array_name
from unpose.images import LARGEST_DEFAULT_CANVAS, choose_canvas

Progress = Callable[[str, int, int], None]
"""Called with a stage, the amount done and the total."""

DEFAULT_MEMORY = 4 * 2**30
_IN_MEMORY = 2**28
"""Images of at most so many bytes are kept in memory, also if they may be kept in a file."""
_FRAMES_AT_ONCE = 2048
"""Images that are decoded before they are written to the file."""

_MONTH = (
    "(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    "|nov(?:ember)?|dec(?:ember)?)"
)
_TIME = r"(?:[T _-]\d{2}(?:[-_.:h]?\d{2}){0,2})?"
_DATE_OR_RUN = re.compile(
    r"(?:19|20)\d{2}(?:([-_. ]?)(?:0?[1-9]|1[0-2])(?:\1(?:0?[1-9]|[12]\d|3[01]))?)?" + _TIME  # 2024-01-03, 20240103
    + r"|\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])" + _TIME  # 240103
    + r"|\d{1,2}[-_. ]\d{1,2}[-_. ](?:\d{2}|\d{4})" + _TIME  # 3.1.2024
    + rf"|(?:\d{{1,4}}[-_. ]*)?{_MONTH}(?:[-_., ]*\d{{1,4}}){{0,2}}"  # 3 January 2024, Jan 2024, January 3, 2024
    + r"|(?:run|session|batch|scan|series|acquisition)[-_. ]*\d+",
    re.IGNORECASE,
)  # fmt: skip
"""Folder names that tell when images were taken, and not what they show."""
_DAY = (
    r"(?:(?:19|20)\d{2}[-_. ]?(?:0[1-9]|1[0-2])[-_. ]?(?:0[1-9]|[12]\d|3[01])|\d{1,2}[-_. ]\d{1,2}[-_. ](?:19|20)\d{2})"
)
_DAY_BESIDE_OTHERS = re.compile(rf"^{_DAY}{_TIME}[-_., ]+|[-_., ]+{_DAY}{_TIME}$")
"""The date of a day before or after other words in the name of a folder."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


NAMED_BY_DATE = "Folders are named by date or by run, so they are not taken as classes"
"""Note on folders that say when images were made, not what they show."""


class InputError(ValueError):
    """The input as a whole cannot be used. The message says why and what to do."""


@dataclass(frozen=True)
class ImageSet:
    """Images of one size, and where each came from.

    Parameters
    ----------
    images : ndarray of float32, shape (n, h, w) or (n, h, w, 3)
        ``uint8`` and ``uint16`` pixels scaled to [0, 1], others as stored. An :class:`unpose.files.ImagesInPieces` if
        they were kept in a file.
    names : list of str
        Names relative to the input, safe to print; ``FILE[k]`` for frame k of a file with several.
    paths : list of Path
        The file of each image; empty for images that were given as arrays.
    frames : ndarray of int, shape (n,)
        The index of each image in its file.
    labels : list of str or None
        The class folder of each image, if there is one folder per class. Folders named by date or run are no classes.
    rejected : list of (str, str)
        Name and reason of every file or frame that could not be read.
    canvas : str
        How the images were brought to one size, in a sentence.
    source_shape : (int, int) or None
        Height and width as stored, if all images had the same.
    notes : list of str
        What else a reader should know, such as files ignored or bits lost.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(folder + "/stack.npy", np.zeros((2, 31, 17)))
    ...     read_folder(folder).names
    ['stack.npy[0]', 'stack.npy[1]']
    """

    images: Any
    names: list[str]
    paths: list[Path]
    frames: NDArray
    labels: list[str] | None
    rejected: list[tuple[str, str]]
    canvas: str
    source_shape: tuple[int, int] | None
    notes: list[str]

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: Any) -> NDArray:
        """Some of the images. With this and ``__array__``, what was read is taken wherever an array of images is."""
        return self.images[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray:
        return np.array(self.images[:], dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        size = "x".join(map(str, self.images.shape[1:]))
        return f"ImageSet({len(self):,} images of {size}, {len(self.rejected):,} not read)"

    def _repr_html_(self) -> str:
        """Some of the images with their names, and what could not be read, for notebooks."""
        from unpose.report import evenly_spaced, pictures_html, text_html

        shown = evenly_spaced(len(self), 12)
        height, width = self.images.shape[1:3]
        lines = [f"{len(self):,} images of {height} x {width} pixels. {self.canvas}", *self.notes]
        lines += [f"not read: {name} {reason}" for name, reason in self.rejected[:5]]
        if len(self.rejected) > 5:
            lines.append(f"... and {len(self.rejected) - 5:,} more that could not be read")
        return text_html("\n".join(lines)) + pictures_html(self.images[shown], [self.names[i] for i in shown])


def read_folder(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    size: int | None = None,
    memory: int | str | None = None,
    colour: Colour = "auto",
    min_images: int = 2,
    pieces: bool | str | os.PathLike[str] = False,
    n_jobs: int | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """Read the images of a folder, of a file with several, or of a list of files, and bring them to one size.

    Parameters
    ----------
    source : str, path, or list of these
        A folder (with all folders below it), a picture (PNG, JPEG, WebP, GIF, BMP, PPM, HEIC, TIFF), or a stack
        (multi-page TIFF, animation, ``.npy``, ``.npz``, MRC, STAR, HDF5, Zarr, FITS or DICOM). ``FILE::NAME`` selects
        one array of a file that holds several. The format is recognised by the content of the file, not by its name.
        A list gives the images in its order. :func:`unpose.images.onto_one_canvas` does the same for arrays.
    size : int, optional
        Longer side of the images in pixels. By default the median of the longer sides, at most 128; see
        :mod:`unpose.images.canvas` for the rule.
    memory : int or str, optional
        Memory budget in bytes, or as ``"4GB"``; 4 GiB by default. Half of it is for the images, half for decoding
        files. Declared sizes are checked against it before anything is read.
    colour : {"auto", "grey", "rgb"}, default "auto"
        "auto" gives colour only if at least one image is coloured.
    min_images : int, default 2
        How many images must be readable. One is enough for prediction, not for comparison.
    pieces : bool, str or path, default False
        True keeps images that take more than 256 MB, or a quarter of the budget, in a temporary file; a path is the
        folder of that file, which then stays. They are read from it in pieces, and need not fit into the memory.
    n_jobs : int, optional
        Number of threads; the result does not depend on it.
    progress : callable, optional
        Called with a stage, the amount done and the total.

    Returns
    -------
    ImageSet
        ``uint8`` and ``uint16`` pixels are scaled to [0, 1], others are as stored. Transparent pixels are blended over
        black, or over white if the visible part is nearly black. Every page of a TIFF and every frame of an animation
        is an image. Three channels that a TIFF declares are one colour image; a TIFF with another number of channels
        is rejected. Labels are the first folders below ``source`` if every image is in one of at least two, unless
        most of their names are dates or numbered runs, or differ in the date only.

    Raises
    ------
    InputError
        If too few images can be read, or they do not fit the memory budget.

    Notes
    -----
    Every file is opened twice: for its header, then for its pixels, which are scaled immediately. Memory is that of the
    result and of the files that are open. Files are never written to.

    Examples
    --------
    >>> import tempfile
    >>> from unpose.files import write_image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("a", "b"):
    ...         _ = write_image(f"{folder}/{name}.png", np.full((31, 17), 0.5))
    ...     read_folder(folder).images.shape, len(read_folder([f"{folder}/a.png", f"{folder}/b.png"]))
    ((2, 31, 17), 2)
    """
    budget = DEFAULT_MEMORY if memory is None else in_bytes(memory)
    _check_options(size, budget, colour, n_jobs, min_images)
    report = progress if progress is not None else _no_progress
    is_list = not isinstance(source, str | os.PathLike)
    given: list[Any] = [source] if isinstance(source, str | os.PathLike) else list(source)
    for k, item in enumerate(given):
        if not isinstance(item, str | os.PathLike):
            raise TypeError(
                f"the list must hold names of files and folders, got an object of type {type(item).__name__} at "
                f"{k}; unpose.images.onto_one_canvas brings arrays of different sizes to one"
            )
    paths_given = [Path(item) for item in given]
    shown = "the list" if is_list else printable_name(str(source))
    if not is_list and split_array_name(paths_given[0]) is None:
        raise InputError(f"{shown} does not exist; give a folder of images, a stack or an array file")
    workers = min(n_jobs or os.cpu_count() or 1, 16)
    with decoder_limits():
        listing = list_paths(paths_given) if is_list else list_images(paths_given[0])
        rejected = list(listing.rejected)
        try_header = partial(header_or_error, side=size or LARGEST_DEFAULT_CANVAS)
        headers = _in_threads(workers, try_header, listing.files, "headers", report)
        readable = _readable(listing.files, headers, budget, rejected)
        if pieces is False:
            readable = _fitting(readable, size, colour, budget, rejected)
        sizes = frame_sizes(readable)
        if len(sizes) < min_images:
            raise _too_few(shown, len(sizes), min_images, listing, rejected)
        shape, rule = choose_canvas(sizes, size)
        channels = _channels(readable, colour)
        stored = pieces is not False and is_kept_in_file(len(sizes), shape, channels, budget)
        if not stored:
            _check_budget(shown, len(sizes), shape, channels, budget)
        workers = max(1, min(workers, (budget // 2) // max(header.cost for _, header in readable)))
        kept: list[DecodedFrame] = []
        if stored:
            folder = None if isinstance(pieces, bool) else pieces
            images: Any = _store(readable, kept, rejected, shape, colour, workers, report, folder)
        else:
            try_frames = partial(decode_file, shape=shape, colour=colour)
            results = _in_threads(workers, try_frames, [found for found, _ in readable], "images", report)
            for source_file, result in zip(readable, results, strict=True):
                _keep(source_file, result, kept, rejected)
    if len(kept) < min_images:
        raise _too_few(shown, len(kept), min_images, listing, rejected)
    # A list defines an order of inputs, a STAR file one of rows; the sort is stable for all others.
    order = sorted(range(len(kept)), key=lambda k: (kept[k].found.place, kept[k].row))
    if stored and order != list(range(len(kept))):
        images = images.take(np.array(order))
    kept = [kept[k] for k in order]
    names, paths = [frame.name for frame in kept], [frame.found.path for frame in kept]
    numbers, labels = np.array([frame.number for frame in kept]), _labels([frame.found for frame in kept])
    images = images if stored else stack_frames(kept, shape, colour)
    source_shape = sizes[0] if len(set(sizes)) == 1 else None
    notes = _notes(listing, readable)
    if labels is not None and _are_told_by_date(set(labels)):
        notes.append(NAMED_BY_DATE)
        labels = None
    return ImageSet(images, names, paths, numbers, labels, rejected, rule, source_shape, notes)


def _keep(
    source: Source, result: tuple[list[DecodedFrame], list[tuple[int | None, str]]], kept: list[DecodedFrame],
    rejected: list[tuple[str, str]],
) -> None:  # fmt: skip
    """Name the frames of a file and add them to ``kept``, and those that could not be read to ``rejected``."""
    (found, header), (good, bad) = source, result
    several = found.row_of_frame is not None or header.count > 1
    for frame in good:
        frame.name = f"{found.name}[{frame.number}]" if several else found.name
    kept += good
    for number, reason in bad:
        rejected.append((f"{found.name}[{number}]" if several and number is not None else found.name, reason))


def _store(
    readable: Sequence[Source], kept: list[DecodedFrame], rejected: list[tuple[str, str]], shape: tuple[int, int],
    colour: Colour, workers: int, report: Progress, folder: str | os.PathLike[str] | None,
) -> ImagesInPieces | None:  # fmt: skip
    """Decode all images into one file, a group of files or a part of a stack at a time; None if none can be read.

    Whether the images are coloured must be known before the first is written: a sample of them decides.
    """
    if colour == "auto":
        colour = "rgb" if is_coloured(readable, shape) else "grey"
    total = len(frame_sizes(readable))
    try_frames = partial(decode_file, shape=shape, colour=colour)

    def decoded() -> Iterator[NDArray]:
        for group in _groups(readable):
            frames: list[DecodedFrame] = []
            results = _in_threads(workers, try_frames, [found for found, _ in group], "images", _no_progress)
            for source, result in zip(group, results, strict=True):
                _keep(source, result, frames, rejected)
            if frames:
                yield stack_frames(frames, shape, colour)
                kept.extend(frames)
            report("images", min(total, len(kept) + len(rejected)), total)

    try:
        return store_images(decoded(), folder)
    except ValueError:
        if not kept:
            return None  # the caller says why nothing could be read
        raise


def _groups(readable: Sequence[Source]) -> Iterator[list[Source]]:
    """Groups of files of at most ``_FRAMES_AT_ONCE`` frames in all; stacks of more frames are divided."""
    group: list[Source] = []
    count = 0
    for found, header in readable:
        rows = found.row_of_frame
        frames = list(range(header.count)) if rows is None else sorted(rows)
        for start in range(0, len(frames), _FRAMES_AT_ONCE):
            part = frames[start : start + _FRAMES_AT_ONCE]
            if group and count + len(part) > _FRAMES_AT_ONCE:
                yield group
                group, count = [], 0
            whole = len(part) == len(frames)
            wanted = found if whole else replace(found, row_of_frame={k: 0 if rows is None else rows[k] for k in part})
            group.append((wanted, header))
            count += len(part)
    if group:
        yield group


def _readable(
    files: Sequence[ListedFile],
    headers: Sequence[Header | UnreadableError],
    budget: int,
    rejected: list[tuple[str, str]],
) -> list[Source]:
    """The files whose headers are good and that can be decoded within half of the budget; others go to ``rejected``."""
    readable = []
    for found, header in zip(files, headers, strict=True):
        if isinstance(header, UnreadableError):
            rejected.append((found.name, str(header)))
        elif not header.sizes:
            rejected.append((found.name, "is a stack of no images"))
        elif header.cost > budget // 2:
            height, width = max(header.sizes, key=prod)
            reason = (
                f"at {height} x {width} pixels needs {readable_bytes(header.cost)} to be read, {_over_budget(budget)}"
            )
            rejected.append((found.name, f"{reason}; raise memory, or crop it or scale it down"))
        else:
            readable.append((found, header))
    return readable


def _fitting(
    readable: list[Source], size: int | None, colour: Colour, budget: int, rejected: list[tuple[str, str]]
) -> list[Source]:
    """The files whose images fit into half of the budget by themselves: one huge file must not stop a run."""
    fitting = []
    for source in readable:
        sizes = frame_sizes([source])
        shape = choose_canvas(sizes, size)[0] if len(sizes) > 1 else (0, 0)
        if (needed := _bytes(len(sizes), shape, _channels([source], colour))) > budget // 2:
            reason = f"declares {len(sizes):,} images that take {readable_bytes(needed)}, {_over_budget(budget)}"
            rejected.append((source[0].name, f"{reason}; raise memory, or give a smaller size"))
        else:
            fitting.append(source)
    return fitting


def _channels(readable: Sequence[Source], colour: Colour) -> int:
    return 3 if colour == "rgb" or (colour == "auto" and any(header.colour for _, header in readable)) else 1


def is_kept_in_file(count: int, shape: tuple[int, int], channels: int, budget: int) -> bool:
    """Whether images are kept in a file, if they may be: where they would take much of the memory."""
    return _bytes(count, shape, channels) > min(_IN_MEMORY, budget // 4)


def _bytes(count: int, shape: tuple[int, int], channels: int) -> int:
    return count * shape[0] * shape[1] * channels * 4  # float32


def _labels(found: Sequence[ListedFile]) -> list[str] | None:
    """Class folders, if every image is in one and there are at least two folders, but fewer than images."""
    folders = [each.folder for each in found if each.folder is not None]
    if len(folders) < len(found) or not 2 <= len(set(folders)) < len(folders):
        return None
    return folders


def _are_told_by_date(folders: set[str]) -> bool:
    """Whether most of these folders are named by a date or a run alone, or differ from others in the date only."""
    rest = ["" if _DATE_OR_RUN.fullmatch(name) else _DAY_BESIDE_OTHERS.sub("", name) for name in folders]
    return 2 * sum(not name or rest.count(name) > 1 for name in rest) > len(rest)


def _notes(listing: Listing, readable: Sequence[Source]) -> list[str]:
    notes = []
    if listing.ignored:
        notes.append(f"{_with_plural(listing.ignored, 'file')} ignored: hidden, or not an image by name")
    if listing.linked:
        notes.append(f"{_with_plural(listing.linked, 'linked folder')} not followed")
    for note in sorted({header.note for _, header in readable} - {""}):
        notes.append(f"{_with_plural(sum(header.note == note for _, header in readable), 'file')}: {note}")
    return notes


def _in_threads(
    workers: int, function: Callable[[_Item], _Result], items: Sequence[_Item], stage: str, report: Progress
) -> list[_Result]:
    """Results of a function in the order of the items, for any number of threads."""
    results = []
    pool = ThreadPoolExecutor(workers)
    try:
        for result in pool.map(function, items):
            results.append(result)
            report(stage, len(results), len(items))
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C waits only for the files that are being read
    return results


def _too_few(
    shown: str, count: int, min_images: int, listing: Listing, rejected: Sequence[tuple[str, str]]
) -> InputError:
    read = "no image" if count == 0 else "only one image"
    if not listing.files and not rejected:
        others = f" ({_with_plural(listing.ignored, 'other file')})" if listing.ignored else ""
        return InputError(f"{shown} holds no image files{others}; at least {min_images} are needed")
    reasons = "".join(f"\n  {name} {reason}" for name, reason in rejected[:5])
    more = f"\n  and {len(rejected) - 5:,} more" if len(rejected) > 5 else ""
    return InputError(
        f"{shown}: {read} could be read, at least {min_images} are needed{':' if reasons else ''}{reasons}{more}"
    )


def _check_budget(shown: str, count: int, shape: tuple[int, int], channels: int, budget: int) -> None:
    if (needed := _bytes(count, shape, channels)) > budget // 2:
        raise InputError(
            f"{shown}: {count:,} images of {shape[0]} x {shape[1]}{' in colour' if channels > 1 else ''} take "
            f"{readable_bytes(needed)}, {_over_budget(budget)}; raise memory, or give a smaller size"
        )


def _check_options(size: int | None, budget: int, colour: str, n_jobs: int | None, min_images: int) -> None:
    if size is not None and not 8 <= size <= 4096:
        raise ValueError(f"size must be between 8 and 4096 pixels, got {size}")
    if budget < 2**20:
        raise ValueError(f"memory must be at least 1 MiB (in bytes), got {budget}")
    if colour not in ("auto", "grey", "rgb"):
        raise ValueError(f"colour must be 'auto', 'grey' or 'rgb', got {colour!r}")
    for name, value in (("n_jobs", n_jobs), ("min_images", min_images)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def _over_budget(budget: int) -> str:
    return f"more than half of the memory budget of {readable_bytes(budget)}"


def _with_plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _no_progress(stage: str, done: int, total: int) -> None:
    pass
