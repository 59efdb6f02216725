"""``unpose predict RUN``: which cluster of a run new images belong to."""

import json
from pathlib import Path
from typing import Any

from unpose.cli.shared.errors import Refused
from unpose.cli.shared.tables import as_csv, deliver, pose_parts

_COLUMNS = (
    "path", "frame", "cluster", "angle", "shift_x", "shift_y", "scale", "mirrored", "distance", "second",
    "second_distance",
)  # fmt: skip


def predict_run(run: Path, images: Path, out: Path | None, as_json: bool, device: str) -> None:
    """Write the cluster of every image, its pose, how far its mean is, and which comes second; as CSV or JSON."""
    import numpy as np

    from unpose.cli.shared.networks import pick_device
    from unpose.cli.shared.progress import progress
    from unpose.data import read_images
    from unpose.images.canvas import onto_canvas
    from unpose.runs.finished import read_run

    found = read_run(run)
    picked = str(pick_device(device))
    try:
        with progress() as report:
            new = read_images(images, size=max(found.shape), color=found.color, fewest=1, progress=report)
            # The rule for the canvas looks at all images: new ones of another shape are brought to the run's own.
            canvas = np.stack([onto_canvas(image, found.shape) for image in new.images])
            model = found.model.set_params(device=picked, progress=report)
            distances, poses = model.place(canvas)
    except ValueError as error:
        raise Refused(str(error)) from error
    rows = [_row(*each) for each in zip(new.names, new.frames, distances, poses, strict=True)]
    if as_json:
        not_read = [{"path": name, "reason": reason} for name, reason in new.rejected]
        text = json.dumps({"images": rows, "not_read": not_read}, indent=2) + "\n"
    else:
        text = as_csv(_COLUMNS, rows)
    deliver(text, out, len(rows), new.rejected)


def _row(name: str, frame: Any, distances: Any, poses: Any) -> dict[str, Any]:
    """The nearest mean, the pose onto it, and the mean after it; no cluster for an image that shows nothing."""
    import numpy as np

    row: dict[str, Any] = {"path": name, "frame": int(frame), "cluster": -1}
    order = np.argsort(distances, kind="stable")
    if np.isfinite(distances[order[0]]):
        row |= {"cluster": int(order[0])} | pose_parts(poses[order[0]]) | {"distance": float(distances[order[0]])}
        if len(order) > 1:
            row |= {"second": int(order[1]), "second_distance": float(distances[order[1]])}
    return row
