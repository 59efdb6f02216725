"""Figures for reports: numpy arrays in, Pillow images out, always on a white background.

Each takes an optional ``title`` and raises ValueError for arrays that are empty, not finite or misshapen.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

__all__ = ["PALETTE", "above", "beside", "curve", "matrix", "montage", "scatter"]
Colour = tuple[int, int, int]
Floats = NDArray[np.float64]
# Places (n, 2), radius in pixels, an RGB or RGBA colour for each, and the width of a dark rim.
Dots = tuple[Floats, float, Sequence[tuple[int, ...]], int]
# Places (n, 2), a colour, and whether it is dashed.
Line = tuple[Floats, Colour, bool]
# The colour-blind safe palette of Okabe and Ito, its strongest contrasts first.
PALETTE: Final[tuple[Colour, ...]] = (
    (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167),
    (230, 159, 0), (86, 180, 233), (240, 228, 66), (0, 0, 0),
)  # fmt: skip
# Nine anchors of a perceptually uniform map from dark violet to yellow; colours between are interpolated.
_ANCHORS: Final = np.array(
    [(68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129), (92, 200, 99),
     (170, 220, 50), (253, 231, 37)], dtype=np.float64,
)  # fmt: skip
_WHITE, _INK, _QUIET = (255, 255, 255), (34, 38, 46), (98, 104, 116)
_FRAME, _GRID, _NO_CLUSTER = (170, 175, 184), (234, 236, 240), (190, 190, 190)
_TEXT, _HEADING, _TOP_HEADING = 12, 15, 18
_PAD, _BORDER, _STRIP, _DASH, _FINE = 8, 3, 8, 6, 4  # lines and dots are drawn _FINE times finer, then reduced
_font: Final = cache(ImageFont.load_default)


def _checked(values: ArrayLike, name: str, *shapes: str) -> Floats:
    """``values`` as non-empty finite floats of one of ``shapes``, such as "(n, 2)"."""
    array = np.asarray(values, dtype=np.float64)
    lengths = {len(parts): parts[-1] for parts in (shape.strip("(,)").split(", ") for shape in shapes)}
    last = lengths.get(array.ndim, "0")
    if array.size == 0 or (last.isdigit() and array.shape[-1:] != (int(last),)):
        raise ValueError(f"{name} must be non-empty of shape {' or '.join(shapes)}, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {np.sum(~np.isfinite(array))} NaN or infinite entries")
    return array


def _label_colours(labels: ArrayLike, count: int, name: str) -> list[Colour]:
    """One colour per int label; the palette repeats when it runs out, negative labels are grey."""
    array = np.asarray(labels)
    if array.shape != (count,) or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} must be {count} integers, got shape {array.shape} of {array.dtype}")
    return [PALETTE[label % len(PALETTE)] if label >= 0 else _NO_CLUSTER for label in array.tolist()]


def _width(text: str, size: int = _TEXT) -> int:
    return int(np.ceil(_font(size).getlength(text)))


def _write(
    on: Image.Image, at: tuple[float, float], text: str, anchor: str, ink: Colour = _QUIET, size: int = _TEXT
) -> None:
    ImageDraw.Draw(on).text(at, text, fill=ink, font=_font(size), anchor=anchor)


def _titled(body: Image.Image, title: str | None, size: int = _HEADING) -> Image.Image:
    """``body`` with a margin around it and ``title`` above it, widened where the title needs more room."""
    head = size + _PAD if title else 0
    width = max(body.width, _width(title or "", size)) + 2 * _PAD
    figure = Image.new("RGB", (width, body.height + head + 2 * _PAD), _WHITE)
    _write(figure, (_PAD, _PAD), title or "", "la", _INK, size)
    figure.paste(body, (_PAD, _PAD + head))
    return figure


def _laid_out(figures: Sequence[Image.Image], columns: int, gap: int) -> Image.Image:
    """Grid of figures, top left aligned: each column as wide, each row as high as its largest figure."""
    if not figures or columns < 1 or gap < 0:
        given = f"{len(figures)} figures, {columns} columns and a gap of {gap}"
        raise ValueError(f"figures and columns must be at least 1 and gap at least 0, got {given}")
    across = min(columns, len(figures))
    widths = [max(figure.width for figure in figures[column::across]) for column in range(across)]
    rows = [figures[start : start + across] for start in range(0, len(figures), across)]
    heights = [max(figure.height for figure in row) for row in rows]
    sheet = Image.new("RGB", (sum(widths) + gap * (across - 1), sum(heights) + gap * (len(rows) - 1)), _WHITE)
    for i, row in enumerate(rows):
        for j, figure in enumerate(row):
            sheet.paste(figure, (sum(widths[:j]) + gap * j, sum(heights[:i]) + gap * i))
    return sheet


def _ticks(low: float, high: float, about: int, finest: float = 0.0) -> dict[float, str]:
    """Round numbers inside [low, high], no closer than ``finest``, each with its text."""
    rough = max((high - low) / about, finest)
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= rough * (1 - 1e-9))
    counts = range(int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9)) + 1)
    return {float(count * step): f"{count * step:.8g}" for count in counts}


def _span(values: Floats) -> tuple[float, float]:
    """Limits a little wider than the values, and never of zero width."""
    low, high = float(values.min()), float(values.max())
    scale = max(abs(low), abs(high))
    room = 0.06 * (high - low) if high - low > 1e-6 * scale else 0.5 * (scale or 1.0)
    return low - room, high + room


def _dashes(path: Sequence[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """The pieces of a path in fine pixels that are drawn of it when it is dashed."""
    corners = np.array(path)
    along = np.concatenate(([0.0], np.hypot(*np.diff(corners, axis=0).T).cumsum()))  # length of the path up to each
    for start in np.arange(0.0, along[-1], 2 * _DASH * _FINE):
        end = min(start + _DASH * _FINE, along[-1])
        stops = [start, *along[(along > start) & (along < end)], end]
        yield list(zip(*(np.interp(stops, along, corner).tolist() for corner in corners.T), strict=True))


def _plot(
    limits: tuple[float, float, float, float], size: tuple[int, int | None], dots: Sequence[Dots], *,
    lines: Sequence[Line] = (), x_label: str = "", y_label: str = "", finest_x: float = 0.0,
) -> Image.Image:  # fmt: skip
    """A framed area with ticks, lines and dots; without a height in ``size`` the area is square."""
    x_low, x_high, y_low, y_high = limits
    y_ticks = _ticks(y_low, y_high, 6)
    # Half a tick number may stand out above and right of the frame; long labels get the room they need.
    left, top = max(map(_width, y_ticks.values())) + 8, _TEXT // 2 + 2 + (_TEXT + 6 if y_label else 0)
    right = max(size[0] - 16, left + _width(x_label), _width(y_label))
    foot = _TEXT + 10 + (_TEXT + 6 if x_label else 0)
    bottom = top + right - left if size[1] is None else size[1] - foot
    if min(right - left, bottom - top) < 40:
        raise ValueError(f"size must leave at least 40 pixels for the plot area, got {size}")
    area = Image.new("RGB", ((right - left) * _FINE, (bottom - top) * _FINE), _WHITE)
    pen = ImageDraw.Draw(area, "RGBA")  # this mode blends translucent dots into an RGB image
    image = Image.new("RGB", (right + 16, bottom + foot), _WHITE)
    ImageDraw.Draw(image).rectangle((left - 1, top - 1, right, bottom), outline=_FRAME)

    def place(points: ArrayLike) -> list[tuple[float, float]]:
        unit = (np.asarray(points) - (x_low, y_low)) / (x_high - x_low, y_high - y_low)
        return [(x * area.width, (1 - y) * area.height) for x, y in unit.tolist()]

    x_ticks = _ticks(x_low, x_high, max(3, (right - left) // 60), finest_x)
    for (x, _), text in zip(place([(tick, y_low) for tick in x_ticks]), x_ticks.values(), strict=True):
        pen.line([(x, 0), (x, area.height)], _GRID, _FINE)
        _write(image, (left + x / _FINE, bottom + 6), text, "ma")
    for (_, y), text in zip(place([(x_low, tick) for tick in y_ticks]), y_ticks.values(), strict=True):
        pen.line([(0, y), (area.width, y)], _GRID, _FINE)
        _write(image, (left - 7, top + y / _FINE), text, "rm")
    for points, colour, dashed in lines:
        for piece in _dashes(place(points)) if dashed else [place(points)]:
            pen.line(piece, colour, 2 * _FINE, joint="curve")
    for points, radius, colours, rim in dots:
        for centre, fill in zip(place(points), colours, strict=True):
            pen.circle(centre, radius * _FINE, fill, _INK, rim * _FINE)
    image.paste(area.reduce(_FINE), (left, top))
    _write(image, ((left + right) / 2, bottom + foot - 2), x_label, "mb", _INK)
    _write(image, (0, 0), y_label, "la", _INK)
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
    columns, scale : int
        Tiles in a row, and the side of the square that shows one pixel.
    labels, frames : sequences of n str and of n RGB colours or None, optional
        A text under each tile, and a coloured border around it.
    """
    array = _checked(images, "images", "(n, h, w)", "(n, h, w, 3)")
    if scale < 1:
        raise ValueError(f"scale must be at least 1, got {scale}")
    for name, given in (("labels", labels), ("frames", frames)):
        if given is not None and len(given) != len(array):
            raise ValueError(f"{name} must be as many as images ({len(array)}), got {len(given)}")
    colours = np.round(np.clip(array, 0.0, 1.0) * 255).astype(np.uint8)
    border = _BORDER if frames else 0
    height, width = (side * scale + 2 * border for side in colours.shape[1:3])
    room = max([width, *(_width(label) + 4 for label in labels or ())])
    tiles = []
    for i, pixels in enumerate(colours.repeat(scale, axis=1).repeat(scale, axis=2)):
        tile = Image.new("RGB", (room, height + (_TEXT + 8 if labels else 0)), _WHITE)
        fill = (frames[i] if frames else None) or _WHITE
        picture = ImageOps.expand(Image.fromarray(pixels).convert("RGB"), border, fill)
        tile.paste(picture, ((room - width) // 2, 0))
        _write(tile, (room / 2, height + 4), labels[i] if labels else "", "ma")
        tiles.append(tile)
    return _titled(_laid_out(tiles, columns, 4), title)


def _cells(colours: Floats, size: tuple[int, int]) -> Image.Image:
    """Colours (rows, columns, 3) as sharp cells, or averaged where there are more cells than pixels."""
    return Image.fromarray(np.round(colours).astype(np.uint8)).resize(size, Image.Resampling.BOX)


def _heat(values: Floats) -> Floats:
    """Colours (..., 3) of values (...) in [0, 1]."""
    return np.stack([np.interp(values, np.linspace(0, 1, len(_ANCHORS)), c) for c in _ANCHORS.T], axis=-1)


def matrix(
    values: ArrayLike, *, title: str | None = None, size: int = 360, labels: ArrayLike | None = None
) -> Image.Image:
    """Heat map of a matrix, its first row on top, with a colour bar.

    Parameters
    ----------
    values : array_like, shape (n, m)
        The matrix; the longer side of its map is ``size`` pixels.
    labels : array_like of int, shape (n,), optional
        Clusters of a square matrix's rows, drawn as coloured strips along its top and left.
    """
    array = _checked(values, "values", "(n, m)")
    (rows, columns), low, high = array.shape, float(array.min()), float(array.max())
    if size < 40 or (labels is not None and rows != columns):
        raise ValueError(f"size must be at least 40, labels need a square matrix, got {size}, {array.shape}")
    # A constant matrix has no range to stretch: it takes the middle colour.
    unit = (array - low) / (high - low) if high > low else np.full(array.shape, 0.5)
    width, height = (max(1, round(size * count / max(rows, columns))) for count in (columns, rows))
    edge = _STRIP + 3 if labels is not None else 0
    bar, tall = edge + width + 12, max(height, 2 * _TEXT + 8)
    most, least = f"{high:.4g}", f"{low:.4g}"
    body = Image.new("RGB", (bar + 18 + max(_width(most), _width(least)), edge + tall), _WHITE)
    body.paste(_cells(_heat(unit), (width, height)), (edge, edge))
    if labels is not None:
        strip = np.array([_label_colours(labels, rows, "labels")], dtype=np.float64)
        body.paste(_cells(strip, (width, _STRIP)), (edge, 0))
        body.paste(_cells(strip.transpose(1, 0, 2), (_STRIP, height)), (0, edge))
    body.paste(_cells(_heat(np.linspace(1.0, 0.0, tall)[:, None]), (10, tall)), (bar, edge))
    _write(body, (bar + 16, edge), most, "la")
    _write(body, (bar + 16, edge + tall), least, "ld")
    return _titled(body, title)


def scatter(
    points: ArrayLike, *, colours: ArrayLike | None = None, marks: ArrayLike | None = None,
    title: str | None = None, size: int = 360, limits: tuple[float, float, float, float] | None = None,
) -> Image.Image:  # fmt: skip
    """Points in the plane, y upwards, in a square plot area.

    Parameters
    ----------
    points, marks : array_like, shapes (n, 2) and (k, 2)
        The points, and places to point out with larger outlined markers (optional).
    colours : array_like of int, shape (n,), optional
        A label per point, shown as a colour of `PALETTE`; negative labels are grey.
    size, limits : int and (xmin, xmax, ymin, ymax), optional
        Width in pixels without the margin, and what the axes show (by default everything).
    """
    places = _checked(points, "points", "(n, 2)")
    special = np.empty((0, 2)) if marks is None else _checked(marks, "marks", "(k, 2)")
    shown = _label_colours(np.zeros(len(places), int) if colours is None else colours, len(places), "colours")
    everything = np.concatenate([places, special])
    limits = limits or (*_span(everything[:, 0]), *_span(everything[:, 1]))
    if not (np.isfinite(limits).all() and limits[0] < limits[1] and limits[2] < limits[3]):
        raise ValueError(f"limits must be finite with xmin < xmax and ymin < ymax, got {limits}")
    # A crowd is drawn smaller and all dots let others shine through, so that density shows.
    radius = float(np.clip(50 / np.sqrt(len(places)), 1.8, 3.4))
    cloud: Dots = (places, radius, [(*colour, 190) for colour in shown], 0)
    return _titled(_plot(limits, (size, None), [cloud, (special, 7.5, [_WHITE] * len(special), 2)]), title)


def curve(
    values: ArrayLike | Mapping[str, ArrayLike], *, title: str | None = None, x_label: str | None = None,
    y_label: str | None = None, size: tuple[int, int] = (420, 260),
) -> Image.Image:  # fmt: skip
    """One line over 0, 1, 2, ..., or several with a legend; where the colours repeat the lines are dashed.

    Parameters
    ----------
    values : array_like, shape (n,), or mapping of str to such arrays
        Heights of one line, or of each named line; lines may differ in length.
    x_label, y_label, size : str, str and (width, height), optional
        Texts below and above the axes; pixels of the axes without the margin, the title and the legend.
    """
    named = values if isinstance(values, Mapping) else {"": values}
    if not named:
        raise ValueError("values must hold at least one line, got an empty mapping")
    lines = {name: _checked(line, f"values {name}".strip(), "(n,)") for name, line in named.items()}
    paths = [np.stack([np.arange(line.size), line], axis=1) for line in lines.values()]
    limits = (0.0, max(1.0, *(len(path) - 1.0 for path in paths)), *_span(np.concatenate(paths)[:, 1]))
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(paths))]
    dashed = [i // len(PALETTE) % 2 == 1 for i in range(len(paths))]
    drawn = list(zip(paths, colours, dashed, strict=True))
    # A line of one value has no length: it shows as a dot.
    dots: list[Dots] = [(path, 3.5, [colour], 0) for path, colour, _ in drawn if len(path) == 1]
    body = _plot(limits, size, dots, lines=drawn, x_label=x_label or "", y_label=y_label or "", finest_x=1.0)
    if isinstance(values, Mapping):
        width = max(map(_width, lines)) + 38
        entries = [Image.new("RGB", (width, _TEXT + 6), _WHITE) for _ in lines]
        for entry, name, (_, colour, broken) in zip(entries, lines, drawn, strict=True):
            entry.paste(colour, (0, 7, 18, 10))
            if broken:
                entry.paste(_WHITE, (_DASH, 7, 18 - _DASH, 10))
            _write(entry, (24, 8), name, "lm")
        body = _laid_out([_laid_out(entries, max(1, body.width // width), 0), body], 1, 6)
    return _titled(body, title)


def beside(figures: Sequence[Image.Image], *, title: str | None = None, gap: int = 16) -> Image.Image:
    """Figures in a row, top aligned, ``gap`` pixels apart, under an optional common title."""
    return _titled(_laid_out(figures, len(figures) or 1, gap), title, _TOP_HEADING)


def above(figures: Sequence[Image.Image], *, title: str | None = None, gap: int = 16) -> Image.Image:
    """Figures in a column, left aligned, ``gap`` pixels apart, under an optional common title."""
    return _titled(_laid_out(figures, 1, gap), title, _TOP_HEADING)
