"""What a run will take, before it starts: time, memory and disk, from a minute of measurements on its own images.

Samples of the images are clustered by the real code, and their CPU time is extrapolated: ``a n + b n^2`` where all
pairs are searched, linear where an index gives candidates. Memory and disk are counted from the arrays that a run
holds and writes. ``docs/explanation/scale.md`` compares plans with runs.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from unpose.runs.settings import RunSettings

if TYPE_CHECKING:
    from unpose.data import ImageSet
    from unpose.data.survey import Survey

_SAMPLES = (160, 480)
"""Sizes of the two samples that are clustered."""
_FEATURE_SAMPLE = 48
"""Images whose features are computed, which takes the same time for every image."""
_EXHAUSTIVE = 4000
"""Up to this many images all pairs are searched; beyond, a cheaper comparison of all pairs selects candidates."""
_CENTRED_SHARE = 0.03
"""Time of the cheaper comparison of a pair, as a share of the search of a pair."""
_TABLE_SECONDS = 1e-4
"""CPU time of tables and page for an image, measured with a million images."""
_BASE_BYTES = 600 * 10**6
"""Python with torch, numba and the compiled code."""
_BYTES_EACH = 5_000
"""Neighbours, graph, poses and names of an image while a run holds them."""
_STORED_EACH = 2_400
"""Neighbours, graph, poses and names of an image in the files of a finished run."""
_READ_AT_ONCE = 4096
"""Up to this many images :class:`unpose.InvariantClustering` reads all at once, also from a file."""
_COPIES, _CLUSTERING_BYTES, _THREAD_BYTES = 4, 140 * 10**6, 100 * 10**6
"""What a clustering in memory takes beside its search: copies of the images, the read-out, and scratch of each thread.

Peaks of 60 to 300 images of 48 to 160 pixels, grey and coloured, with 1 and 4 threads were 0.89 to 0.97 of the sum."""
_THREAD_IMAGES = 64
_REFERENCE_BYTES = 2**28
_GPU_SPEEDUP = 16.0
"""Search on an H200 beside one core: ``benchmarks/scale.py`` took 608 CPU seconds and 39 s for 100,000 images."""
_OVERHEAD = 1.15
"""Of Dask, beside one process; ``benchmarks/scale_dask.py`` measures it."""


@dataclass(frozen=True)
class Calibration:
    """CPU seconds measured on this machine, on images like those of the run."""

    decode: float  # of an image
    each: float  # to cluster n images takes ``each n + pair n^2`` if all pairs are searched
    pair: float
    indexed: float  # for each image, to search its neighbours by an index and to read out and average
    write: float  # of the results of an image
    features: float = 0.0  # of a network or of statistics, for an image


@dataclass(frozen=True)
class Plan:
    """What a run will take.

    Parameters
    ----------
    count : int
        Number of images.
    shape : (int, int)
        Height and width at which they are compared.
    channels : int
        1 or 3.
    in_pieces : bool
        Whether they are kept in a file and read in pieces.
    cpu_seconds : float
        CPU time of the whole run.
    search_seconds : float
        The part of it that GPUs or workers can take over.
    feature_seconds : float
        The part of it in which features of the images are computed, which GPUs can take over.
    memory, disk, temporary : int
        Peak memory, size of the results, and size of the files that are removed at the end, in bytes.
    n_cores : int
        Cores of this machine that the run would use.
    calibration : Calibration
        What was measured.

    Examples
    --------
    >>> from unpose.runs.plan import Calibration
    >>> plan = Plan(10, (9, 9), 1, False, 100.0, 90.0, 4.0, 10**9, 10**6, 0, 2, Calibration(0, 0, 0, 0, 0))
    >>> plan.seconds(), round(plan.seconds(workers=9)), round(plan.gpu_seconds(), 1)
    (53.0, 20, 11.9)
    """

    count: int
    shape: tuple[int, int]
    channels: int
    in_pieces: bool
    cpu_seconds: float
    search_seconds: float
    feature_seconds: float
    memory: int
    disk: int
    temporary: int
    n_cores: int
    calibration: Calibration

    def seconds(self, workers: int | None = None) -> float:
        """Expected duration on the cores of this machine, or on a number of workers with one core each."""
        search = self.search_seconds / self.n_cores if workers is None else self.search_seconds * _OVERHEAD / workers
        rest = self.cpu_seconds - self.search_seconds - self.feature_seconds
        return rest + search + self.feature_seconds / self.n_cores

    def gpu_seconds(self) -> float:
        """Expected duration with an H200; a rough estimate, because it is not measured here."""
        faster = self.search_seconds + self.feature_seconds
        return self.cpu_seconds - faster + faster / _GPU_SPEEDUP

    def advice(self, free_memory: int | None, free_disk: int | None) -> list[str]:
        """What to change where the run does not fit, in full sentences; empty if it fits.

        Parameters
        ----------
        free_memory, free_disk : int or None
            In bytes; None if unknown.
        """
        from unpose.files import readable_bytes

        said = []
        if free_memory is not None and self.memory > free_memory:
            smaller = " or a smaller --size" if max(self.shape) > 32 and not self.in_pieces else ""
            said.append(
                f"The memory of {readable_bytes(free_memory)} that is free is too small by "
                f"{readable_bytes(self.memory - free_memory)}: use a larger machine{smaller}."
            )
        needed = self.disk + self.temporary
        if free_disk is not None and needed > free_disk:
            share = math.sqrt(free_disk / needed)
            said.append(
                f"The disk has {readable_bytes(free_disk)} free, and {readable_bytes(needed)} are needed: "
                f"give another folder, or --size {max(8, int(max(self.shape) * share))}."
            )
        if self.seconds() > 86_400:
            workers = max(2, math.ceil(self.search_seconds * _OVERHEAD / 43_200))
            said.append(
                f"It takes {readable_time(self.seconds())} here; on {workers} workers (--dask) "
                f"{readable_time(self.seconds(workers))}, with one GPU (--device cuda) about "
                f"{readable_time(self.gpu_seconds())}."
            )
        return said


def readable_time(seconds: float) -> str:
    """A duration in words, with two digits.

    Parameters
    ----------
    seconds : float
        The duration.

    Returns
    -------
    str

    Examples
    --------
    >>> readable_time(0.4), readable_time(90), readable_time(5000), readable_time(200_000)
    ('0.4 s', '90 s', '83 min', '2.3 days')
    """
    for unit, length, most in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{float(f'{seconds / length:.2g}'):g} {unit}"
    return f"{float(f'{seconds / 86_400:.2g}'):g} days"


def plan_run(
    source: str | os.PathLike[str], settings: RunSettings, *, memory: int | None = None,
    progress: "Callable[..., None] | None" = None,
) -> Plan:  # fmt: skip
    """Plan a run of ``unpose cluster``: survey its images, cluster samples of them, and extrapolate.

    Parameters
    ----------
    source : str or path
        The images.
    settings : RunSettings
        The settings of the run.
    memory : int, optional
        Memory budget in bytes.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.

    Returns
    -------
    Plan
        Time, memory and disk.

    Examples
    --------
    ``unpose plan photos/`` prints the plan of ``unpose cluster photos/ -o run``.

    >>> callable(plan_run)
    True
    """
    from unpose.data.survey import survey_images

    size = None if settings.size == "auto" else int(settings.size)
    report = progress or (lambda stage, done, total: None)
    report("survey", 0, 1)
    survey = survey_images(source, _SAMPLES[-1], size=size, memory=memory)
    report("survey", 1, 1)
    calibration = calibrate(survey, settings, report)
    return extrapolate(survey, calibration, settings)


def calibrate(survey: "Survey", settings: RunSettings, report: "Callable[..., None]") -> Calibration:
    """Cluster samples of the images and measure the CPU time, without the time to compile."""
    import numpy as np

    from unpose.cluster import group_means, stage_times

    n_clusters = None if settings.clusters == "auto" else min(int(settings.clusters), 5)  # of a sample
    images = survey.sample
    parameters = settings.search_parameters() | {"n_clusters": n_clusters, "features": "pixels"}
    stage_times(images[:24], indexed=survey.in_pieces, **parameters)  # compiles
    features = 0.0
    if settings.features != "pixels":
        some = images[:_FEATURE_SAMPLE]
        total = [
            stage_times(some, indexed=False, **(parameters | {"features": each}))
            for each in (settings.features, "pixels")
        ]
        features = max(0.0, total[0].search + total[0].rest - total[1].search - total[1].rest) / len(some)
    measured, counts = [], sorted({min(count, len(images)) for count in _SAMPLES})  # few images are one sample
    for number, count in enumerate(counts):
        report("calibrate", number, len(counts))
        some = images[np.unique(np.linspace(0, len(images) - 1, count).astype(int))]
        measured.append(stage_times(some, indexed=survey.in_pieces and count == counts[-1], **parameters))
    report("calibrate", len(counts), len(counts))
    few, many = measured[0], measured[-1]
    per_few, per_many = few.search / few.n, many.search / many.n
    pair = max(0.0, (per_many - per_few) / (many.n - few.n)) if many.n > few.n else 0.0
    rest = many.rest / many.n
    each = max(per_few - pair * few.n, 0.1 * per_few) + rest
    began = time.process_time()
    group_means(images, np.zeros(len(images), np.int64), np.tile(np.eye(3), (len(images), 1, 1)), 1)
    write = (time.process_time() - began) / len(images) + _TABLE_SECONDS
    return Calibration(survey.seconds, each, pair, many.indexed / many.n + rest, write, features)


def extrapolate(survey: "Survey", measured: Calibration, settings: RunSettings) -> Plan:
    """The plan of a run on all images of a survey."""
    n, pixels = survey.count, math.prod(survey.shape) * survey.channels
    if survey.in_pieces:
        search = measured.indexed * n
    elif n <= _EXHAUSTIVE:
        search = measured.each * n + measured.pair * n**2
    else:  # candidates of each image are searched, and all pairs compared in a cheaper way
        search = (measured.each + measured.pair * 250) * n + _CENTRED_SHARE * measured.pair * n**2
    factor = max(1.0, max(survey.shape) / 48)
    small = pixels / factor**2
    in_memory = 0 if survey.in_pieces else 4 * n * (4 * pixels + 4 * small)
    stored = n * (4 * pixels * 2 + (4 * small if factor > 1 else 0)) if survey.in_pieces else 0
    cores = os.cpu_count() or 1 if settings.jobs == "auto" else int(settings.jobs)
    memory = int(_BASE_BYTES + n * _BYTES_EACH + in_memory)
    if not survey.in_pieces and settings.group != "auto":  # which is not known yet
        memory = max(memory, _clustering_memory(n, survey.shape, survey.channels, settings))
    features = n * measured.features
    rest = n * (measured.decode + measured.write)
    return Plan(
        n, survey.shape, survey.channels, survey.in_pieces, search + features + rest, search, features,
        memory, int(n * _STORED_EACH + min(_REFERENCE_BYTES, 4 * n * small)), int(stored + n * _STORED_EACH), cores,
        measured,
    )  # fmt: skip


def check_run_memory(images: "ImageSet", settings: RunSettings, budget: int | None) -> None:
    """Refuse a clustering whose process would take more memory than its budget, before any work on it.

    Images that stay in a file are read in blocks of fixed size, which the search checks.

    Parameters
    ----------
    images : ImageSet
        The images of the run.
    settings : RunSettings
        Its settings; none of them is "auto" that decides the search.
    budget : int or None
        In bytes; None for no limit.

    Raises
    ------
    MemoryBudgetError
        With the memory that is needed and the size of images that fits the budget.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from unpose.data import read_folder
    >>> with tempfile.TemporaryDirectory() as place:
    ...     np.save(f"{place}/stack.npy", np.zeros((3, 9, 9)))
    ...     check_run_memory(read_folder(place), RunSettings(max_shift=2.0), 2 * 10**9)
    """
    from unpose.align import MemoryBudgetError
    from unpose.files import ImagesInPieces

    is_read_in_pieces = isinstance(images.images, ImagesInPieces) and len(images) > _READ_AT_ONCE
    if budget is None or is_read_in_pieces:
        return
    (height, width), channels = images.images.shape[1:3], 3 if images.images.ndim == 4 else 1

    def needed(side: int) -> int:
        share = side / max(height, width)
        shift = settings.max_shift if settings.max_shift == "auto" else share * float(settings.max_shift)
        shape = round(share * height), round(share * width)
        return _clustering_memory(len(images), shape, channels, replace(settings, max_shift=shift))

    if (full := needed(max(height, width))) > budget:
        fitting = next((side for side in range(max(height, width) - 1, 7, -1) if needed(side) <= budget), None)
        raise MemoryBudgetError(full, budget, f"{len(images)} images of {height} x {width}", fitting)


def _clustering_memory(count: int, shape: tuple[int, int], channels: int, settings: RunSettings) -> int:
    """What the process takes at the peak of a clustering of images in memory, in bytes."""
    from unpose.align import Search
    from unpose.align.memory import needed_memory

    parameters = settings.search_parameters()
    bounds = {name: parameters[name] for name in ("group", "max_angle", "max_shift", "max_scale")}
    n_threads = os.cpu_count() or 1 if settings.jobs == "auto" else int(settings.jobs)
    search = needed_memory(count, 0, shape, channels, Search(**bounds, n_jobs=n_threads))
    images = 4 * count * math.prod(shape) * channels
    scratch = _THREAD_BYTES * min(n_threads, math.ceil(count / _THREAD_IMAGES))
    return search + _CLUSTERING_BYTES + _COPIES * images + scratch
