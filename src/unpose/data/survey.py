"""What an input holds, by the names of its files, some headers and a sample of its images: :func:`survey_images`."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unpose.data.decoding import (
    DecodedFrame,
    Source,
    decode_file,
    frame_numbers,
    frame_sizes,
    header_or_error,
    is_any_coloured,
    is_coloured,
    stack_frames,
)
from unpose.data.folders import InputError, as_budget, is_kept_in_file, most_channels, readable_within
from unpose.files import printable_name
from unpose.files.formats import decoder_limits
from unpose.files.listing import list_images, split_array_name
from unpose.images import LARGEST_DEFAULT_CANVAS, choose_canvas

__all__ = ["Survey", "survey_images"]

_SURVEYED = 2000
"""Files of which a survey reads the header."""


@dataclass(frozen=True)
class Survey:
    """What an input holds, by the names of its files and the headers of some of them."""

    count: int  # of images; estimated if there are more files than headers were read
    shape: tuple[int, int]  # height and width of the canvas that they would be brought to
    channels: int  # 1 or 3
    in_pieces: bool  # whether read_folder would keep them in a file, if it may
    n_files: int
    sample: NDArray  # (m, h, w) or (m, h, w, 3), some of the images, evenly spaced
    seconds: float  # CPU time to decode one of them


def survey_images(
    source: str | os.PathLike[str], n_sample: int, *, size: int | None = None, memory: int | str | None = None
) -> Survey:
    """Say what :func:`read_folder` would read, from the names of files, some headers and ``n_sample`` of the images.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(folder + "/stack.npy", np.zeros((7, 31, 17), np.uint8))
    ...     found = survey_images(folder, 3)
    >>> found.count, found.sample.shape
    (7, (3, 31, 17))
    """
    budget = as_budget(memory)
    path = Path(source)
    if split_array_name(path) is None:
        raise InputError(f"{printable_name(str(source))} does not exist; give a folder of images or a stack")
    with decoder_limits():
        files = list_images(path).files
        places = np.unique(np.linspace(0, max(0, len(files) - 1), min(len(files), _SURVEYED)).astype(int))
        read = [files[k] for k in places]
        headers = [header_or_error(found, size or LARGEST_DEFAULT_CANVAS) for found in read]
        good = readable_within(read, headers, budget, [])
    sizes = frame_sizes(good)
    if not sizes:
        raise InputError(f"{printable_name(str(source))} holds no image that can be read")
    count = round(len(sizes) * len(files) / len(read))
    shape, _ = choose_canvas(sizes, size)
    stored = is_kept_in_file(count, shape, most_channels(good, "auto"), budget)
    began = time.process_time()
    frames = _sampled(good, n_sample, shape)
    seconds = (time.process_time() - began) / max(1, len(frames))
    channels = 3 if is_any_coloured(frames) or is_coloured(good, shape) else 1
    sample = stack_frames(frames, np.empty((len(frames), *shape, *(3,) * (channels > 1)), np.float32))
    return Survey(count, shape, channels, stored, len(files), sample, seconds)


def _sampled(readable: Sequence[Source], count: int, shape: tuple[int, int]) -> list[DecodedFrame]:
    """Up to ``count`` images, evenly spaced over the frames of the files."""
    numbers = [frame_numbers(found, header) for found, header in readable]
    ends = np.cumsum([len(each) for each in numbers])
    wanted = np.unique(np.linspace(0, ends[-1] - 1, min(count, int(ends[-1]))).astype(int))
    frames: list[DecodedFrame] = []
    with decoder_limits():
        for k in np.unique(np.searchsorted(ends, wanted, side="right")):
            start = int(ends[k]) - len(numbers[k])
            inside = wanted[(wanted >= start) & (wanted < ends[k])] - start
            found = replace(readable[k][0], row_of_frame={numbers[k][int(i)]: 0 for i in inside})
            frames += decode_file(found, shape, "auto")[0]
    return frames
