"""Draw figures from arrays: montages, heat maps, scatter plots and curves, as Pillow images on a white background.

They are drawn with Pillow and not with matplotlib because the commands write pictures by default: a default install
must be able to draw them, and matplotlib would add about 30 MB to it for two kinds of plots.

Every function takes an optional ``title`` and raises a ValueError for arrays that are empty, not finite, or of the
wrong shape.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont, ImageOps

__all__ = ["PALETTE", "above", "beside", "confusion", "curve", "matrix", "montage", "scatter"]
Colour = tuple[int, int, int]
Floats = NDArray[np.float64]
# Points (n, 2), radius in pixels, an RGB or RGBA colour per point, and the width of a dark outline.
Dots = tuple[Floats, float, Sequence[tuple[int, ...]], int]
# Points (n, 2), a colour, and whether the line is dashed.
Line = tuple[Floats, Colour, bool]
PALETTE: Final[tuple[Colour, ...]] = (
    (0, 114, 178), (213, 94, 0), (0, 158, 115), (204, 121, 167),
    (230, 159, 0), (86, 180, 233), (240, 228, 66), (0, 0, 0),
)  # fmt: skip
"""The colour-blind safe palette of Okabe and Ito, with the strongest contrasts first."""
# Nine colours of a perceptually uniform colour map from dark violet to yellow, interpolated linearly.
_ANCHORS: Final = np.array(
    [(68, 1, 84), (71, 44, 122), (59, 81, 139), (44, 113, 142), (33, 144, 141), (39, 173, 129), (92, 200, 99),
     (170, 220, 50), (253, 231, 37)], dtype=np.float64,
)  # fmt: skip
_WHITE, _INK, _QUIET = (255, 255, 255), (34, 38, 46), (98, 104, 116)
_FRAME, _GRID, _NO_CLUSTER = (170, 175, 184), (234, 236, 240), (190, 190, 190)
_TEXT, _HEADING, _TOP_HEADING = 12, 15, 18
_PAD, _BORDER, _STRIP_WIDTH, _DASH = 8, 3, 8, 6
_SUPERSAMPLING = 4  # lines and dots are drawn at this many times the resolution, against aliasing
_COUNTED, _NAMED, _LONGEST_NAME = 20, 50, 24  # classes of a confusion matrix; letters of a name
_FULL: Final[Colour] = (0, 64, 122)
_font: Final = cache(ImageFont.load_default)


def _validate(values: ArrayLike, name: str, *shapes: str) -> Floats:
    """Convert to floats and check that they are finite, not empty, and of one of the shapes, such as "(n, 2)"."""
    array = np.asarray(values, dtype=np.float64)
    lengths = {len(parts): parts[-1] for parts in (shape.strip("(,)").split(", ") for shape in shapes)}
    last = lengths.get(array.ndim, "0")
    if array.size == 0 or (last.isdigit() and array.shape[-1:] != (int(last),)):
        raise ValueError(f"{name} must be non-empty of shape {' or '.join(shapes)}, got shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, got {np.sum(~np.isfinite(array))} NaN or infinite entries")
    return array


def _label_colours(labels: ArrayLike, count: int, name: str) -> list[Colour]:
    """One colour per integer label; the palette repeats, and negative labels are grey."""
    array = np.asarray(labels)
    if array.shape != (count,) or not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"{name} must be {count} integers, got shape {array.shape} of {array.dtype}")
    return [PALETTE[label % len(PALETTE)] if label >= 0 else _NO_CLUSTER for label in array.tolist()]


def _text_width(text: str, size: int = _TEXT) -> int:
    return int(np.ceil(_font(size).getlength(text)))


def _draw_text(
    on: Image.Image, at: tuple[float, float], text: str, anchor: str, ink: Colour = _QUIET, size: int = _TEXT
) -> None:
    ImageDraw.Draw(on).text(at, text, fill=ink, font=_font(size), anchor=anchor)


def _with_title(body: Image.Image, title: str | None, size: int = _HEADING) -> Image.Image:
    """Add a margin and a title above, and widen the figure if the title needs it."""
    head = size + _PAD if title else 0
    width = max(body.width, _text_width(title or "", size)) + 2 * _PAD
    figure = Image.new("RGB", (width, body.height + head + 2 * _PAD), _WHITE)
    _draw_text(figure, (_PAD, _PAD), title or "", "la", _INK, size)
    figure.paste(body, (_PAD, _PAD + head))
    return figure


def _arrange(figures: Sequence[Image.Image], columns: int, gap: int) -> Image.Image:
    """Arrange figures in a grid; columns and rows are as large as their largest figure."""
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
    """Round numbers in [low, high] with steps of at least ``finest``, and their labels."""
    rough = max((high - low) / about, finest)
    power = 10.0 ** np.floor(np.log10(rough))
    step = next(power * factor for factor in (1.0, 2.0, 5.0, 10.0) if power * factor >= rough * (1 - 1e-9))
    counts = range(int(np.ceil(low / step - 1e-9)), int(np.floor(high / step + 1e-9)) + 1)
    return {float(count * step): f"{count * step:.8g}" for count in counts}


def _axis_limits(values: Floats) -> tuple[float, float]:
    """Axis limits slightly wider than the values, and never of zero width."""
    low, high = float(values.min()), float(values.max())
    scale = max(abs(low), abs(high))
    padding = 0.06 * (high - low) if high - low > 1e-6 * scale else 0.5 * (scale or 1.0)
    return low - padding, high + padding


def _dashes(path: Sequence[tuple[float, float]]) -> Iterator[list[tuple[float, float]]]:
    """Cut a path, in fine pixels, into the segments of a dashed line."""
    corners = np.array(path)
    along = np.concatenate(([0.0], np.hypot(*np.diff(corners, axis=0).T).cumsum()))  # path length up to each corner
    for start in np.arange(0.0, along[-1], 2 * _DASH * _SUPERSAMPLING):
        end = min(start + _DASH * _SUPERSAMPLING, along[-1])
        stops = [start, *along[(along > start) & (along < end)], end]
        yield list(zip(*(np.interp(stops, along, corner).tolist() for corner in corners.T), strict=True))


def _plot(
    limits: tuple[float, float, float, float], size: tuple[int, int | None], dots: Sequence[Dots], *,
    lines: Sequence[Line] = (), x_label: str = "", y_label: str = "", finest_x: float = 0.0,
    x_step: float | None = None,
) -> Image.Image:  # fmt: skip
    """Draw axes with ticks, lines and dots; without a height in ``size`` the plot area is square."""
    x_low, x_high, y_low, y_high = limits
    y_ticks = _ticks(y_low, y_high, 6)
    # Half a tick label may extend beyond the axes at the top and right; long labels widen the figure.
    left, top = max(map(_text_width, y_ticks.values())) + 8, _TEXT // 2 + 2 + (_TEXT + 6 if y_label else 0)
    right = max(size[0] - 16, left + _text_width(x_label), _text_width(y_label))
    foot = _TEXT + 10 + (_TEXT + 6 if x_label else 0)
    bottom = top + right - left if size[1] is None else size[1] - foot
    if min(right - left, bottom - top) < 40:
        raise ValueError(f"size must leave at least 40 pixels for the plot area, got {size}")
    area = Image.new("RGB", ((right - left) * _SUPERSAMPLING, (bottom - top) * _SUPERSAMPLING), _WHITE)
    pen = ImageDraw.Draw(area, "RGBA")  # in this mode translucent dots are blended
    image = Image.new("RGB", (right + 16, bottom + foot), _WHITE)
    ImageDraw.Draw(image).rectangle((left - 1, top - 1, right, bottom), outline=_FRAME)

    def place(points: ArrayLike) -> list[tuple[float, float]]:
        unit = (np.asarray(points) - (x_low, y_low)) / (x_high - x_low, y_high - y_low)
        return [(x * area.width, (1 - y) * area.height) for x, y in unit.tolist()]

    x_ticks = _ticks(x_low, x_high, max(3, (right - left) // 60), finest_x)
    if x_step is not None:
        x_ticks = {
            float(tick): f"{tick:g}" for tick in np.arange(np.ceil(x_low / x_step), x_high / x_step + 1e-9) * x_step
        }
    for (x, _), text in zip(place([(tick, y_low) for tick in x_ticks]), x_ticks.values(), strict=True):
        pen.line([(x, 0), (x, area.height)], _GRID, _SUPERSAMPLING)
        _draw_text(image, (left + x / _SUPERSAMPLING, bottom + 6), text, "ma")
    for (_, y), text in zip(place([(x_low, tick) for tick in y_ticks]), y_ticks.values(), strict=True):
        pen.line([(0, y), (area.width, y)], _GRID, _SUPERSAMPLING)
        _draw_text(image, (left - 7, top + y / _SUPERSAMPLING), text, "rm")
    for points, colour, dashed in lines:
        for piece in _dashes(place(points)) if dashed else [place(points)]:
            pen.line(piece, colour, 2 * _SUPERSAMPLING, joint="curve")
    for points, radius, colours, rim in dots:
        for centre, fill in zip(place(points), colours, strict=True):
            pen.circle(centre, radius * _SUPERSAMPLING, fill, _INK, rim * _SUPERSAMPLING)
    image.paste(area.reduce(_SUPERSAMPLING), (left, top))
    _draw_text(image, ((left + right) / 2, bottom + foot - 2), x_label, "mb", _INK)
    _draw_text(image, (0, 0), y_label, "la", _INK)
    return image


def montage(
    images: ArrayLike, *, columns: int, labels: Sequence[str] | None = None, title: str | None = None,
    scale: int = 2, frames: Sequence[Colour | None] | None = None,
) -> Image.Image:  # fmt: skip
    """Arrange images in a grid, row by row.

    Parameters
    ----------
    images : (n, h, w) or (n, h, w, 3) array
        Grey or RGB images; values outside [0, 1] are clipped.
    columns : int
        Images per row.
    labels : sequence of n str, optional
        Text under each image.
    title : str, optional
        Text above the figure.
    scale : int, default 2
        Side of the square of screen pixels that shows one image pixel.
    frames : sequence of n RGB colours or None, optional
        Coloured border around each image.

    Returns
    -------
    PIL.Image.Image

    Examples
    --------
    >>> montage(np.zeros((6, 8, 10)), columns=3).size
    (84, 52)
    """
    array = _validate(images, "images", "(n, h, w)", "(n, h, w, 3)")
    if scale < 1:
        raise ValueError(f"scale must be at least 1, got {scale}")
    for name, given in (("labels", labels), ("frames", frames)):
        if given is not None and len(given) != len(array):
            raise ValueError(f"{name} must be as many as images ({len(array)}), got {len(given)}")
    colours = np.round(np.clip(array, 0.0, 1.0) * 255).astype(np.uint8)
    border = _BORDER if frames else 0
    height, width = (side * scale + 2 * border for side in colours.shape[1:3])
    tile_width = max([width, *(_text_width(label) + 12 for label in labels or ())])
    tiles = []
    for i, pixels in enumerate(colours.repeat(scale, axis=1).repeat(scale, axis=2)):
        tile = Image.new("RGB", (tile_width, height + (_TEXT + 8 if labels else 0)), _WHITE)
        fill = (frames[i] if frames else None) or _WHITE
        picture = ImageOps.expand(Image.fromarray(pixels).convert("RGB"), border, fill)
        tile.paste(picture, ((tile_width - width) // 2, 0))
        _draw_text(tile, (tile_width / 2, height + 4), labels[i] if labels else "", "ma")
        tiles.append(tile)
    return _with_title(_arrange(tiles, columns, 4), title)


def _cells(colours: Floats, size: tuple[int, int]) -> Image.Image:
    """Draw colours (rows, columns, 3) as sharp cells; they are averaged if there are more cells than pixels."""
    return Image.fromarray(np.round(colours).astype(np.uint8)).resize(size, Image.Resampling.BOX)


def _colour_map(values: Floats) -> Floats:
    """Map values (...) in [0, 1] to colours (..., 3)."""
    return np.stack([np.interp(values, np.linspace(0, 1, len(_ANCHORS)), c) for c in _ANCHORS.T], axis=-1)


def matrix(
    values: ArrayLike, *, title: str | None = None, size: int = 360, labels: ArrayLike | None = None
) -> Image.Image:
    """Draw a heat map of a matrix, first row on top, with a colour bar.

    Parameters
    ----------
    values : (n, m) array
        The matrix.
    title : str, optional
        Text above the figure.
    size : int, default 360
        Pixels along the longer side of the matrix.
    labels : (n,) array of int, optional
        Clusters of the rows of a square matrix, drawn as coloured strips along the top and left edge.

    Returns
    -------
    PIL.Image.Image

    Examples
    --------
    >>> matrix(np.eye(3), size=60).mode
    'RGB'
    """
    array = _validate(values, "values", "(n, m)")
    (rows, columns), low, high = array.shape, float(array.min()), float(array.max())
    if size < 40 or (labels is not None and rows != columns):
        raise ValueError(f"size must be at least 40, labels need a square matrix, got {size}, {array.shape}")
    # A constant matrix is drawn in the middle colour.
    unit = (array - low) / (high - low) if high > low else np.full(array.shape, 0.5)
    width, height = (max(1, round(size * count / max(rows, columns))) for count in (columns, rows))
    edge = _STRIP_WIDTH + 3 if labels is not None else 0
    bar, tall = edge + width + 12, max(height, 2 * _TEXT + 8)
    most, least = f"{high:.4g}", f"{low:.4g}"
    body = Image.new("RGB", (bar + 18 + max(_text_width(most), _text_width(least)), edge + tall), _WHITE)
    body.paste(_cells(_colour_map(unit), (width, height)), (edge, edge))
    if labels is not None:
        strip = np.array([_label_colours(labels, rows, "labels")], dtype=np.float64)
        body.paste(_cells(strip, (width, _STRIP_WIDTH)), (edge, 0))
        body.paste(_cells(strip.transpose(1, 0, 2), (_STRIP_WIDTH, height)), (0, edge))
    body.paste(_cells(_colour_map(np.linspace(1.0, 0.0, tall)[:, None]), (10, tall)), (bar, edge))
    _draw_text(body, (bar + 16, edge), most, "la")
    _draw_text(body, (bar + 16, edge + tall), least, "ld")
    return _with_title(body, title)


def scatter(
    points: ArrayLike, *, colours: ArrayLike | None = None, marks: ArrayLike | None = None,
    title: str | None = None, size: int = 360, limits: tuple[float, float, float, float] | None = None,
) -> Image.Image:  # fmt: skip
    """Draw points in the plane, y upwards, in a square plot area.

    Parameters
    ----------
    points : (n, 2) array
        The points.
    colours : (n,) array of int, optional
        A label per point, shown as a colour of ``PALETTE``; negative labels are grey.
    marks : (k, 2) array, optional
        Points to highlight with larger outlined markers.
    title : str, optional
        Text above the figure.
    size : int, default 360
        Width in pixels without the margin.
    limits : (xmin, xmax, ymin, ymax), optional
        Range of the axes; by default all points are shown.

    Returns
    -------
    PIL.Image.Image

    Examples
    --------
    >>> scatter([[0.0, 0.0], [1.0, 2.0]], colours=[0, 1], size=200).width
    216
    """
    places = _validate(points, "points", "(n, 2)")
    special = np.empty((0, 2)) if marks is None else _validate(marks, "marks", "(k, 2)")
    shown = _label_colours(np.zeros(len(places), int) if colours is None else colours, len(places), "colours")
    everything = np.concatenate([places, special])
    limits = limits or (*_axis_limits(everything[:, 0]), *_axis_limits(everything[:, 1]))
    if not (np.isfinite(limits).all() and limits[0] < limits[1] and limits[2] < limits[3]):
        raise ValueError(f"limits must be finite with xmin < xmax and ymin < ymax, got {limits}")
    # Many points are drawn smaller, and all are translucent, so that density is visible.
    radius = float(np.clip(50 / np.sqrt(len(places)), 1.8, 3.4))
    cloud: Dots = (places, radius, [(*colour, 190) for colour in shown], 0)
    return _with_title(_plot(limits, (size, None), [cloud, (special, 7.5, [_WHITE] * len(special), 2)]), title)


def confusion(counts: ArrayLike, classes: Sequence[str], *, title: str | None = None) -> Image.Image:
    """Draw a confusion matrix: a row for each true class, a column for each answer, coloured by the share of the row.

    Up to 20 classes, every cell shows its count; the names of more than 50 classes are left out.

    Parameters
    ----------
    counts : (n, n) array of int
        ``counts[i, j]`` images of class i were taken for class j.
    classes : sequence of n str
        Names of the classes.
    title : str, optional
        Text above the figure.

    Returns
    -------
    PIL.Image.Image

    Examples
    --------
    >>> confusion([[3, 1], [0, 2]], ["cat", "dog"]).mode
    'RGB'
    """
    array = _validate(counts, "counts", "(n, n)")
    n = len(array)
    if array.shape != (n, n) or len(classes) != n:
        raise ValueError(f"counts must be square with one name for each class, got {array.shape}, {len(classes)} names")
    side = int(np.clip(640 // n, 4, 44))
    sums = array.sum(1, keepdims=True)
    shares = np.divide(array, sums, out=np.zeros_like(array), where=sums > 0)
    colours = 255.0 - shares[..., None] * (255.0 - np.array(_FULL))  # white for none of the row
    cells = _cells(colours, (n * side, n * side))
    pen = ImageDraw.Draw(cells)
    for at in range(0, n * side, side):
        pen.line([(at, 0), (at, n * side)], _GRID)
        pen.line([(0, at), (n * side, at)], _GRID)
    if n <= _COUNTED:
        for i, j in zip(*np.nonzero(array), strict=True):
            ink = _WHITE if shares[i, j] > 0.5 else _INK
            _draw_text(cells, ((j + 0.5) * side, (i + 0.5) * side), f"{array[i, j]:.0f}", "mm", ink)
    names = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in classes]
    names = names if n <= _NAMED else [""] * n
    margin = max(map(_text_width, names)) + 8
    heading = "true class (row) and answer (column)"
    width = max(margin + n * side + 1, _text_width(heading))
    body = Image.new("RGB", (width, _TEXT + 10 + n * side + margin), _WHITE)
    body.paste(cells, (margin, _TEXT + 10))
    ImageDraw.Draw(body).rectangle((margin, _TEXT + 10, margin + n * side, _TEXT + 10 + n * side), outline=_FRAME)
    _draw_text(body, (0, 0), heading, "la", _INK)
    for i, name in enumerate(names):
        _draw_text(body, (margin - 5, _TEXT + 10 + (i + 0.5) * side), name, "rm")
        upright = Image.new("RGB", (margin, _TEXT + 4), _WHITE)
        _draw_text(upright, (margin - 5, (_TEXT + 4) / 2), name, "rm")
        turned = upright.transpose(Image.Transpose.ROTATE_90)
        body.paste(turned, (round(margin + (i + 0.5) * side - turned.width / 2), _TEXT + 11 + n * side))
    return _with_title(body, title)


def curve(
    values: ArrayLike | Mapping[str, ArrayLike], *, title: str | None = None, x_label: str | None = None,
    y_label: str | None = None, size: tuple[int, int] = (420, 260), x: ArrayLike | None = None,
    x_step: float | None = None, y_limits: tuple[float, float] | None = None,
) -> Image.Image:  # fmt: skip
    """Plot values over 0, 1, 2, ...: one line, or several with a legend. Lines are dashed when colours repeat.

    Parameters
    ----------
    values : (n,) array, or mapping of str to such arrays
        Values of one line, or of each named line; lines may differ in length.
    title : str, optional
        Text above the figure.
    x_label, y_label : str, optional
        Text below and above the axes.
    size : (width, height), default (420, 260)
        Pixels of the axes without the margin, the title and the legend.
    x : (n,) array, optional
        Increasing positions of the values, for the longest line; by default 0, 1, 2, ...
    x_step : float, optional
        Distance of the marks on the x axis; by default a round number.
    y_limits : (low, high), optional
        Range of the y axis; by default slightly more than that of the values.

    Returns
    -------
    PIL.Image.Image

    Examples
    --------
    >>> curve([3.0, 1.0, 2.0], size=(300, 200)).size
    (316, 216)
    """
    named = values if isinstance(values, Mapping) else {"": values}
    if not named:
        raise ValueError("values must hold at least one line, got an empty mapping")
    lines = {name: _validate(line, f"values {name}".strip(), "(n,)") for name, line in named.items()}
    longest = max(line.size for line in lines.values())
    places = np.arange(longest, dtype=float) if x is None else _validate(x, "x", "(n,)")
    if places.size < longest or (np.diff(places) <= 0).any():
        raise ValueError(f"x must be at least {longest} increasing positions, got {places.tolist()}")
    paths = [np.stack([places[: line.size], line], axis=1) for line in lines.values()]
    shown = y_limits or _axis_limits(np.concatenate(paths)[:, 1])
    if not shown[0] < shown[1]:
        raise ValueError(f"y_limits must be (low, high) with low < high, got {y_limits}")
    limits = (places[0], max(places[0] + 1.0, places[-1]), *shown)
    colours = [PALETTE[i % len(PALETTE)] for i in range(len(paths))]
    dashed = [i // len(PALETTE) % 2 == 1 for i in range(len(paths))]
    drawn = list(zip(paths, colours, dashed, strict=True))
    # A line of one value is drawn as a dot.
    dots: list[Dots] = [(path, 3.5, [colour], 0) for path, colour, _ in drawn if len(path) == 1]
    body = _plot(
        limits, size, dots, lines=drawn, x_label=x_label or "", y_label=y_label or "", finest_x=1.0, x_step=x_step
    )
    if isinstance(values, Mapping):
        width = max(map(_text_width, lines)) + 38
        entries = [Image.new("RGB", (width, _TEXT + 6), _WHITE) for _ in lines]
        for entry, name, (_, colour, broken) in zip(entries, lines, drawn, strict=True):
            entry.paste(colour, (0, 7, 18, 10))
            if broken:
                entry.paste(_WHITE, (_DASH, 7, 18 - _DASH, 10))
            _draw_text(entry, (24, 8), name, "lm")
        body = _arrange([_arrange(entries, max(1, body.width // width), 0), body], 1, 6)
    return _with_title(body, title)


def beside(figures: Sequence[Image.Image], *, title: str | None = None, gap: int = 16) -> Image.Image:
    """Arrange figures in a row, top aligned.

    Parameters
    ----------
    figures : sequence of PIL.Image.Image
        The figures.
    title : str, optional
        Common title.
    gap : int, default 16
        Pixels between figures.

    Returns
    -------
    PIL.Image.Image

    Examples
    --------
    >>> beside([Image.new("RGB", (30, 20)), Image.new("RGB", (50, 60))], gap=5).size
    (101, 76)
    """
    return _with_title(_arrange(figures, len(figures) or 1, gap), title, _TOP_HEADING)


def above(figures: Sequence[Image.Image], *, title: str | None = None, gap: int = 16) -> Image.Image:
    """Arrange figures in a column, left aligned.

    Parameters
    ----------
    figures : sequence of PIL.Image.Image
        The figures.
    title : str, optional
        Common title.
    gap : int, default 16
        Pixels between figures.

    Returns
    -------
    PIL.Image.Image

    Examples
    --------
    >>> above([Image.new("RGB", (30, 20)), Image.new("RGB", (50, 60))], gap=5).size
    (66, 101)
    """
    return _with_title(_arrange(figures, 1, gap), title, _TOP_HEADING)
