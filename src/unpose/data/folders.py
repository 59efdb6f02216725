"""Reads a folder, a stack or a list of files into one array of images; unreadable files are listed with a reason."""

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import chain, groupby
from math import prod
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from unpose.data.decoding import (
    Colour,
    DecodedFrame,
    Source,
    decode_file,
    decode_parts,
    frame_sizes,
    header_or_error,
    is_any_coloured,
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
_BYTES_AT_ONCE = 2**24
"""Most images of a stack that are decoded before they are copied into the result, and their bytes on the canvas."""
_WRITTEN_AGAIN = 16
"""Images that are written again with channels at a time."""
_PROCESS_BYTES = 300 * 10**6
"""What Python and the libraries that read images take."""

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
    size: int | tuple[int, int] | None = None,
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
    size : int or (int, int), optional
        Longer side of the images in pixels, or height and width of the canvas. By default the median of the longer
        sides, at most 128; see :mod:`unpose.images.canvas` for the rule.
    memory : int or str, optional
        Memory budget in bytes, or as ``"4GB"``; 4 GiB by default. Half of it is for the images, half for decoding
        files, after 300 MB that the libraries take of a budget of at least 600 MB. Declared sizes are checked against
        it before anything is read; what does not fit is an error or is listed in ``rejected`` with the budget that it
        needs. Pixels and colour do not depend on it.
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
    budget = as_budget(memory)
    _check_options(size, budget.total, colour, n_jobs, min_images)
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
    side = LARGEST_DEFAULT_CANVAS if size is None else int(np.max(size))
    with decoder_limits():
        listing = list_paths(paths_given) if is_list else list_images(paths_given[0])
        rejected = list(listing.rejected)
        headers: list[Header | UnreadableError] = []
        for header in _in_threads(workers, [(partial(header_or_error, each, side), 0) for each in listing.files]):
            headers.append(header)
            report("headers", len(headers), len(listing.files))
        readable = readable_within(listing.files, headers, budget, rejected)
        if pieces is False:
            readable = _fitting(readable, size, colour, budget, rejected)
        sizes = frame_sizes(readable)
        if len(sizes) < min_images:
            raise _too_few(shown, len(sizes), min_images, listing, rejected)
        shape, rule = _canvas(sizes, size)
        channels = most_channels(readable, colour)
        stored = pieces is not False and is_kept_in_file(len(sizes), shape, channels, budget)
        if not stored:
            _check_budget(shown, len(sizes), shape, channels, budget)
        kept: list[DecodedFrame] = []
        decoded = _decoded(readable, shape, colour, workers, budget, kept, rejected, report)
        if stored:
            images: Any = _in_file(decoded, shape, colour, None if isinstance(pieces, bool) else pieces)
        else:
            images = _in_memory(decoded, len(sizes), shape, channels, colour)
    # A list defines an order of inputs, a STAR file one of rows; the sort is stable for all others.
    order = [k for k, frame in enumerate(kept) if not frame.is_void]
    order.sort(key=lambda k: (kept[k].found.place, kept[k].row))
    if len(order) < min_images:
        raise _too_few(shown, len(order), min_images, listing, rejected)
    if order != list(range(len(kept))):
        images = images.take(np.array(order)) if stored else images[order]
    kept = [kept[k] for k in order]
    names, paths = [frame.name for frame in kept], [frame.found.path for frame in kept]
    numbers, labels = np.array([frame.number for frame in kept]), _labels([frame.found for frame in kept])
    source_shape = sizes[0] if len(set(sizes)) == 1 else None
    notes = _notes(listing, readable)
    if labels is not None and _are_told_by_date(set(labels)):
        notes.append(NAMED_BY_DATE)
        labels = None
    return ImageSet(images, names, paths, numbers, labels, rejected, rule, source_shape, notes)


@dataclass(frozen=True)
class Budget:
    """How much memory reading may take; nothing but errors and the place of the images depends on it."""

    total: int  # what was given, for messages
    half: int  # for the images, and as much again for decoding files

    @property
    def in_memory(self) -> int:
        """Bytes of images that are kept in memory, also if they may be kept in a file."""
        return min(_IN_MEMORY, self.half // 2)

    def at_once(self, frame_bytes: int) -> int:
        """Images of a stack that are decoded before they are copied into the result."""
        return max(1, min(_FRAMES_AT_ONCE, min(_BYTES_AT_ONCE, self.half // 8) // frame_bytes))


def as_budget(memory: int | str | None) -> Budget:
    """The budget that a number of bytes or a text such as "4GB" gives.

    One of at least 600 MB is kept by the whole process: the libraries take 300 MB of it. A smaller one, which they
    would use up, is for the images and for decoding alone.
    """
    total = DEFAULT_MEMORY if memory is None else in_bytes(memory)
    held = 0 if memory is None else max(0, min(_PROCESS_BYTES, total - _PROCESS_BYTES))
    return Budget(total, (total - held) // 2)


def _canvas(sizes: Sequence[tuple[int, int]], size: int | tuple[int, int] | None) -> tuple[tuple[int, int], str]:
    """See :func:`unpose.images.choose_canvas`; a height and width that are given are taken as they are."""
    if not isinstance(size, tuple):
        return choose_canvas(sizes, size)
    shape, rule = choose_canvas(sizes, max(size))
    if shape != size:
        rule = (
            f"each image is scaled (antialiased, aspect kept) to fit {size[0]} x {size[1]} and padded with the median "
            "of its border"
        )
    return size, rule


def _decoded(
    readable: Sequence[Source], shape: tuple[int, int], colour: Colour, workers: int, budget: Budget,
    kept: list[DecodedFrame], rejected: list[tuple[str, str]], report: Progress,
) -> Iterator[list[DecodedFrame]]:  # fmt: skip
    """Decode all files, in their order: some frames at a time, which are added to ``kept`` when they were used.

    Files are decoded in parallel as far as half of the budget suffices. Stacks that are large on the canvas come in
    parts. If such a file proves to be damaged, its frames are void: it gives none, as any damaged file.
    """
    frame_bytes = bytes_of(1, shape, 3)
    at_once = budget.at_once(frame_bytes)
    counts = [header.count if found.row_of_frame is None else len(found.row_of_frame) for found, header in readable]
    done, total = 0, sum(counts)
    results: Iterable[tuple[Source, tuple[list[DecodedFrame], list[tuple[int | None, str]]]]]
    is_small = [count <= at_once for count in counts]
    for small, group in groupby(zip(readable, counts, is_small, strict=True), key=itemgetter(2)):
        members = [(source, count) for source, count, _ in group]
        if small:
            tasks = [
                (partial(decode_file, found, shape, colour), header.cost + count * frame_bytes)
                for (found, header), count in members
            ]
            results = zip((source for source, _ in members), _in_threads(workers, tasks, budget.half), strict=True)
        else:
            results = (
                (source, part) for source, _ in members for part in decode_parts(source[0], shape, colour, at_once)
            )
        for source, (frames, bad) in results:
            _name(source, frames, bad, kept, rejected)
            if frames:
                yield frames
                kept += frames
            done += len(frames) + len(bad)
            report("images", min(done, total), total)
    report("images", total, total)


def _name(
    source: Source, good: list[DecodedFrame], bad: Sequence[tuple[int | None, str]], kept: Sequence[DecodedFrame],
    rejected: list[tuple[str, str]],
) -> None:  # fmt: skip
    """Name the frames of a file, and list those that could not be read in ``rejected``."""
    found, header = source
    several = found.row_of_frame is not None or header.count > 1
    for frame in good:
        frame.name = f"{found.name}[{frame.number}]" if several else found.name
    for number, reason in bad:
        rejected.append((f"{found.name}[{number}]" if several and number is not None else found.name, reason))
        if number is None:  # the whole file is damaged
            for frame in reversed(kept):
                if frame.found is not found:
                    break
                frame.is_void = True


def _in_memory(
    decoded: Iterator[list[DecodedFrame]], count: int, shape: tuple[int, int], channels: int, colour: Colour
) -> NDArray[np.float32]:
    """All images in one array; it has channels as soon as one image is coloured.

    Memory for up to ``count`` images with ``channels`` is reserved once and taken as it is filled: grey images lie at
    its start, and are moved apart, the last one first, when they get channels.
    """
    values = np.empty(count * prod(shape) * channels, np.float32)
    images: NDArray[np.float32] = values[: count * prod(shape)].reshape(count, *shape)
    n = 0
    for frames in decoded:
        if images.ndim == 3 and (colour == "rgb" or is_any_coloured(frames)):
            grey, images = images, values.reshape(count, *shape, 3)
            for k in reversed(range(n)):
                images[k] = grey[k, ..., None]
        stack_frames(frames, images[n : n + len(frames)])
        n += len(frames)
    return images[:n]


def _in_file(
    decoded: Iterator[list[DecodedFrame]], shape: tuple[int, int], colour: Colour,
    folder: str | os.PathLike[str] | None,
) -> ImagesInPieces | None:  # fmt: skip
    """All images in one file; it is written again with channels when an image is coloured. None if there is no image.

    So the colour is that of all images, as it is in memory, whatever the budget.
    """
    coloured: list[list[DecodedFrame]] = []  # the first frames of which one is coloured

    def stacked(frames: list[DecodedFrame], *channels: int) -> NDArray:
        return stack_frames(frames, np.empty((len(frames), *shape, *channels), np.float32))

    def grey() -> Iterator[NDArray]:
        for frames in decoded:
            if colour == "rgb" or is_any_coloured(frames):
                coloured.append(frames)
                return
            yield stacked(frames)

    first = next(grey_pieces := grey(), None)
    stored = None if first is None else store_images(chain([first], grey_pieces), folder)
    if not coloured:
        return stored
    before: Iterator[NDArray] = iter(()) if stored is None else stored.pieces(_WRITTEN_AGAIN)
    in_colour = store_images(
        chain(
            (np.repeat(piece[..., None], 3, axis=-1) for piece in before),
            (stacked(frames, 3) for frames in chain(coloured, decoded)),
        ),
        folder,
    )
    if stored is not None:
        stored.discard()
    return in_colour


def readable_within(
    files: Sequence[ListedFile],
    headers: Sequence[Header | UnreadableError],
    budget: Budget,
    rejected: list[tuple[str, str]],
) -> list[Source]:
    """The files whose headers are good and that can be decoded within the budget; others go to ``rejected``."""
    readable = []
    for found, header in zip(files, headers, strict=True):
        if isinstance(header, UnreadableError):
            rejected.append((found.name, str(header)))
        elif not header.sizes:
            rejected.append((found.name, "is a stack of no images"))
        elif header.cost > budget.half:
            height, width = max(header.sizes, key=prod)
            reason = f"at {height} x {width} pixels needs {readable_bytes(header.cost)} to be read"
            rejected.append((found.name, f"{reason}, {_over(budget, header.cost)}, or crop it or scale it down"))
        else:
            readable.append((found, header))
    return readable


def _fitting(
    readable: list[Source], size: int | tuple[int, int] | None, colour: Colour, budget: Budget,
    rejected: list[tuple[str, str]],
) -> list[Source]:  # fmt: skip
    """The files whose images fit into the budget by themselves: one huge file must not stop a run."""
    fitting = []
    for source in readable:
        sizes = frame_sizes([source])
        shape = _canvas(sizes, size)[0] if len(sizes) > 1 else (0, 0)
        if (needed := bytes_of(len(sizes), shape, most_channels([source], colour))) > budget.half:
            reason = f"declares {len(sizes):,} images that take {readable_bytes(needed)}"
            rejected.append((source[0].name, f"{reason}, {_over(budget, needed)}, or give a smaller size"))
        else:
            fitting.append(source)
    return fitting


def most_channels(readable: Sequence[Source], colour: Colour) -> int:
    """The channels that images have at most: 3 if a header declares some, although they may all be equal."""
    return 3 if colour == "rgb" or (colour == "auto" and any(header.colour for _, header in readable)) else 1


def is_kept_in_file(count: int, shape: tuple[int, int], channels: int, budget: Budget) -> bool:
    """Whether images are kept in a file, if they may be: where they would take much of the memory."""
    return bytes_of(count, shape, channels) > budget.in_memory


def bytes_of(count: int, shape: tuple[int, int], channels: int) -> int:
    """The memory that images take."""
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


def _in_threads(workers: int, tasks: Iterable[tuple[Callable[[], _Result], int]], room: int = 0) -> Iterator[_Result]:
    """Results of functions in their order, for any number of threads.

    Each function comes with its cost. Those that wait, work or have a result that nobody has taken cost at most
    ``room``, or there is only one of them.
    """
    pending: deque[tuple[Future[_Result], int]] = deque()
    used = 0
    pool = ThreadPoolExecutor(workers)
    try:
        for function, cost in tasks:
            while pending and (len(pending) >= 2 * workers or used + cost > room):
                first, freed = pending.popleft()
                yield first.result()
                used -= freed
            pending.append((pool.submit(function), cost))
            used += cost
        while pending:
            yield pending.popleft()[0].result()
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C waits only for the files that are being read


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


def _check_budget(shown: str, count: int, shape: tuple[int, int], channels: int, budget: Budget) -> None:
    if (needed := bytes_of(count, shape, channels)) > budget.half:
        raise InputError(
            f"{shown}: {count:,} images of {shape[0]} x {shape[1]}{' in colour' if channels > 1 else ''} take "
            f"{readable_bytes(needed)}, {_over(budget, needed)}, or give a smaller size"
        )


def _check_options(
    size: int | tuple[int, int] | None, budget: int, colour: str, n_jobs: int | None, min_images: int
) -> None:
    if isinstance(size, tuple):
        if len(size) != 2 or min(size) < 2:
            raise ValueError(f"size must be one number, or height and width of at least 2 pixels, got {size}")
    elif size is not None and not 8 <= size <= 4096:
        raise ValueError(f"size must be between 8 and 4096 pixels, got {size}")
    if budget < 2**20:
        raise ValueError(f"memory must be at least 1 MiB (in bytes), got {budget}")
    if colour not in ("auto", "grey", "rgb"):
        raise ValueError(f"colour must be 'auto', 'grey' or 'rgb', got {colour!r}")
    for name, value in (("n_jobs", n_jobs), ("min_images", min_images)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")


def _over(budget: Budget, needed: int) -> str:
    """That something does not fit into the budget, and in which it would."""
    enough = 2 * needed if 2 * needed <= _PROCESS_BYTES else 2 * needed + _PROCESS_BYTES
    return (
        f"more than the {readable_bytes(budget.half)} that a memory budget of {readable_bytes(budget.total)} has for "
        f"it; raise memory to {readable_bytes(enough)}"
    )


def _with_plural(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _no_progress(stage: str, done: int, total: int) -> None:
    pass
