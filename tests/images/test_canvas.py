"""The canvas: which size images of many sizes get, and how each is scaled and padded to it."""

import numpy as np

from unpose.images import choose_canvas, onto_canvas


def test_the_size_of_the_canvas():
    assert choose_canvas([(31, 17)] * 3)[0] == (31, 17)
    assert choose_canvas([(310, 170)] * 3)[0] == (128, 70)
    assert choose_canvas([(310, 170)] * 3, size=310)[0] == (310, 170)
    assert choose_canvas([(31, 17), (17, 31), (20, 5)])[0] == (31, 31)
    assert choose_canvas([(900, 17), (17, 800), (20, 5)])[0] == (128, 128)
    assert choose_canvas([(31, 17), (17, 31)], size=64)[0] == (64, 64)
    assert "median of its border" in choose_canvas([(31, 17), (17, 31)])[1]


def test_a_frame_that_fits_is_returned_unchanged(rng):
    frame = rng.random((13, 7), dtype=np.float32)
    assert onto_canvas(frame, (13, 7)) is frame


def test_padding_is_the_median_of_the_border_and_the_aspect_stays(rng):
    frame = np.full((10, 30, 3), (0.2, 0.4, 0.9), np.float32)
    frame[3:7, 10:20] = rng.random((4, 10, 3))
    canvas = onto_canvas(frame, (30, 30))
    np.testing.assert_array_equal(canvas[10:20], frame)
    np.testing.assert_array_equal(canvas[:10], np.broadcast_to(np.float32((0.2, 0.4, 0.9)), (10, 30, 3)))


def test_shrinking_does_not_alias():
    # A checkerboard of single pixels has mean one half everywhere; without antialiasing it would come out black or
    # white, or as a moiré.
    board = (np.indices((121, 121)).sum(0) % 2).astype(np.float32)
    small = onto_canvas(board, (30, 30))
    assert np.abs(small[3:-3, 3:-3] - 0.5).max() < 0.03
    picked = board[::4, ::4][:30, :30]
    assert np.abs(picked - 0.5).max() == 0.5


def test_scaling_keeps_the_centre_and_the_range(rng):
    frame = rng.random((16, 24), dtype=np.float32)
    frame[0, 0], frame[5, 5] = 0, 1
    for shape in ((48, 72), (8, 12)):
        scaled = onto_canvas(frame, shape)
        assert scaled.shape == shape
        assert scaled.min() >= 0
        assert scaled.max() <= 1
        np.testing.assert_allclose(onto_canvas(frame[:, ::-1], shape), scaled[:, ::-1], atol=1e-6)
        np.testing.assert_allclose(onto_canvas(frame[::-1], shape), scaled[::-1], atol=1e-6)
