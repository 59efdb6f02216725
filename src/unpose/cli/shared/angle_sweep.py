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
    """Plot accuracies (N_ANGLES,) against the angle, one curve for each network, from 0 to 100 per cent."""
    from unpose.report import figures

    return figures.curve(
        {name: 100 * full_circle(curve) for name, curve in accuracies.items()},
        title=title,
        x=[STEP_DEGREES * step for step in range(N_ANGLES + 1)],
        x_step=45,
        x_label=f"rotation of the images in degrees, measured every {STEP_DEGREES} degrees",
        y_label="accuracy in per cent, from 0 to 100",
        y_limits=(0.0, 100.0),
        size=(620, 320),
    )


def full_circle(values: "NDArray") -> "NDArray":
    """The values (N_ANGLES,) and the first one again, for 360 degrees."""
    import numpy as np

    return np.append(values, values[0])
