"""Accuracy as a function of the rotation angle of the test images."""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

N_ANGLES = 24
STEP_DEGREES = 360 // N_ANGLES


def sweep_angles() -> list[float]:
    """``N_ANGLES`` equally spaced angles of the full circle, in radians, beginning with 0."""
    return [2 * math.pi * step / N_ANGLES for step in range(N_ANGLES)]


def sweep_picture(accuracies: "dict[str, NDArray]", title: str) -> "Image":
    """Plot accuracies (N_ANGLES,) against the angle, one curve for each network."""
    from unpose.report import figures

    return figures.curve(
        {name: 100 * curve for name, curve in accuracies.items()},
        title=title,
        x_label=f"rotation of the test images, in steps of {STEP_DEGREES} degrees",
        y_label="accuracy, per cent",
        size=(620, 320),
    )
