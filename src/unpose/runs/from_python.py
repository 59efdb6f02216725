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
    images : like X of :meth:`InvariantClustering.fit`
        The images that were fitted. The page has the names of their files.
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
    features, facts = _features(model.features)
    settings = replace(settings, features=features)
    run_folder = RunFolder(path)
    with run_folder.begin("cluster", settings, shown, force=force):
        run = write_run(path, source, shown, model, settings, " ".join(repr(model).split()))
        if facts:
            run_folder.write_config(settings, source, shown, run.about["fingerprint"], facts=facts)
        run.write_page()
        run_folder.finish()
    return run


def _features(features: Any) -> tuple[str, dict[str, str]]:
    """The setting that repeats the features of a model, and what config.toml says where no setting does."""
    if isinstance(features, str | os.PathLike):
        return os.fspath(features), {}
    kind = getattr(features, "__name__", type(features).__name__)
    return "pixels", {
        "features": f"the model was fitted with the object {kind} of Python, which --features cannot name; export it "
        "as an ONNX file and give that to --features"
    }  # fmt: skip


def _image_set(model: "InvariantClustering", images: Any) -> "ImageSet":
    """The fitted images, with the channels last and at the size that was fitted."""
    import numpy as np

    from unpose.cluster.page import fitted_images
    from unpose.data import ImageSet

    pixels, names = fitted_images(model, images)
    if isinstance(images, ImageSet):
        return images
    height, width = pixels.shape[1:3]
    canvas = f"all images are {height} x {width}, as they were fitted"
    return ImageSet(pixels, names, [], np.arange(len(pixels)), None, [], canvas, (height, width), [])
