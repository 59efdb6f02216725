"""Figures for reports: numpy arrays in, Pillow images out, always on a white background."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

__all__ = ["PALETTE", "above", "beside", "curve", "matrix", "montage", "scatter"]

Colour = tuple[int, int, int]
Floats = NDArray[np.float64]

# The colour-blind safe palette of Okabe and Ito, its strongest contrasts first.
PALETTE: Final[tuple[Colour, ...]] = (
    (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167),
    (230, 159, 0), (86, 180, 233), (240, 228, 66), (0, 0, 0),
)  # fmt: skip

# Nine anchors of a perceptually uniform map from dark violet to yellow; colours between are interpolated.
_ANCHORS: Final = np.array(
    [[68, 1, 84], [71, 44, 122], [59, 81, 139], [44, 113, 142], [33, 144, 141], [39, 173, 129], [92, 200, 99],
     [170, 220, 50], [253, 231, 37]], dtype=np.float64,
)  # fmt: skip
_WHITE: Final[Colour] = (255, 255, 255)
_INK: Final[Colour] = (34, 38, 46)
_QUIET: Final[Colour] = (98, 104, 116)
_FRAME: Final[Colour] = (170, 175, 184)
_GRID: Final[Colour] = (234, 236, 240)
_NO_CLUSTER: Final[Colour] = (190, 190, 190)
_SUPERSAMPLING: Final = 4
_PAD: Final = 8
_TEXT: Final = 12
_HEADING: Final = 15
_BORDER: Final = 3
_STRIP: Final = 8
_CROWD: Final = 400


def _checked(values: ArrayLike, name: str, shape: str, ndims: tuple[int, ...]) -> Floats:
    """``values`` as finite floats with one of ``ndims`` axes and at least one entry."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in ndims or array.size == 0:
        raise ValueError(f"{name} must be a non-empty array of shape {shape}, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {int((~np.isfinite(array)).sum())} NaN or infinite entries")
    return array


def _points(values: ArrayLike, name: str) -> Floats:
    points = _checked(values, name, "(n, 2)", (2,))
    if points.shape[1] != 2:
        raise ValueError(f"{name} must have shape (n, 2), got {points.shape}")
    return points


def _label_colours(labels: ArrayLike, count: int, name: str) -> list[Colour]:
    """One colour per int label; the palette repeats when it runs out, negative labels are grey."""
    array = np.asarray(labels)
    if array.shape != (count,) or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} must be {count} integers, got shape {array.shape} of {array.dtype}")
    return [PALETTE[label % len(PALETTE)] if label >= 0 else _NO_CLUSTER for label in array.tolist()]


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)


def _width(text: str, size: int = _TEXT) -> int:
    return int(np.ceil(_font(size).getlength(text)))


def _write(
    image: Image.Image, at: tuple[float, float], text: str, *, anchor: str = "la", size: int = _TEXT,
    colour: Colour = _QUIET,
) -> None:  # fmt: skip
    ImageDraw.Draw(image).text(at, text, fill=colour, font=_font(size), anchor=anchor)


def _titled(body: Image.Image, title: str | None, size: int = _HEADING) -> Image.Image:
    """``body`` with a margin around it and ``title`` above it, widened where the title needs more room."""
    head = size + _PAD if title else 0
    width = max(body.width, _width(title, size) if title else 0) + 2 * _PAD
    figure = Image.new("RGB", (width, body.height + head + 2 * _PAD), _WHITE)
    if title:
        _write(figure, (_PAD, _PAD), title, size=size, colour=_INK)
    figure.paste(body, (_PAD, _PAD + head))
    return figure


def _laid_out(figures: Sequence[Image.Image], columns: int, gap: int) -> Image.Image:
    """Grid of figures, top left aligned: each column as wide, each row as high as its largest figure."""
    if not figures:
        raise ValueError("figures must hold at least one image, got none")
    if gap < 0 or columns < 1:
        raise ValueError(f"gap must be at least 0 and columns at least 1, got gap {gap}, columns {columns}")
    across = min(columns, len(figures))
    widths = [max(figure.width for figure in figures[column::across]) for column in range(across)]
    rows = [figures[start : start + across] for start in range(0, len(figures), across)]
    heights = [max(figure.height for figure in row) for row in rows]
    size = (sum(widths) + gap * (across - 1), sum(heights) + gap * (len(rows) - 1))
    sheet = Image.new("RGB", size, _WHITE)
    for i, row in enumerate(rows):
        for j, figure in enumerate(row):
            sheet.paste(figure, (sum(widths[:j]) + gap * j, sum(heights[:i]) + gap * i))
    return sheet


def _ticks(low: float, high: float, most: int, whole: bool = False) -> Floats:
    """Round numbers inside [low, high], at most about ``most`` of them, whole ones on request."""
    rough = (high - low) / most
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    # Adding zero turns the -0.0 that rounding leaves into 0.0, which prints without a sign.
    return np.round(np.arange(np.ceil(low / step - 1e-9), np.floor(high / step + 1e-9) + 1) * step, 12) + 0.0


def _span(values: Floats, margin: float = 0.06) -> tuple[float, float]:
    """Limits a little wider than the values, and never of zero width."""
    low, high = float(values.min()), float(values.max())
    room = margin * (high - low) or max(abs(high), 1.0) * 0.5
    return low - room, high + room


class _Plot:
    """A framed plot area with ticks: marks are drawn supersampled, texts last and at their own size."""

    def __init__(
        self, limits: tuple[float, float, float, float], size: tuple[int, int | None], *,
        x_label: str | None = None, y_label: str | None = None, whole_x: bool = False,
    ) -> None:  # fmt: skip
        self._limits = limits
        self._labels = (x_label, y_label)
        width, height = size
        foot = _TEXT + 10 + (_TEXT + 6 if x_label else 0)
        self._y_ticks = _ticks(limits[2], limits[3], 5)
        gutter = max(_width(f"{tick:g}") for tick in self._y_ticks) + 8 + (_TEXT + 8 if y_label else 0)
        # Half a tick number may stand out to the right of the frame and above it.
        right, top = width - 16, _TEXT // 2 + 1
        bottom = top + right - gutter if height is None else height - foot
        if right - gutter < 40 or bottom - top < 40:
            raise ValueError(f"size must leave a plot area of at least 40 pixels, got {size}")
        self._x_ticks = _ticks(limits[0], limits[1], max(2, (right - gutter) // 60), whole_x)
        self._box = (gutter, top, right, bottom)
        self._size = (width, bottom + foot)
        self._canvas = Image.new("RGB", (width * _SUPERSAMPLING, self._size[1] * _SUPERSAMPLING), _WHITE)
        # The "RGBA" drawing mode blends translucent dots into the RGB canvas.
        self._pen = ImageDraw.Draw(self._canvas, "RGBA")
        for x in self._across(self._x_ticks):
            self.line(np.array([[x, top], [x, bottom]]), _GRID, 1)
        for y in self._down(self._y_ticks):
            self.line(np.array([[gutter, y], [right, y]]), _GRID, 1)

    def _across(self, x: Floats) -> Floats:
        return self._box[0] + (x - self._limits[0]) / (self._limits[1] - self._limits[0]) * (
            self._box[2] - self._box[0]
        )

    def _down(self, y: Floats) -> Floats:
        return self._box[3] - (y - self._limits[2]) / (self._limits[3] - self._limits[2]) * (
            self._box[3] - self._box[1]
        )

    def pixels(self, points: Floats) -> Floats:
        """Pixel positions (n, 2) of data points (n, 2)."""
        return np.stack([self._across(points[:, 0]), self._down(points[:, 1])], axis=1)

    def line(self, pixels: Floats, colour: Colour, width: float) -> None:
        fine = [(float(x), float(y)) for x, y in pixels * _SUPERSAMPLING]
        self._pen.line(fine, fill=colour, width=round(width * _SUPERSAMPLING), joint="curve")

    def dot(self, pixel: Floats, radius: float, colour: Colour, alpha: int = 255, rim: Colour | None = None) -> None:
        x, y = (float(v) * _SUPERSAMPLING for v in pixel)
        r = radius * _SUPERSAMPLING
        self._pen.ellipse((x - r, y - r, x + r, y + r), (*colour, alpha), rim, 2 * _SUPERSAMPLING if rim else 0)

    def finish(self) -> Image.Image:
        left, top, right, bottom = self._box
        image = self._canvas.reduce(_SUPERSAMPLING)
        # Marks outside the limits are cut at the frame.
        inside = image.crop(self._box)
        image = Image.new("RGB", self._size, _WHITE)
        image.paste(inside, self._box)
        ImageDraw.Draw(image).rectangle(self._box, outline=_FRAME)
        for tick, x in zip(self._x_ticks, self._across(self._x_ticks), strict=True):
            _write(image, (x, bottom + 6), f"{tick:g}", anchor="ma")
        for tick, y in zip(self._y_ticks, self._down(self._y_ticks), strict=True):
            _write(image, (left - 6, y), f"{tick:g}", anchor="rm")
        x_label, y_label = self._labels
        if x_label:
            _write(image, ((left + right) / 2, self._size[1] - 2), x_label, anchor="mb", colour=_INK)
        if y_label:
            side = Image.new("RGB", (_width(y_label) + 2, _TEXT + 6), _WHITE)
            _write(side, (1, 1), y_label, colour=_INK)
            side = side.transpose(Image.Transpose.ROTATE_90)
            image.paste(side, (0, max(0, (top + bottom - side.height) // 2)))
        return image


def montage(
    images: ArrayLike, *, columns: int, labels: Sequence[str] | None = None, title: str | None = None,
    scale: int = 2, frames: Sequence[Colour | None] | None = None,
) -> Image.Image:  # fmt: skip
    """Lay images out as tiles, row by row.

    Parameters
    ----------
    images : array_like, shape (n, h, w) or (n, h, w, 3)
        Grey or RGB images; values outside [0, 1] are clipped.
    columns : int
        Tiles in a row.
    labels : sequence of n str, optional
        A text under each tile.
    title : str, optional
        Heading of the figure.
    scale : int
        Each pixel of an image becomes a square of this side.
    frames : sequence of n RGB colours or None, optional
        A coloured border around each tile.
    """
    shape = "(n, h, w) or (n, h, w, 3)"
    array = _checked(images, "images", shape, (3, 4))
    if array.ndim == 4 and array.shape[3] != 3:
        raise ValueError(f"images must have shape {shape}, got {array.shape}")
    if scale < 1:
        raise ValueError(f"scale must be at least 1, got {scale}")
    for name, given in (("labels", labels), ("frames", frames)):
        if given is not None and len(given) != len(array):
            raise ValueError(f"{name} must be as many as images ({len(array)}), got {len(given)}")
    colours = np.round(np.clip(array, 0.0, 1.0) * 255).astype(np.uint8).repeat(scale, axis=1).repeat(scale, axis=2)
    border = _BORDER if frames else 0
    foot = _TEXT + 8 if labels else 0
    height, width = colours.shape[1] + 2 * border, colours.shape[2] + 2 * border
    room = max([width, *(_width(label) + 4 for label in labels or ())])
    tiles = []
    for i, pixels in enumerate(colours):
        tile = Image.new("RGB", (room, height + foot), _WHITE)
        left = (room - width) // 2
        tile.paste((frames[i] if frames else None) or _WHITE, (left, 0, left + width, height))
        tile.paste(Image.fromarray(pixels).convert("RGB"), (left + border, border))
        if labels:
            _write(tile, (room / 2, height + 4), labels[i], anchor="ma")
        tiles.append(tile)
    return _titled(_laid_out(tiles, columns, 4), title)


def _heat(values: Floats) -> NDArray[np.uint8]:
    """Colours (..., 3) of values in [0, 1]."""
    stops = np.linspace(0.0, 1.0, len(_ANCHORS))
    return np.stack([np.round(np.interp(values, stops, c)) for c in _ANCHORS.T], axis=-1).astype(np.uint8)


def _stretched(colours: NDArray[np.uint8], size: tuple[int, int]) -> Image.Image:
    """Cells (rows, columns, 3) blown up with sharp edges, or averaged when there are more cells than pixels."""
    return Image.fromarray(colours).resize(size, Image.Resampling.BOX)


def matrix(
    values: ArrayLike, *, title: str | None = None, size: int = 360, labels: ArrayLike | None = None
) -> Image.Image:
    """Heat map of a matrix with a colour bar.

    Parameters
    ----------
    values : array_like, shape (n, m)
        The matrix; its first row is on top.
    title : str, optional
        Heading of the figure.
    size : int
        Longer side of the map in pixels.
    labels : array_like of int, shape (n,), optional
        Clusters of a square matrix's rows, drawn as coloured strips along its top and left.
    """
    array = _checked(values, "values", "(n, m)", (2,))
    if size < 40:
        raise ValueError(f"size must be at least 40 pixels, got {size}")
    rows, columns = array.shape
    if labels is not None and rows != columns:
        raise ValueError(f"labels need a square matrix, got shape {array.shape}")
    low, high = float(array.min()), float(array.max())
    # A constant matrix has no range to stretch: it takes the middle colour.
    unit = (array - low) / (high - low) if high > low else np.full(array.shape, 0.5)
    longest = max(rows, columns)
    width, height = (max(1, round(size * count / longest)) for count in (columns, rows))
    edge = _STRIP + 3 if labels is not None else 0
    numbers = [f"{high:.4g}", f"{low:.4g}"]
    bar = edge + width + 12
    tall = max(height, 2 * _TEXT + 8)
    body = Image.new("RGB", (bar + 16 + max(map(_width, numbers)) + 2, edge + tall), _WHITE)
    body.paste(_stretched(_heat(unit), (width, height)), (edge, edge))
    if labels is not None:
        strip = np.array([_label_colours(labels, rows, "labels")], dtype=np.uint8)
        body.paste(_stretched(strip, (width, _STRIP)), (edge, 0))
        body.paste(_stretched(strip.transpose(1, 0, 2), (_STRIP, height)), (0, edge))
    body.paste(_stretched(_heat(np.linspace(1.0, 0.0, tall)[:, None]), (10, tall)), (bar, edge))
    _write(body, (bar + 16, edge), numbers[0])
    _write(body, (bar + 16, edge + tall), numbers[1], anchor="ld")
    return _titled(body, title)


def scatter(
    points: ArrayLike, *, colours: ArrayLike | None = None, marks: ArrayLike | None = None,
    title: str | None = None, size: int = 360, limits: tuple[float, float, float, float] | None = None,
) -> Image.Image:  # fmt: skip
    """Points in the plane, y upwards, in a square plot area.

    Parameters
    ----------
    points : array_like, shape (n, 2)
        The points.
    colours : array_like of int, shape (n,), optional
        A label per point, shown as a colour of `PALETTE`; negative labels are grey.
    marks : array_like, shape (k, 2), optional
        Places to point out with larger outlined markers.
    title : str, optional
        Heading of the figure.
    size : int
        Width in pixels, without the margin around the figure.
    limits : (xmin, xmax, ymin, ymax), optional
        What the axes show; by default everything.
    """
    dots = _points(points, "points")
    special = np.empty((0, 2)) if marks is None else _points(marks, "marks")
    shown = [PALETTE[0]] * len(dots) if colours is None else _label_colours(colours, len(dots), "colours")
    if limits is None:
        everything = np.concatenate([dots, special])
        limits = (*_span(everything[:, 0]), *_span(everything[:, 1]))
    if not (np.isfinite(limits).all() and limits[0] < limits[1] and limits[2] < limits[3]):
        raise ValueError(f"limits must be finite with xmin < xmax and ymin < ymax, got {limits}")
    plot = _Plot(limits, (size, None))
    for pixel, colour in zip(plot.pixels(dots), shown, strict=True):
        plot.dot(pixel, 2.2 if len(dots) > _CROWD else 3.4, colour, alpha=190)
    for pixel in plot.pixels(special):
        plot.dot(pixel, 8.0, _WHITE)
        plot.dot(pixel, 7.0, _WHITE, rim=_INK)
    return _titled(plot.finish(), title)


def curve(
    values: ArrayLike | Mapping[str, ArrayLike], *, title: str | None = None, x_label: str | None = None,
    y_label: str | None = None, size: tuple[int, int] = (420, 260),
) -> Image.Image:  # fmt: skip
    """One line over 0, 1, 2, ..., or several with a legend.

    Parameters
    ----------
    values : array_like, shape (n,), or mapping of str to such arrays
        Heights of one line, or of each named line; lines may differ in length.
    title, x_label, y_label : str, optional
        Texts above, below and on the left.
    size : (width, height)
        Pixels of the plot with its axes, without the margin, the title and the legend.
    """
    named = values if isinstance(values, Mapping) else {"": values}
    if not named:
        raise ValueError("values must hold at least one line, got an empty mapping")
    lines = {name: _checked(line, f"values {name}".strip(), "(n,)", (1,)) for name, line in named.items()}
    longest = max(line.size for line in lines.values())
    limits = (0.0, float(max(longest - 1, 1)), *_span(np.concatenate(list(lines.values()))))
    plot = _Plot(limits, size, x_label=x_label, y_label=y_label, whole_x=True)
    entries = []
    for i, (name, line) in enumerate(lines.items()):
        colour = PALETTE[i % len(PALETTE)]
        pixels = plot.pixels(np.stack([np.arange(line.size), line], axis=1))
        plot.line(pixels, colour, 2) if line.size > 1 else plot.dot(pixels[0], 3.5, colour)
        entry = Image.new("RGB", (24 + _width(name), _TEXT + 6), _WHITE)
        entry.paste(colour, (0, 7, 18, 10))
        _write(entry, (24, 8), name, anchor="lm")
        entries.append(entry)
    body = plot.finish()
    if isinstance(values, Mapping):
        body = _laid_out([_laid_out(entries, len(entries), 14), body], 1, 6)
    return _titled(body, title)


def beside(figures: Sequence[Image.Image], *, title: str | None = None, gap: int = 16) -> Image.Image:
    """Figures in a row, top aligned, ``gap`` pixels apart, under an optional common title."""
    return _titled(_laid_out(figures, len(figures) or 1, gap), title, _HEADING + 3)


def above(figures: Sequence[Image.Image], *, title: str | None = None, gap: int = 16) -> Image.Image:
    """Figures in a column, left aligned, ``gap`` pixels apart, under an optional common title."""
    return _titled(_laid_out(figures, 1, gap), title, _HEADING + 3)
