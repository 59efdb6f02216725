"""Save a fitted estimator as JSON and safetensors. Loading executes no code from the files."""

import hashlib
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
from unpose.cluster.features import NAMES, STATISTICS, FeatureSpace, network_digest
from unpose.cluster.joint_graph import FittedFeatures
from unpose.cluster.light import LIGHT_CONTRAST
from unpose.cluster.pose_range import PoseRange
from unpose.cluster.rounds import Round
from unpose.files import Folder, file_inside
from unpose.groups import LieGroup
from unpose.images.imagenet import EXTRA_NETWORK

FORMAT = 4
"""Version of the format; increased when an older version of unpose would misread the files."""
_ARRAYS = (
    "labels_", "means_", "standard_errors_", "poses_", "confidences_", "exemplars_", "symmetries_", "copies_",
    "references_",
)  # fmt: skip
_PARAMETERS = (
    "n_clusters", "group", "image_shape", "max_angle", "max_shift", "max_scale", "light", "mask",
    "channels_first", "random_state", "features",
)  # fmt: skip
_MAX_BYTES = 2**33


def save(model: Any, folder: str | os.PathLike[str]) -> None:
    """Write ``model.safetensors`` and ``model.json`` of a fitted InvariantClustering, each completely or not at all."""
    arrays = {name: getattr(model, name) for name in _ARRAYS}
    weights = sparse.csr_array(model.weights_)
    arrays |= {
        "weights.data": weights.data, "weights.indices": weights.indices.astype(np.int64),
        "weights.indptr": weights.indptr.astype(np.int64), "neighbours.indices": model.neighbours_.indices,
        "neighbours.distances": model.neighbours_.distances, "neighbours.poses": model.neighbours_.poses,
        "typical_distances": model._typical_distances,
    }  # fmt: skip
    if model.probabilities_ is not None:
        arrays |= {"classes_": model.classes_, "probabilities_": model.probabilities_, "labelled": model._labelled}
    if (fitted := model.features_) is not None:
        arrays |= {
            "features.mean": fitted.space.mean, "features.basis": fitted.space.basis,
            "features.whitening": fitted.whitening, "features.points": fitted.points,
        }  # fmt: skip
    if model._digests is not None:
        arrays["digests"] = model._digests
    if model._reference_rows is not None:
        arrays["reference_rows"] = model._reference_rows
    parameters = {name: _json_value(getattr(model, name)) for name in _PARAMETERS}
    # A group that was found is saved by its name: images that arrive later are compared in the same way.
    parameters |= {"group": _json_value(model.range_.group), "max_angle": model.range_.max_angle}
    parameters |= {"max_scale": model.range_.max_scale}
    if parameters["features"] not in NAMES:  # a file is found again by its name and checksum, which stand below
        parameters["features"] = None
    about = {
        "format": FORMAT, "kind": "InvariantClustering", "parameters": parameters,
        "features": None if fitted is None else {
            "network": fitted.network, "pixel_share": fitted.pixel_share,
            "pose_change": None if math.isnan(fitted.pose_change) else fitted.pose_change, "sha256": fitted.digest,
        },
        "light": model.light_, "local_gain": model._local_gain,
        "stability": None if math.isnan(model.stability_) else model.stability_,
        "n_fitted": model._n_fitted,
        "n_clusters": model.n_clusters_, "n_clusters_range": model.n_clusters_range_,
        "n_features_in": model.n_features_in_, "plain": model._is_vectors,
        "image_shape": list(getattr(model, "image_shape_", ())), "history": [asdict(each) for each in model.history_],
    }  # fmt: skip
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}  # others would be saved transposed
    content = safetensors.numpy.save(arrays)
    about["arrays_sha256"] = hashlib.sha256(content).hexdigest()  # each file is written at once, but not both together
    with Folder(folder, create=True) as target:
        target.write_chunks("model.safetensors", [content])
        target.write_json("model.json", about, indent=1)


def load(kind: type, folder: str | os.PathLike[str]) -> Any:
    """Load an estimator of this class from a folder; raises a ValueError if :func:`save` did not write the files."""
    source = Path(folder)
    try:
        with Folder(source) as opened:
            about = opened.read_json("model.json", _MAX_BYTES)
            content = opened.read("model.safetensors", _MAX_BYTES)
        if not isinstance(about, dict) or about.get("kind") != "InvariantClustering":
            raise ValueError("model.json does not describe an InvariantClustering")
        if about.get("format") != FORMAT:
            raise ValueError(
                f"it has format {about.get('format')!r}, this version of unpose reads format {FORMAT}; another version "
                "wrote it"
            )
        if about.get("arrays_sha256", digest := hashlib.sha256(content).hexdigest()) != digest:
            raise ValueError("model.json and model.safetensors were not saved together; save the model again")
        model = _rebuild(kind, about, safetensors.numpy.load(content))
    except FileNotFoundError as error:
        raise ValueError(f"{source} contains no saved model: {Path(error.filename).name} is missing") from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, safetensors.SafetensorError) as error:
        raise ValueError(f"{source} does not contain a model that unpose can read: {error}") from error
    if model.features is None and model.features_ is not None:
        model.features = _network_inside(source, model.features_)
    return model


def _network_inside(folder: Path, fitted: FittedFeatures) -> str | None:
    """The network of the estimator if it lies in the same folder, such as one that the run learnt; otherwise None.

    The folder may come from a stranger: only a plain name is followed, to a file that is no link, of the checksum that
    is written down.
    """
    file = file_inside(folder, fitted.network) or file_inside(folder, fitted.network, "model.safetensors")
    if file is None or file.suffix not in (".onnx", ".safetensors") or network_digest(file) != fitted.digest:
        return None
    return str(folder / fitted.network)


def _rebuild(kind: type, about: dict[str, Any], arrays: dict[str, Any]) -> Any:
    """Set all attributes of a new estimator, and check that they fit together."""
    parameters = {name: about["parameters"][name] for name in _PARAMETERS}
    if parameters["image_shape"] is not None:
        parameters["image_shape"] = tuple(int(side) for side in parameters["image_shape"])
    if parameters["features"] not in NAMES:
        parameters["features"] = None  # a file of a model is data of the user, and nothing in the folder can name it
    model = kind(parameters.pop("n_clusters"), **parameters)
    model.range_, model.names_ = PoseRange(model.group, model.max_angle, model.max_scale), None
    for name in _ARRAYS:
        setattr(model, name, arrays[name])
    n, count = len(model.labels_), int(about["n_clusters"])
    shape, is_vectors = tuple(int(side) for side in about["image_shape"]), bool(about["plain"])
    row = (int(about["n_features_in"]),) if is_vectors else shape
    wanted = {
        "labels_": (n,), "confidences_": (n,), "copies_": (n,), "poses_": (n, 3, 3), "means_": (count, *row),
        "exemplars_": (count,), "standard_errors_": (count, *row), "symmetries_": (count,),
    }  # fmt: skip
    for name, size in wanted.items():
        if arrays[name].shape != size:
            raise ValueError(f"{name} has shape {arrays[name].shape}, not {size}")
    model._n_fitted = int(about.get("n_fitted", n))  # without images that were added
    n_counted = int(((model.labels_ >= 0) & (model.copies_ == np.arange(n)))[: model._n_fitted].sum())
    model._reference_rows = rows = arrays.get("reference_rows")
    if rows is not None and (
        rows.shape != (len(arrays["references_"]),) or not ((rows >= 0) & (rows < n_counted)).all()
    ):
        raise ValueError(f"reference_rows are not rows of the {n_counted} images that count")
    if (rows is None and len(arrays["references_"]) != n_counted) or arrays["typical_distances"].shape != (n_counted,):
        raise ValueError(f"references_ or typical_distances do not belong to the {n_counted} images that count")
    if not ((arrays["copies_"] >= 0) & (arrays["copies_"] <= np.arange(n))).all():
        raise ValueError("copies_ has entries that are not earlier images")
    if count < 1 or (not is_vectors and math.prod(shape) != about["n_features_in"]):
        raise ValueError("its numbers are inconsistent")
    parts = (arrays["weights.data"], arrays["weights.indices"], arrays["weights.indptr"])
    model.weights_ = sparse.csr_array(parts, shape=(n, n))
    model.weights_.check_format(full_check=True)
    model.neighbours_ = Neighbours(*(arrays[f"neighbours.{name}"] for name in ("indices", "distances", "poses")))
    model.features_ = _rebuild_features(about["features"], arrays, n_counted)
    if model.features == "auto" and model.features_ and model.features_.network not in (STATISTICS, EXTRA_NETWORK):
        raise ValueError(f"{model.features_.network!r} is no network that is chosen automatically")
    model.classes_, model.probabilities_ = arrays.get("classes_"), arrays.get("probabilities_")
    if model.classes_ is not None and arrays["probabilities_"].shape != (n, len(model.classes_)):
        raise ValueError("probabilities_ do not belong to the images and classes")
    model._digests = arrays.get("digests")
    if model._digests is not None and (model._digests.shape != (n, 32) or model._digests.dtype != np.uint8):
        raise ValueError(f"digests are not 32 bytes for each of {n} images")
    model._labelled = arrays.get("labelled", np.zeros(n, bool))
    if "labelled" not in arrays and model.classes_ is not None:  # of an earlier version
        model._labelled = arrays["probabilities_"].max(1) == 1.0
    if model._labelled.shape != (n,) or model._labelled.dtype != bool:
        raise ValueError(f"labelled are not {n} truth values")
    model.light_, model._local_gain = str(about["light"]), float(about["local_gain"])
    if model.light_ not in LIGHT_CONTRAST:
        raise ValueError(f"light is {model.light_!r}")
    model._typical_distances = arrays["typical_distances"]
    model.stability_ = math.nan if about["stability"] is None else float(about["stability"])
    model.n_clusters_, model.n_features_in_ = count, int(about["n_features_in"])
    fewest, most = about["n_clusters_range"]
    model.n_clusters_range_ = int(fewest), int(most)
    model._is_vectors, model._has_channels = is_vectors, len(shape) == 3
    if not is_vectors:
        model.image_shape_ = shape
    model.history_ = [Round(**each) for each in about["history"]]
    model.n_iter_ = max(1, len(model.history_))
    return model


def _rebuild_features(about: dict[str, Any] | None, arrays: dict[str, Any], n_counted: int) -> FittedFeatures | None:
    if about is None:
        return None
    mean, basis, whitening, points = (
        arrays[f"features.{name}"] for name in ("mean", "basis", "whitening", "points")
    )  # fmt: skip
    rank = basis.shape[-1]
    if basis.shape != (len(mean), rank) or whitening.shape != (rank, rank) or points.shape != (n_counted, rank):
        raise ValueError(f"the features do not belong to the {n_counted} images that count")
    change = math.nan if about["pose_change"] is None else float(about["pose_change"])
    return FittedFeatures(
        str(about["network"]), float(about["pixel_share"]), change, FeatureSpace(mean, basis), whitening, points,
        str(about.get("sha256", "")),
    )  # fmt: skip


def _json_value(value: Any) -> Any:
    """Convert a parameter for JSON; a random state that is not a number becomes None."""
    if isinstance(value, LieGroup):
        return value.name
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, tuple | list | np.ndarray):
        return [_json_value(part) for part in value]
    return value if isinstance(value, int | float | str | None) else None
