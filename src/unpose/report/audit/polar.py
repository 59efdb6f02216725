"""Curves around the full circle, as coordinates for SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class PolarPlot:
    """Coordinates of a polar plot in a square from -110 to 110, whose outer circle has radius 90.

    An angle of 0 points up, and angles grow counter-clockwise: the direction in which the top of a rotated picture
    points.
    """

    limit: float  # the value of the outer circle
    rings: list[tuple[float, float]]  # radius and value
    spokes: list[tuple[float, float, float, float, str]]  # end point, place of the text, text
    paths: list[str]  # one closed path for each curve
    points: list[list[tuple[float, float]]]  # of each curve


_RADIUS = 90.0


def polar_plot(degrees: Sequence[float], curves: Sequence[Sequence[float]], least: float) -> PolarPlot:
    """Lay out curves over angles; the outer circle is at least ``least``, so that rounding does not fill the plot."""
    highest = max([least, *(value for curve in curves for value in curve if math.isfinite(value))])
    step = _nice_step(highest / 3)
    limit = step * math.ceil(highest / step - 1e-9)
    rings = [(_RADIUS * step * k / limit, step * k) for k in range(1, round(limit / step) + 1)]
    spokes = []
    for angle in range(0, 360, 45):
        x, y = _at(angle, _RADIUS)
        text_x, text_y = _at(angle, _RADIUS + 10)
        spokes.append((x, y, text_x, text_y, f"{angle}°"))
    order = sorted(range(len(degrees)), key=lambda i: degrees[i] % 360)
    points = [
        [_at(degrees[i], _RADIUS * min(curve[i], limit) / limit if math.isfinite(curve[i]) else 0.0) for i in order]
        for curve in curves
    ]
    paths = ["M" + "L".join(f"{x:.2f} {y:.2f}" for x, y in line) + "Z" if line else "" for line in points]
    return PolarPlot(limit, rings, spokes, paths, points)


def _at(degrees: float, radius: float) -> tuple[float, float]:
    angle = math.radians(degrees)
    return (round(-radius * math.sin(angle), 2) + 0.0, round(-radius * math.cos(angle), 2) + 0.0)


def _nice_step(rough: float) -> float:
    """The smallest of 1, 2, 2.5, 5 and 10 times a power of ten that is not below ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in _STEPS if factor * power >= rough * (1 - 1e-9))
