"""Laws of the report figures: sizes, what changes pixels, and what is refused."""

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from unpose.report import figures

RANDOM = np.random.default_rng(0)
TILES = RANDOM.random((6, 8, 10))
SQUARE = RANDOM.normal(size=(5, 5))
POINTS = RANDOM.normal(size=(20, 2))
FIGURES = {
    "montage": lambda title: figures.montage(TILES, columns=3, title=title),
    "matrix": lambda title: figures.matrix(SQUARE, title=title),
    "scatter": lambda title: figures.scatter(POINTS, title=title),
    "curve": lambda title: figures.curve([1.0, 2.0], title=title),
    "confusion": lambda title: figures.confusion([[3, 1], [0, 2]], ["cat", "dog"], title=title),
    "beside": lambda title: figures.beside([Image.new("RGB", (30, 20))], title=title),
    "above": lambda title: figures.above([Image.new("RGB", (30, 20))], title=title),
}
Titled = Callable[[str | None], Image.Image]


def _holds(figure: Image.Image, colour: tuple[int, int, int]) -> bool:
    return bool((np.asarray(figure) == colour).all(axis=-1).any())


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES.keys())
def test_every_figure_is_rgb_on_white_and_a_title_makes_it_taller(draw: Titled) -> None:
    plain, titled = draw(None), draw("A title")
    assert plain.mode == titled.mode == "RGB"
    assert plain.getpixel((0, 0)) == titled.getpixel((0, 0)) == (255, 255, 255)
    assert titled.height > plain.height
    assert plain.tobytes() == draw(None).tobytes()


@pytest.mark.parametrize("draw", FIGURES.values(), ids=FIGURES.keys())
def test_a_long_title_is_not_cut(draw: Titled) -> None:
    figure = np.asarray(draw("A title that is much longer than the figure is wide " * 3))
    assert (figure[:, -4:] == 255).all()


def test_montage_grows_with_images_columns_and_scale() -> None:
    few, many = figures.montage(TILES[:3], columns=3), figures.montage(TILES, columns=3)
    assert many.width == few.width
    assert many.height > few.height
    assert figures.montage(TILES, columns=6).width > many.width
    assert figures.montage(TILES, columns=3, scale=4).width > many.width


def test_montage_shows_pixels_as_they_are_and_clips() -> None:
    image = np.array([[[-1.0, 0.5], [1.0, 7.0]]])
    pixels = np.asarray(figures.montage(image, columns=1, scale=3))
    block = pixels[8:14, 8:14]
    np.testing.assert_array_equal(block[::3, ::3, 0], [[0, 128], [255, 255]])
    np.testing.assert_array_equal(block, block[::3, ::3].repeat(3, axis=0).repeat(3, axis=1))


def test_montage_of_grey_equals_montage_of_equal_channels() -> None:
    coloured = np.repeat(TILES[..., None], 3, axis=3)
    assert figures.montage(TILES, columns=4).tobytes() == figures.montage(coloured, columns=4).tobytes()


def test_montage_labels_and_frames_show() -> None:
    plain = figures.montage(TILES, columns=3)
    assert figures.montage(TILES, columns=3, labels=list("abcdef")).height > plain.height
    framed = figures.montage(TILES, columns=3, frames=[figures.PALETTE[1], None, None, None, None, figures.PALETTE[2]])
    assert _holds(framed, figures.PALETTE[1])
    assert _holds(framed, figures.PALETTE[2])
    assert not _holds(framed, figures.PALETTE[0])


def test_montage_makes_room_for_long_labels() -> None:
    wide = figures.montage(TILES[:1], columns=1, labels=["a label wider than its tile"])
    assert wide.width > figures.montage(TILES[:1], columns=1, labels=["a"]).width


def test_matrix_keeps_proportions_and_shows_the_ends_of_the_colour_map() -> None:
    figure = figures.matrix(np.arange(12.0).reshape(3, 4), size=200)
    assert _holds(figure, (68, 1, 84))
    assert _holds(figure, (253, 231, 37))
    assert figures.matrix(np.zeros((2, 8)), size=200).height < figure.height
    assert figures.matrix(SQUARE, size=300).height - figures.matrix(SQUARE, size=200).height == 100


def test_matrix_colours_do_not_depend_on_scale_and_shift() -> None:
    one, other = (np.asarray(figures.matrix(values, size=100))[8:108, 8:108] for values in (SQUARE, 2 * SQUARE + 7))
    np.testing.assert_allclose(one, other, atol=1)


def test_constant_matrix_has_one_colour() -> None:
    cells = np.asarray(figures.matrix(np.full((4, 4), 3.0), size=100))[8:108, 8:108]
    assert len(np.unique(cells.reshape(-1, 3), axis=0)) == 1


def test_matrix_labels_draw_strips_and_cycle() -> None:
    labelled = figures.matrix(SQUARE, labels=[0, 1, 1, 2, len(figures.PALETTE) + 3])
    assert labelled.width > figures.matrix(SQUARE).width
    assert all(_holds(labelled, figures.PALETTE[label]) for label in range(4))


def test_scatter_points_upwards() -> None:
    figure = figures.scatter([[0.5, 0.9]], limits=(0, 1, 0, 1))
    pixels = np.asarray(figure).astype(int)
    rows, columns = np.nonzero(pixels[..., 2] - pixels[..., 0] > 60)
    assert rows.mean() < figure.height * 0.25
    assert 0.4 < columns.mean() / figure.width < 0.6


def test_scatter_colours_marks_and_limits_change_pixels() -> None:
    plain = figures.scatter(POINTS).tobytes()
    assert figures.scatter(POINTS, colours=np.arange(20) - 1).tobytes() != plain
    assert figures.scatter(POINTS, marks=[[0.0, 0.0]]).tobytes() != plain
    assert figures.scatter(POINTS, limits=(-9, 9, -9, 9)).tobytes() != plain
    first, cycled = np.zeros(20, dtype=int), np.full(20, len(figures.PALETTE))
    assert (
        figures.scatter(POINTS, colours=first).tobytes() == figures.scatter(POINTS, colours=cycled).tobytes() == plain
    )


@pytest.mark.parametrize("points", [[[3.0, 3.0]], [[0.0, 0.0]] * 2, [[1e9, -1e-9], [2e9, 1e-9]]])
def test_scatter_takes_degenerate_ranges(points: list[list[float]]) -> None:
    assert figures.scatter(points, size=200).width == 200 + 16


def test_curve_has_the_asked_size_and_a_legend_for_names() -> None:
    one = figures.curve([3.0, 1.0, 2.0], size=(300, 200))
    assert one.size == (300 + 16, 200 + 16)
    named = figures.curve({"a": [3.0, 1.0, 2.0], "b": [0.0]}, size=(300, 200))
    assert named.height > one.height
    assert _holds(named, figures.PALETTE[0])
    assert _holds(named, figures.PALETTE[1])


def test_a_line_whose_colour_another_has_is_dashed() -> None:
    lines = {str(i): [float(i), float(i)] for i in range(len(figures.PALETTE) + 1)}

    def ink(figure: Image.Image) -> int:
        return int((np.asarray(figure)[40:] == figures.PALETTE[0]).all(axis=-1).sum())  # below the legend

    alone = ink(figures.curve({"0": lines["0"]}, size=(420, 260)))
    assert alone > 300
    assert ink(figures.curve(lines, size=(420, 260))) - alone == pytest.approx(alone / 2, rel=0.15)


def test_curve_labels_change_pixels() -> None:
    drawn = [
        figures.curve([1.0, 2.0]),
        figures.curve([1.0, 2.0], x_label="x"),
        figures.curve([1.0, 2.0], y_label="y"),
    ]
    assert len({figure.tobytes() for figure in drawn}) == 3


def test_beside_and_above_add_up() -> None:
    one, two = Image.new("RGB", (30, 20)), Image.new("RGB", (50, 60))
    margin = figures.beside([one], gap=0).width - 30
    assert figures.beside([one, two], gap=5).size == (30 + 50 + 5 + margin, 60 + margin)
    assert figures.above([one, two], gap=5).size == (50 + margin, 20 + 60 + 5 + margin)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: figures.montage(np.empty((0, 8, 8)), columns=2), "images must be non-empty"),
        (lambda: figures.montage(TILES[0], columns=2), "images must be non-empty of shape"),
        (lambda: figures.montage(np.zeros((2, 4, 4, 2)), columns=2), "images must be non-empty of shape"),
        (lambda: figures.montage(TILES * np.nan, columns=2), "images must be finite"),
        (lambda: figures.montage(TILES, columns=0), "columns must be at least 1"),
        (lambda: figures.montage(TILES, columns=2, scale=0), "scale must be at least 1"),
        (lambda: figures.montage(TILES, columns=2, labels=["a"]), "labels must be as many"),
        (lambda: figures.montage(TILES, columns=2, frames=[None]), "frames must be as many"),
        (lambda: figures.matrix([]), "values must be non-empty"),
        (lambda: figures.matrix([[1.0, np.nan]]), "values must be finite"),
        (lambda: figures.matrix(np.zeros((2, 3)), labels=[0, 1]), "square"),
        (lambda: figures.matrix(SQUARE, labels=[0.5] * 5), "labels must be 5 integers"),
        (lambda: figures.scatter(np.empty((0, 2))), "points must be non-empty"),
        (lambda: figures.scatter(np.zeros((3, 3))), "points must be non-empty of shape"),
        (lambda: figures.scatter([[0.0, np.inf]]), "points must be finite"),
        (lambda: figures.scatter(POINTS, marks=[[np.nan, 0.0]]), "marks must be finite"),
        (lambda: figures.scatter(POINTS, colours=[1]), "colours must be 20 integers"),
        (lambda: figures.scatter(POINTS, limits=(1, 0, 0, 1)), "limits must be"),
        (lambda: figures.scatter(POINTS, size=50), "size must leave"),
        (lambda: figures.curve([]), "values must be non-empty"),
        (lambda: figures.curve(3.0), "values must be non-empty of shape"),
        (lambda: figures.curve({}), "empty mapping"),
        (lambda: figures.curve({"loss": [np.nan]}), "values loss must be finite"),
        (lambda: figures.beside([]), "at least 1"),
        (lambda: figures.above([]), "at least 1"),
        (lambda: figures.above([Image.new("RGB", (3, 3))], gap=-1), "gap at least 0"),
    ],
)
def test_bad_input_is_refused_with_a_reason(call: Callable[[], Image.Image], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        call()


def _rows_of(figure: Image.Image, colour: tuple[int, int, int]) -> int:
    """Height in pixels of what is drawn in a colour, without the legend at the top."""
    rows = np.flatnonzero((np.abs(np.asarray(figure).astype(int) - colour).sum(-1) < 60).any(axis=1))
    return int(np.ptp(rows[rows > 30]))


def test_a_nearly_flat_line_looks_flat_with_fixed_limits() -> None:
    line = 93 + RANDOM.random(25)
    zoomed = figures.curve({"a": line}, size=(400, 300))
    fixed = figures.curve({"a": line}, size=(400, 300), x=np.arange(0, 375, 15), x_step=45, y_limits=(0.0, 100.0))
    assert _rows_of(fixed, figures.PALETTE[0]) < 12
    assert _rows_of(zoomed, figures.PALETTE[0]) > 100


def test_curve_refuses_positions_and_limits_that_make_no_axis() -> None:
    for wrong in ({"x": [0.0]}, {"x": [1.0, 0.0]}, {"y_limits": (1.0, 1.0)}):
        with pytest.raises(ValueError, match="must be"):
            figures.curve([1.0, 2.0], **wrong)


def test_confusion_is_darkest_where_most_images_of_a_class_are() -> None:
    figure = np.asarray(figures.confusion([[90, 10], [0, 5]], ["a", "b"]).convert("L")).astype(int)
    assert (figure < 120).sum() > 2 * 40**2 * 0.8  # both cells of the diagonal, not the one with a tenth
    for wrong in ([[1, 2]], [[1, 2, 3]] * 3):
        with pytest.raises(ValueError, match="square"):
            figures.confusion(wrong, ["a", "b"])
    assert figures.confusion(np.eye(70), [str(k) for k in range(70)]).width < 700
