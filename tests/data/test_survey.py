"""A survey says what reading would give."""

import numpy as np
import pytest
from PIL import Image

from unpose.data import read_folder, survey
from unpose.files import ImagesInPieces


def test_images_that_a_star_file_does_not_list_are_not_surveyed(tmp_path):
    np.save(tmp_path / "stack.npy", np.arange(100)[:, None, None] * np.ones((9, 7), np.float32))
    rows = "".join(f"{k + 1:06}@stack.npy\n" for k in (97, 98, 99, 100))  # there is no hundred and first
    (tmp_path / "some.star").write_text(f"data_\nloop_\n_rlnImageName #1\n{rows}")
    found = survey.survey_images(tmp_path / "some.star", 10)
    assert found.count == 3
    assert found.sample[:, 0, 0].tolist() == [97, 98, 99]


def test_files_beyond_the_budget_are_not_counted(tmp_path, rng):
    for k, side in enumerate((40, 40, 2000)):
        Image.fromarray(rng.integers(0, 255, (side, side), np.uint8)).save(tmp_path / f"{k}.png")
    found, read = survey.survey_images(tmp_path, 9, memory="16MB"), read_folder(tmp_path, memory="16MB")
    assert (found.count, found.shape) == (2, (40, 40)) == (len(read), read.images.shape[1:])


@pytest.mark.parametrize("red", [False, True])
def test_where_images_are_kept_and_their_channels_are_those_of_reading(tmp_path, rng, red):
    for k in range(40):
        picture = np.repeat(rng.integers(0, 255, (64, 64, 1), np.uint8), 3, axis=-1)
        picture[0, 0] = (255, 0, 0) if red and k == 20 else 0
        Image.fromarray(picture).save(tmp_path / f"{k}.png")
    budget = "3MB"  # grey images would be kept in memory, coloured ones in a file; headers declare colour
    found, read = survey.survey_images(tmp_path, 9, memory=budget), read_folder(tmp_path, pieces=True, memory=budget)
    assert found.in_pieces
    assert isinstance(read.images, ImagesInPieces)
    assert found.channels == (3 if red else 1) == (read.images.shape[3] if read.images.ndim == 4 else 1)
