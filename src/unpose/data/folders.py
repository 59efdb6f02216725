"""What people have, a folder or a stack, as one array of images: every file is read or listed with its reason."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from unpose.files.byte_sizes import in_bytes
from unpose.files.formats import frames, guarded, header
from unpose.files.frames import LUMINANCE, Header, Unreadable, printable, unreadable
from unpose.files.listing import Found, Listing, list_images, locate
from unpose.images.canvas import LARGEST_DEFAULT, choose_canvas, onto_canvas

Colour = Literal["auto", "grey", "rgb"]
Progress = Callable[[str, int, int], None]
"""Stage, how many are done, of how many."""

DEFAULT_MEMORY = 4 * 2**30
_COLOURED = 0.02
"""Channels that differ by less than this share of full scale are grey: JPEG adds as much."""

_Source = tuple[Found, Header]
_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


class InputError(ValueError):
    """The input as a whole cannot be used; the message says why and what to do."""


@dataclass(frozen=True)
class ImageSet:
    """Images of one size and where each came from."""

    images: NDArray  # (n, h, w) or (n, h, w, 3) float32, in natural units
    names: list[str]  # relative to the input, safe to print; FILE[k] for frame k of a file with several
    paths: list[Path]  # the file of each image
    frames: NDArray  # (n,) the number of each image in its file, from zero
    labels: list[str] | None  # the class folder of each image, where there is one folder per class
    rejected: list[tuple[str, str]]  # name, reason
    canvas: str  # how sizes were brought to one, in a sentence
    source_shape: tuple[int, int] | None  # height and width as stored, where all images had the same
    notes: list[str]  # what else a reader should know: files ignored, bits lost

    def __len__(self) -> int:
        return len(self.images)


def read_images(
    path: str | os.PathLike[str],
    *,
    size: int | None = None,
    memory: int | str | None = None,
    color: Colour = "auto",
    fewest: int = 2,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """All images of a folder, a stack or an array file, on one canvas.

    Parameters
    ----------
    path : a folder (with all below it), a picture, a TIFF stack, ``.npy``, ``.npz``, MRC, STAR, HDF5 or Zarr
        ``FILE::NAME`` picks one array of a file that holds several. What a file is, its content says, not its name.
    size : longer side of the canvas in pixels
        By default the median of the longer sides, at most 128; see :mod:`unpose.images.canvas` for the rule.
    memory : budget in bytes, or as ``"4GB"``; 4 GiB by default
        Half of it is for the images, half for the files while they are decoded. Declared sizes are checked against it
        before anything is read.
    color : ``"auto"`` gives colour only where at least one image truly is coloured; ``"grey"``, ``"rgb"`` always
    fewest : images that must be readable; one is enough to say what it is, not to compare
    jobs : threads; the result does not depend on them
    progress : called with a stage, how many are done, and of how many

    Returns
    -------
    ImageSet
        ``uint8`` and ``uint16`` pixels in [0, 1], others as stored. Transparent pixels lie on black, or on white where
        the visible part is itself nearly black. An animation is its first frame. Three channels that a TIFF declares
        are one image in colour; a TIFF with another number of them is rejected. Labels are the first folders below
        ``path`` when every image lies in one of at least two.

    Raises
    ------
    InputError
        Where too few images can be read, or they do not fit the budget.

    Notes
    -----
    Every file is opened twice: for its header, then for its pixels, which are scaled at once. Memory is that of the
    result and of the files that are open. Files are never written to.
    """
    budget = DEFAULT_MEMORY if memory is None else in_bytes(memory)
    _check_options(size, budget, color, jobs)
    report = progress if progress is not None else _silent
    shown = printable(str(path))
    if (located := locate(Path(path))) is None:
        raise InputError(f"{shown} does not exist; give a folder of images, a stack or an array file")
    target, key = located
    workers = min(jobs or os.cpu_count() or 1, 16)
    with guarded():
        listing = list_images(target)
        rejected = list(listing.rejected)
        look = partial(_try_header, side=size or LARGEST_DEFAULT, key=key)
        headers = _in_threads(workers, look, listing.files, "headers", report)
        readable = _readable(listing.files, headers, budget, rejected)
        readable = _that_fit(readable, size, color, budget, rejected)
        sizes = _sizes(readable)
        if len(sizes) < fewest:
            raise _too_few(shown, len(sizes), fewest, listing, rejected)
        shape, rule = choose_canvas(sizes, size)
        _check_budget(shown, len(sizes), shape, _channels(readable, color), budget)
        workers = max(1, min(workers, (budget // 2) // max(told.cost for _, told in readable)))
        read = partial(_try_frames, shape=shape, color=color, key=key)
        results = _in_threads(workers, read, [found for found, _ in readable], "images", report)
    kept: list[_Kept] = []
    for (found, told), (good, bad) in zip(readable, results, strict=True):
        several = found.wanted is not None or len(told.sizes) > 1 or any(frame.number for frame in good)
        for frame in good:
            frame.name = f"{found.name}[{frame.number}]" if several else found.name
        kept += good
        for number, reason in bad:
            rejected.append((f"{found.name}[{number}]" if several and number is not None else found.name, reason))
    if len(kept) < fewest:
        raise _too_few(shown, len(kept), fewest, listing, rejected)
    kept.sort(key=lambda frame: frame.row)  # stable: only a STAR file asks for another order
    names, paths = [frame.name for frame in kept], [frame.found.path for frame in kept]
    numbers, labels = np.array([frame.number for frame in kept]), _labels([frame.found for frame in kept])
    images, stored = _stacked(kept, shape, color), sizes[0] if len(set(sizes)) == 1 else None
    return ImageSet(images, names, paths, numbers, labels, rejected, rule, stored, _notes(listing, readable))


def _readable(
    files: Sequence[Found], headers: Sequence[Header | Unreadable], budget: int, rejected: list[tuple[str, str]]
) -> list[_Source]:
    """The files whose headers are good and that can be decoded within half of the budget."""
    readable = []
    for found, told in zip(files, headers, strict=True):
        if isinstance(told, Unreadable):
            rejected.append((found.name, str(told)))
        elif not told.sizes:
            rejected.append((found.name, "is a stack of no images"))
        elif told.cost > budget // 2:
            height, width = max(told.sizes, key=prod)
            reason = f"at {height} x {width} pixels needs {_spoken(told.cost)} to be read, {_share(budget)}"
            rejected.append((found.name, f"{reason}; raise memory, or crop it or scale it down"))
        else:
            readable.append((found, told))
    return readable


def _that_fit(
    readable: list[_Source], size: int | None, color: Colour, budget: int, rejected: list[tuple[str, str]]
) -> list[_Source]:
    """Without the files that declare more images than fit, each by itself: one such file must not stop a run."""
    fitting = []
    for source in readable:
        sizes = _sizes([source])
        shape = choose_canvas(sizes, size)[0] if len(sizes) > 1 else (0, 0)
        if (needed := _bytes(len(sizes), shape, _channels([source], color))) > budget // 2:
            reason = f"declares {len(sizes):,} images that take {_spoken(needed)}, {_share(budget)}"
            rejected.append((source[0].name, f"{reason}; raise memory, or give a smaller size"))
        else:
            fitting.append(source)
    return fitting


def _sizes(readable: Sequence[_Source]) -> list[tuple[int, int]]:
    """Height and width of every frame that is asked for."""
    sizes = []
    for found, told in readable:
        count = len(told.sizes)
        sizes += told.sizes if found.wanted is None else [told.sizes[k] for k in found.wanted if k < count]
    return sizes


def _channels(readable: Sequence[_Source], color: Colour) -> int:
    return 3 if color == "rgb" or (color == "auto" and any(told.colour for _, told in readable)) else 1


def _bytes(count: int, shape: tuple[int, int], channels: int) -> int:
    return count * shape[0] * shape[1] * channels * 4  # float32


@dataclass
class _Kept:
    """A frame on the canvas, until it is copied into the result."""

    found: Found
    number: int
    row: int
    pixels: NDArray | None
    name: str = ""


def _try_header(found: Found, side: int, key: str | None) -> Header | Unreadable:
    try:
        return header(found.path, side, key)
    except Unreadable as reason:
        return reason


def _try_frames(
    found: Found, shape: tuple[int, int], color: Colour, key: str | None
) -> tuple[list[_Kept], list[tuple[int | None, str]]]:
    """The frames of a file on the canvas, and those that could not be read; all or none where the file is damaged."""
    good: list[_Kept] = []
    bad: list[tuple[int | None, str]] = []
    wanted = None if found.wanted is None else set(found.wanted)
    try:
        for number, frame in frames(found.path, max(shape), wanted, key):
            if isinstance(frame, Unreadable):
                bad.append((number, str(frame)))
            else:
                row = 0 if found.wanted is None else found.wanted[number]
                good.append(_Kept(found, number, row, _coloured(onto_canvas(frame, shape), color)))
    except Exception as error:  # not only what decoders raise: memory can run out here as well
        return [], [(None, str(unreadable(error)))]
    if wanted is not None:
        missing = wanted - {frame.number for frame in good} - {number for number, _ in bad}
        bad += [(number, "is not in the stack") for number in sorted(missing)]
    return good, bad


def _coloured(frame: NDArray, color: Colour) -> NDArray:
    """Grey where the channels say nothing more than grey does: (h, w) or (h, w, 3)."""
    if frame.ndim == 2:
        return frame
    scale = max(1.0, float(np.abs(frame).max()))
    if color == "grey" or (color == "auto" and float(np.ptp(frame, axis=-1).max()) <= _COLOURED * scale):
        return frame @ LUMINANCE
    return frame


def _stacked(kept: list[_Kept], shape: tuple[int, int], color: Colour) -> NDArray:
    """All frames in one array; each is let go as soon as it is copied, so that the set is in memory once."""
    in_colour = color == "rgb" or any(frame.pixels is not None and frame.pixels.ndim == 3 for frame in kept)
    images = np.empty((len(kept), *shape, 3) if in_colour else (len(kept), *shape), dtype=np.float32)
    for image, frame in zip(images, kept, strict=True):
        if frame.pixels is not None:
            image[...] = frame.pixels[..., None] if in_colour and frame.pixels.ndim == 2 else frame.pixels
            frame.pixels = None
    return images


def _labels(found: Sequence[Found]) -> list[str] | None:
    """Class folders, where every image lies in one and there are at least two, not one for each image."""
    folders = [each.folder for each in found if each.folder is not None]
    if len(folders) < len(found) or not 2 <= len(set(folders)) < len(folders):
        return None
    return folders


def _notes(listing: Listing, readable: Sequence[_Source]) -> list[str]:
    notes = []
    if listing.ignored:
        notes.append(f"{_counted(listing.ignored, 'file')} ignored: hidden, or plainly no image by name")
    if listing.linked:
        notes.append(f"{_counted(listing.linked, 'linked folder')} not followed")
    for note in sorted({told.note for _, told in readable} - {""}):
        notes.append(f"{_counted(sum(told.note == note for _, told in readable), 'file')}: {note}")
    return notes


def _in_threads(
    workers: int, work: Callable[[_Given], _Made], given: Sequence[_Given], stage: str, report: Progress
) -> list[_Made]:
    """The results in the order of what was given, however many threads there are."""
    made = []
    pool = ThreadPoolExecutor(workers)
    try:
        for result in pool.map(work, given):
            made.append(result)
            report(stage, len(made), len(given))
    finally:
        pool.shutdown(cancel_futures=True)  # Ctrl-C waits for the files being read, not for all that are left
    return made


def _too_few(shown: str, count: int, fewest: int, listing: Listing, rejected: Sequence[tuple[str, str]]) -> InputError:
    read = "no image" if count == 0 else "only one image"
    if not listing.files and not rejected:
        return InputError(
            f"{shown} holds no image files ({_counted(listing.ignored, 'other file')}); at least {fewest} needed"
        )
    reasons = "".join(f"\n  {name} {reason}" for name, reason in rejected[:5])
    more = f"\n  and {len(rejected) - 5:,} more" if len(rejected) > 5 else ""
    return InputError(f"{shown}: {read} could be read, at least {fewest} needed{':' if reasons else ''}{reasons}{more}")


def _check_budget(shown: str, count: int, shape: tuple[int, int], channels: int, budget: int) -> None:
    if (needed := _bytes(count, shape, channels)) > budget // 2:
        raise InputError(
            f"{shown}: {count:,} images of {shape[0]} x {shape[1]}{' in colour' if channels > 1 else ''} take "
            f"{_spoken(needed)}, {_share(budget)}; raise memory, or give a smaller size"
        )


def _check_options(size: int | None, budget: int, color: str, jobs: int | None) -> None:
    if size is not None and not 8 <= size <= 4096:
        raise ValueError(f"size must be between 8 and 4096 pixels, got {size}")
    if budget < 2**20:
        raise ValueError(f"memory must be at least 1 MiB (in bytes), got {budget}")
    if color not in ("auto", "grey", "rgb"):
        raise ValueError(f"color must be 'auto', 'grey' or 'rgb', got {color!r}")
    if jobs is not None and jobs < 1:
        raise ValueError(f"jobs must be at least 1, got {jobs}")


def _share(budget: int) -> str:
    return f"more than half of the memory budget of {_spoken(budget)}"


def _spoken(size: int) -> str:
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} bytes"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _silent(stage: str, done: int, total: int) -> None:
    pass
