"""``unpose predict``: the cluster of a run, or the class of a network, for new images."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.errors import parameter_errors
from unpose.cli.shared.inputs import ImagesPath, ModelFile, load_model, pick_device, read_on_canvas, use_features
from unpose.cli.shared.options import device_option, features_again_option
from unpose.cli.shared.output import check_output, write_table
from unpose.cli.shared.progress import progress
from unpose.runs import LEAST_P_VALUE, read_run
from unpose.runs.tables import csv_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unpose.cluster import Assignment
    from unpose.data import ImageSet

_RUN_COLUMNS = (
    "path", "frame", "cluster", "confidence", "fits", "p_value", "angle", "shift_x", "shift_y", "scale", "mirrored",
    "distance", "second",
)  # fmt: skip


@click.command(
    epilog="""\b
    Examples:
      unpose predict run new/ -o new.csv
      unpose predict run new/ --json | jq '.images[].cluster'
      unpose predict --model mnist-c8 digits/            a network of the package
      unpose predict --model mnist-c8 scans/ --match-light
    """
)
@click.argument("given", nargs=-1, required=True, metavar="[RUN] IMAGES", type=ImagesPath())
@click.option(
    "--model", type=ModelFile(),
    help="Use a network, not groups: a run of `unpose train`, the network file in it, or a name that `unpose models` "
         "lists.",
)  # fmt: skip
@click.option(
    "--match-light", is_flag=True,
    help="Change background and contrast of images unlike any training image to those of the training images.",
)  # fmt: skip
@features_again_option
@click.option("--json", "as_json", is_flag=True, help="Write JSON instead of CSV.")
@device_option
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Write to this file, not to stdout.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(
    given: tuple[Path, ...], model: Path | None, match_light: bool, features: str | None, as_json: bool, device: str,
    out: Path | None, force: bool,
) -> None:  # fmt: skip
    """Assign new images to the clusters of a run, or to the classes of a network.

    The command writes a table with one row for each image, to stdout or to a file.

    RUN is a folder that `unpose cluster` wrote. The images of the run that are most similar to a new image, over all
    poses, vote for its cluster, as in the run itself.

    The table gives the cluster; the confidence, which is the cluster's share of the votes; whether the image fits; and
    the p-value, which is small if few of the cluster's members are as far from the images most similar to them or, for
    more than twelve new images, if few images of the run have as many of those among their neighbours: give new images
    together. An image with a p-value below 0.05 does not fit, so it may be of a kind that the run has not seen, but so
    may one in twenty of the known kinds. Both are empty for clusters of fewer than five different images. Then come the
    rotation angle, shift (in pixels of the run's canvas) and scale, whether the image is mirrored, the distance from
    the mean of the cluster, and the cluster with the second most votes, if any. The distance is that of the pose
    search, which ignores light if the run did; the distance in the run's labels.csv is the RMS difference of pixels.

    With --model there is no RUN, and the table gives the class of each image and the probability of every class. Images
    are scaled to the size of the network's training images: their aspect ratio is kept, and the rest is filled with
    the median of their border. A network for grey images sees the brightness of coloured ones. A note says if most
    images have a background or contrast outside of the range of the training images, such as ink on paper where the
    network learnt light on dark; --match-light changes those images, and only those.
    """
    if match_light and model is None:
        raise click.UsageError("--match-light needs --model; runs do not compare the light of new images")
    if features is not None and model is not None:
        raise click.UsageError("--features is for groups, and --model predicts classes; give one of them")
    if len(given) != (2 if model is None else 1):
        wanted = "a run and images: unpose predict RUN IMAGES" if model is None else "only images besides --model"
        raise click.UsageError(f"give {wanted} ({len(given)} given)")
    if out is not None:
        check_output(out, force)
    if model is not None:
        _predict_classes(model, given[0], out, as_json, device, match_light)
    else:
        _predict_clusters(given[0], given[1], features, out, as_json, device)


# With a run ----------------------------------------------------------------------------------------------------------


def _predict_clusters(
    run: Path, source: Path, features: str | None, out: Path | None, as_json: bool, device: str
) -> None:
    """Write the cluster of every image, its confidence, whether it fits, its pose and its distance from the mean."""
    results = read_run(run)
    use_features(results, features)
    torch_device = str(pick_device(device))
    with progress() as report:
        images = read_on_canvas(results, source, report)
        found = results.model.set_params(device=torch_device).assign(images.images, progress=report)
    rows = [_cluster_row(*each, found, k) for k, each in enumerate(zip(images.names, images.frames, strict=True))]
    if as_json:
        not_read = [{"path": name, "reason": reason} for name, reason in images.rejected]
        text = json.dumps({"images": rows, "not_read": not_read}, indent=2) + "\n"
    else:
        text = csv_text(_RUN_COLUMNS, rows)
    write_table(text, out, len(rows), images.rejected)
    foreign, known = (sum(row["fits"] is answer for row in rows) for answer in (False, True))
    expected = LEAST_P_VALUE * (foreign + known)
    if foreign > expected + 2 * expected**0.5:  # more than chance gives among images of known kinds
        click.echo(
            f"note: {foreign:,} of {len(rows):,} images fit no cluster of the run and may be of another kind; see the "
            "column fits",
            err=True,
        )


def _cluster_row(name: str, frame: Any, found: "Assignment", k: int) -> dict[str, Any]:
    """The row of image k; a constant image has cluster -1 and no pose."""
    from unpose.groups import pose_parts

    label, p_value = int(found.labels[k]), float(found.p_values[k])
    row: dict[str, Any] = {"path": name, "frame": int(frame), "cluster": label}
    row |= {"confidence": float(found.confidences[k])}
    is_known = not math.isnan(p_value)
    row |= {"fits": p_value >= LEAST_P_VALUE if is_known else None, "p_value": p_value if is_known else None}
    if label >= 0:
        row |= pose_parts(found.poses[k]) | {"distance": float(found.distances[k])}
        row["second"] = int(found.second[k]) if found.second[k] >= 0 else None
    return row


# With a network ------------------------------------------------------------------------------------------------------


def _predict_classes(
    model: Path, source: Path, out: Path | None, as_json: bool, device: str, match_light: bool
) -> None:
    """Write the class and the probabilities of every image; images that cannot be read and notes go to stderr."""
    from unpose.data import read_folder
    from unpose.images import common_light_difference
    from unpose.images import match_light as with_light
    from unpose.train import predict_logits
    from unpose.train.cards import read_light

    network, classes = load_model(model, device, "--model")
    height, width = network.description["image_size"]
    channels = network.description["in_channels"]
    if channels not in (1, 3):
        raise click.BadParameter(f"it takes {channels} channels, and images have 1 or 3", param_hint="--model")
    with parameter_errors("--model"):
        light = read_light(model)
    if match_light and (light is None or not light.is_common):
        raise click.UsageError("--match-light: the network's file does not state a background that its images share")
    with parameter_errors("IMAGES"):
        images = read_folder(source, size=(height, width), colour="auto" if channels == 1 else "rgb", min_images=1)
    pixels, notes = _fit_to_network(images, channels, (height, width))
    if match_light and light is not None:
        pixels = with_light(pixels, light)
    elif light is not None and (difference := common_light_difference(pixels, light)):
        notes.append(
            f"{difference}, compared with the training images, which are {light}; --match-light changes the light of "
            "such images and leaves the others as they are"
        )
    probabilities = predict_logits(network, pixels).double().softmax(1).tolist()  # (n, classes)
    best = [classes[max(range(len(each)), key=each.__getitem__)] for each in probabilities]
    rows = list(zip(images.names, best, probabilities, strict=True))
    if as_json:
        answers = [
            {"name": name, "class": label, "probabilities": dict(zip(classes, each, strict=True))}
            for name, label, each in rows
        ]
        not_read = [{"name": name, "reason": reason} for name, reason in images.rejected]
        text = json.dumps({"images": answers, "not_read": not_read, "notes": notes}, indent=2) + "\n"
    else:
        text = csv_text(["name", "class", *classes], [[name, label, *each] for name, label, each in rows])
    write_table(text, out, len(rows), images.rejected)
    for note in notes:
        click.echo(f"note: {note}", err=True)


def _fit_to_network(images: "ImageSet", channels: int, shape: tuple[int, int]) -> "tuple[NDArray, list[str]]":
    """The images with the height, width and channels that a network needs, and notes on how they were changed."""
    import numpy as np

    from unpose.files import LUMINANCE
    from unpose.images import onto_canvas

    pixels, notes = images.images, []
    if images.source_shape != shape:
        notes.append(
            f"images are scaled to fit the network's {shape[0]} x {shape[1]} pixels, their aspect ratio kept, and "
            "padded with the median of their border"
        )
    if pixels.shape[1:3] != shape:
        pixels = np.stack([onto_canvas(image, shape) for image in pixels])
    if channels == 1 and pixels.ndim == 4:
        notes.append("some images are coloured; the network sees only their brightness")
        pixels = pixels @ LUMINANCE
    return pixels, notes
