"""What a network's file says about the images that it was trained on, for ``predict`` and ``evaluate``."""

from collections.abc import Set as AbstractSet
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import Any

from unpose.data import Dataset
from unpose.data.splits import encode_fingerprints, image_fingerprints
from unpose.images import measure_light
from unpose.train.checkpoint import save_network
from unpose.train.limits import Limits
from unpose.train.quick import QuickResult

_IMAGES_FOR_LIGHT = 1000


def light_note(dataset: Dataset) -> dict[str, Any]:
    """Measure the light of about a thousand evenly spaced training images; `predict` compares its images with it."""
    step = -(-len(dataset.train) // _IMAGES_FOR_LIGHT)
    return asdict(measure_light(dataset.train.images[::step]))


def hash_note(dataset: Dataset, limits: Limits, before: AbstractSet[bytes] = frozenset()) -> dict[str, str]:
    """Return a note with the hashes of all training and validation images; empty if there are more than are listed.

    ``before`` has the hashes of the images that a starting network was trained on.
    """
    if len(dataset.train) + len(dataset.validation) > limits.listed_images:
        return {}
    known = {*image_fingerprints(dataset.train.images), *image_fingerprints(dataset.validation.images), *before}
    return {"learnt": encode_fingerprints(known)} if len(known) <= limits.listed_images else {}


def save_quick(path: str | PathLike[str], result: QuickResult, dataset: Dataset) -> Path:
    """Write the classifier of :func:`unpose.train.train_quick` to a file, as :func:`unpose.train.save_network` does.

    The file also has the light of the training images, and hashes by which ``unpose evaluate`` recognises them.

    Parameters
    ----------
    path : path-like
    result : QuickResult
    dataset : Dataset
        The data that it was fitted to.

    Returns
    -------
    pathlib.Path

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> import numpy as np
    >>> from unpose.data import Split
    >>> from unpose.train import load_network, train_quick
    >>> part = Split(np.random.default_rng(0).random((8, 9, 9)), np.arange(8) % 2)
    >>> dataset = Dataset("noise", "made up", ("a", "b"), part, part, part)
    >>> with TemporaryDirectory() as folder:
    ...     path = save_quick(f"{folder}/quick.safetensors", train_quick(dataset), dataset)
    ...     load_network(path).group
    d4
    """
    about = {"classifier": result.classifier, "cross_validation": result.accuracy, "images": result.images}
    notes = {"quick": about, "data": dataset.name, "light": light_note(dataset)} | hash_note(dataset, Limits())
    return save_network(path, result.network, classes=dataset.classes, notes=notes)
