"""16-bit colour PNG files keep every bit, whatever the filter, and damaged ones are rejected; PPM is read at 8 bits."""

import numpy as np
import pytest
from PIL import Image

from kit.formats import blended, chunk, deep_png, header, noise, only, png_of, rejection, unit

NO_FILTER, SUB, UP, AVERAGE, PAETH = range(5)
GREY, GREY_ALPHA, COLOUR, COLOUR_ALPHA = 1, 2, 3, 4  # numbers of channels


def read(path, data, side=4096):
    """The single frame of a file that holds these bytes and is read without loss."""
    path.write_bytes(data)
    assert header(path, side).note == ""
    return only(path, side)


# PNG -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interlaced", [False, True], ids=["rows", "adam7"])
@pytest.mark.parametrize(
    "filters",
    [(NO_FILTER,), (SUB,), (UP,), (AVERAGE,), (PAETH,), (PAETH, UP, AVERAGE, NO_FILTER, SUB)],
    ids=["none", "sub", "up", "average", "paeth", "mixed"],
)
def test_png_keeps_every_bit_whatever_its_filters(tmp_path, rng, filters, interlaced):
    samples = noise(rng, 13, 7, COLOUR)
    frame = read(tmp_path / "a.png", deep_png(samples, filters, interlaced, pieces=3))
    np.testing.assert_array_equal(frame, unit(samples))


@pytest.mark.parametrize("channels", [GREY_ALPHA, COLOUR_ALPHA], ids=["grey", "colour"])
@pytest.mark.parametrize("interlaced", [False, True], ids=["rows", "adam7"])
def test_dark_16_bit_colour_with_alpha_is_blended_over_white(tmp_path, rng, channels, interlaced):
    samples = noise(rng, 13, 7, channels)
    samples[..., :-1] //= 8
    frame = read(tmp_path / "a.png", deep_png(samples, (PAETH, SUB), interlaced))
    np.testing.assert_allclose(frame, blended(samples, ground=1.0), atol=1e-6)


@pytest.mark.parametrize("channels", [GREY, COLOUR], ids=["grey", "colour"])
def test_a_colour_that_stands_for_transparent(tmp_path, rng, channels):
    samples = 40000 + noise(rng, 13, 7, channels) // 4
    key = samples[5, 3].copy()
    samples[5, 4] = key
    samples[5, 4, -1] += 1  # differs in the last bit of the last channel, and is therefore seen
    samples[7] = key
    frame = read(tmp_path / "a.png", deep_png(samples, more=chunk(b"tRNS", key.astype(">u2").tobytes())))
    seen = (samples != key).any(-1, keepdims=True)
    expected = np.where(seen, unit(samples), 0)
    np.testing.assert_array_equal(frame, expected if channels == COLOUR else expected[..., 0])
    assert frame[5, 4].max() > 0


@pytest.mark.parametrize("channels", [COLOUR, COLOUR_ALPHA, GREY_ALPHA], ids=["rgb", "rgba", "la"])
def test_large_images_are_shrunk_by_averaging_boxes(tmp_path, rng, channels):
    samples = noise(rng, 59, 83, channels)
    samples[..., :1] |= 32768  # bright: the ground is black
    small = read(tmp_path / "a.png", deep_png(samples), side=13)
    # On black a mean of what is seen is the mean of the blended pixels.
    values = samples.astype(float) / 65535 if channels == COLOUR else blended(samples)
    rows, columns = (range(0, side, 83 // 26) for side in (59, 83))
    boxes = [[values[i : i + 3, j : j + 3].mean((0, 1)) for j in columns] for i in rows]
    np.testing.assert_allclose(small, boxes, atol=1e-6)


def test_16_bit_png_agrees_with_the_same_image_at_8_bits(tmp_path, rng):
    """The same picture as a PNG by Pillow at 8 bits, whose samples are those of 16 with both bytes equal."""
    small = noise(rng, 13, 7, 4, kind=np.uint8)
    Image.fromarray(small).save(tmp_path / "8.png")
    sixteen = read(tmp_path / "16.png", deep_png(small.astype(np.uint16) * 257))
    np.testing.assert_allclose(sixteen, only(tmp_path / "8.png"), atol=1e-6)


@pytest.mark.parametrize("interlaced", [False, True], ids=["rows", "adam7"])
def test_damaged_png_of_16_bits(tmp_path, rng, interlaced):
    whole = deep_png(noise(rng, 41, 37, 3), (PAETH, AVERAGE), interlaced, pieces=5)
    for at in range(60, len(whole) - 30, 397):  # in the pixels: their own sum does not fit
        bent = bytearray(whole)
        bent[at] ^= 4
        assert rejection(tmp_path / "bent.png", bytes(bent))
    header_sum = bytearray(whole)
    header_sum[29] ^= 1
    assert rejection(tmp_path / "sum.png", bytes(header_sum))


@pytest.mark.parametrize("size", [(9000, 400_000_000 // 9000 + 1), (0, 13), (7, 0), (9000, 13), (1, 1)])
def test_wrong_and_excessive_sizes_are_rejected(tmp_path, rng, size):
    (tmp_path / "a.png").write_bytes(deep_png(noise(rng, 13, 7, 3)))
    png_of(*size)(tmp_path / "a.png")
    assert rejection(tmp_path / "a.png")


# PPM -----------------------------------------------------------------------------------------------------------------


def test_a_ppm_of_16_bits_is_read_at_8_bits_and_a_note_says_so(tmp_path, rng):
    for white in (65535, 4095, 1000):
        samples = rng.integers(0, white + 1, (13, 7, 3))
        (tmp_path / "a.ppm").write_bytes(b"P6\n7 13\n%d\n" % white + samples.astype(">u2").tobytes())
        text = "# by hand\n".join(" ".join(map(str, row.ravel())) + "\n" for row in samples)
        (tmp_path / "b.ppm").write_text(f"P3\n7 13\n{white}\n{text}")
        for name in ("a.ppm", "b.ppm"):
            assert "8 bits" in header(tmp_path / name).note
            np.testing.assert_allclose(only(tmp_path / name), samples / white, atol=1 / 255)


def test_text_that_is_no_sample_of_a_ppm_is_rejected(tmp_path, rng):
    text = b"P3\n7 13\n65535\n" + b" ".join(b"%d" % value for value in noise(rng, 13, 7, 3).ravel())
    for number in (b" -", b" 99999999999 "):
        assert rejection(tmp_path / "a.ppm", text.replace(b" ", number, 2))
