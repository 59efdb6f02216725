"""A fitted estimator as two files: JSON for what a person may read, safetensors for arrays. Nothing is executed."""

import json
import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from scipy import sparse

from unpose.align import Neighbours
from unpose.cluster.rounds import Round
from unpose.files.atomic import read_file, write_chunks
from unpose.groups import LieGroup

FORMAT = 1
"""Version of the layout; raised when an older reader would misread the files."""
_ARRAYS = (
    "labels_", "means_", "standard_errors_", "poses_", "confidences_", "exemplars_", "symmetries_",
)  # fmt: skip
_PARAMETERS = (
    "n_clusters", "group", "image_shape", "max_angle", "max_shift", "max_scale", "light", "mask", "random_state",
)  # fmt: skip
_LARGEST = 2**33


def save(model: Any, folder: str | os.PathLike[str]) -> None:
    """Write a fitted ``InvariantClustering``: ``model.safetensors``, then ``model.json``, each whole or not at all."""
    arrays = {name: np.ascontiguousarray(getattr(model, name)) for name in _ARRAYS}
    weights = sparse.csr_array(model.weights_)
    arrays |= {
        "weights.data": weights.data, "weights.indices": weights.indices.astype(np.int64),
        "weights.indptr": weights.indptr.astype(np.int64), "neighbours.indices": model.neighbours_.indices,
        "neighbours.distances": model.neighbours_.distances, "neighbours.poses": model.neighbours_.poses,
    }  # fmt: skip
    parameters = {name: _plain(getattr(model, name)) for name in _PARAMETERS}
    about = {
        "format": FORMAT, "kind": "InvariantClustering", "parameters": parameters,
        "n_clusters": model.n_clusters_, "n_features_in": model.n_features_in_, "plain": model._plain,
        "image_shape": list(getattr(model, "image_shape_", ())), "history": [asdict(each) for each in model.history_],
    }  # fmt: skip
    target = Path(folder)
    write_chunks(target / "model.safetensors", [safetensors.numpy.save(arrays)])
    write_chunks(target / "model.json", [(json.dumps(about, indent=1, allow_nan=False) + "\n").encode()])


def load(kind: type, folder: str | os.PathLike[str]) -> Any:
    """The estimator, of this class, in a folder; a ``ValueError`` for anything that :func:`save` did not write."""
    source = Path(folder)
    try:
        about = json.loads(read_file(source / "model.json", _LARGEST))
        if not isinstance(about, dict) or about.get("kind") != "InvariantClustering":
            raise ValueError("model.json does not describe an InvariantClustering")
        if about.get("format") != FORMAT:
            raise ValueError(
                f"it has layout {about.get('format')!r}, this version of unpose reads layout {FORMAT}; a newer version "
                "may have written it"
            )
        arrays = safetensors.numpy.load(read_file(source / "model.safetensors", _LARGEST))
        return _rebuilt(kind, about, arrays)
    except FileNotFoundError as error:
        raise ValueError(f"{source} holds no saved model: {Path(error.filename).name} is missing") from error
    except (ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise ValueError(f"{source} does not hold a model that unpose can read: {error}") from error


def _rebuilt(kind: type, about: dict[str, Any], arrays: dict[str, Any]) -> Any:
    parameters = {name: about["parameters"][name] for name in _PARAMETERS}
    if parameters["image_shape"] is not None:
        parameters["image_shape"] = tuple(int(side) for side in parameters["image_shape"])
    model = kind(parameters.pop("n_clusters"), **parameters)
    for name in _ARRAYS:
        setattr(model, name, arrays[name])
    n, count = len(model.labels_), int(about["n_clusters"])
    shape, plain = tuple(int(side) for side in about["image_shape"]), bool(about["plain"])
    row = (int(about["n_features_in"]),) if plain else shape
    wanted = {
        "labels_": (n,), "confidences_": (n,), "poses_": (n, 3, 3), "means_": (count, *row), "exemplars_": (count,),
        "standard_errors_": (count, *row), "symmetries_": (count,),
    }  # fmt: skip
    for name, size in wanted.items():
        if arrays[name].shape != size:
            raise ValueError(f"{name} has shape {arrays[name].shape}, not {size}")
    if count < 1 or (not plain and math.prod(shape) != about["n_features_in"]):
        raise ValueError("its numbers do not fit together")
    parts = (arrays["weights.data"], arrays["weights.indices"], arrays["weights.indptr"])
    model.weights_ = sparse.csr_array(parts, shape=(n, n))
    model.weights_.check_format(full_check=True)
    model.neighbours_ = Neighbours(*(arrays[f"neighbours.{name}"] for name in ("indices", "distances", "poses")))
    model.n_clusters_, model.n_features_in_ = count, int(about["n_features_in"])
    model._plain, model._channels = plain, len(shape) == 3
    if not plain:
        model.image_shape_ = shape
    model.history_ = [Round(**each) for each in about["history"]]
    model.n_iter_ = max(1, len(model.history_))
    return model


def _plain(value: Any) -> Any:
    """A parameter as JSON holds it; a random state that is not a number has no name to be saved under."""
    if isinstance(value, LieGroup):
        return value.name
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, tuple | list | np.ndarray):
        return [_plain(part) for part in value]
    return value if isinstance(value, int | float | str | None) else None
