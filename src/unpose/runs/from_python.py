"""The page of an estimator that was fitted in Python, as ``unpose cluster`` writes it."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unpose.runs.finished import FinishedRun, write_run
from unpose.runs.folder import RunFolder
from unpose.runs.settings import RunSettings

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from unpose.cluster import InvariantClustering
    from unpose.data import ImageSet


def write_report(
    model: "InvariantClustering",
    images: "ArrayLike | ImageSet | Sequence[ArrayLike]",
    folder: str | os.PathLike[str],
    *,
    title: str = "images",
    force: bool = False,
) -> FinishedRun:
    """Write a fitted estimator as a run folder with its page, ``report.html``.

    The folder is like one of ``unpose cluster``: :func:`read_run`, ``unpose report``, ``unpose predict`` and
    ``unpose export --to csv`` work on it.

    Parameters
    ----------
    model : InvariantClustering
        The estimator, fitted to ``images``.
    images : array, list of arrays, or ImageSet
        The images that were fitted: grey or RGB, or what :func:`unpose.data.read_images` returned, whose file names
        then appear on the page.
    folder : str or path
        The run folder. It is created if needed; files that no run wrote are never replaced.
    title : str, default "images"
        What the images are called on the page.
    force : bool, default False
        Replace a finished run in the folder.

    Returns
    -------
    FinishedRun
        The run that was written.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from unpose.cluster import InvariantClustering
    >>> images = np.stack([np.rot90(np.tri(13), k) for k in range(4)])
    >>> model = InvariantClustering(1).fit(images)
    >>> with tempfile.TemporaryDirectory() as place:
    ...     run = write_report(model, images, f"{place}/run", title="triangles")
    ...     (run.path / "report.html").exists(), run.names
    (True, ['0', '1', '2', '3'])
    """
    shown, path, source = _image_set(model, images), Path(folder), Path(title)
    settings = RunSettings(
        clusters=model.n_clusters or "auto", group=str(model.range_.group),
        max_angle=math.degrees(model.range_.max_angle), max_scale=float(model.range_.max_scale),
        max_shift="auto" if model.max_shift is None else float(model.max_shift),
        light=model.light, mask="none" if model.mask is None else str(model.mask), size=max(model.image_shape_[:2]),
        seed=model.random_state if isinstance(model.random_state, int) else 0, device=str(model.device),
    )  # fmt: skip
    if not shown.paths:
        shown = replace(shown, paths=[source] * len(shown))
    run_folder = RunFolder(path)
    with run_folder.begin("cluster", settings, shown, force=force):
        run = write_run(path, source, shown, model, settings, " ".join(repr(model).split()))
        run.write_page()
        run_folder.finish()
    return run


def _image_set(model: "InvariantClustering", images: Any) -> "ImageSet":
    """The fitted images, with the channels last and at the size that was fitted."""
    import numpy as np

    from unpose.data import ImageSet, read_images

    if not hasattr(model, "image_shape_"):
        raise ValueError("the estimator must be fitted to images first; vectors have no page")
    if not isinstance(images, ImageSet):
        if hasattr(images, "detach"):
            images = images.detach().cpu().numpy()
        if isinstance(images, np.ndarray) and images.ndim == 4 and images.shape[1:] != model.image_shape_:
            images = np.moveaxis(images, 1, -1)  # (n, c, h, w), as the estimator accepts it
        colour: Any = "rgb" if len(model.image_shape_) == 3 else "grey"
        images = read_images(list(images), size=max(model.image_shape_[:2]), colour=colour, min_images=1)
    if images.images.shape != (len(model.labels_), *model.image_shape_):
        raise ValueError(
            f"images must be the {len(model.labels_)} images of shape {model.image_shape_} that were fitted, got shape "
            f"{images.images.shape}"
        )
    return images
