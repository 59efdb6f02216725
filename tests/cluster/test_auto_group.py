"""``group="auto"``: the estimator finds its group, says why, and keeps it when it is saved."""

import math

import numpy as np
import pytest

from unpose.cluster import InvariantClustering
from unpose.data import posed


def letters(count, seed):
    """Noisy letters L and T, upright and in the centre, of 16 pixels."""
    images = 0.1 * np.random.default_rng(seed).random((count, 16, 16))
    images[::2, 4:12, 5] = images[::2, 11, 5:10] = 1
    images[1::2, 4:12, 8] = images[1::2, 4, 5:12] = 1
    return images


@pytest.mark.slow
def test_upright_letters_are_not_turned_and_turned_ones_are(tmp_path):
    upright = InvariantClustering(2, group="auto", features="pixels").fit(letters(70, 0))
    assert upright.range_.max_angle < math.radians(30)
    assert "mirror" not in upright.range_.group
    turned = posed(letters(70, 1), "so2", random_state=2).images
    free = InvariantClustering(2, group="auto", features="pixels").fit(turned)
    assert free.range_.max_angle == math.pi
    assert any("turns: holds" in note for note in free.notes_)
    assert len({(a, b) for a, b in zip(np.arange(70) % 2, free.labels_, strict=True)}) == 2
    free.save(tmp_path)
    again = InvariantClustering.load(tmp_path)
    assert again.group == free.range_.group
    np.testing.assert_array_equal(again.predict(turned[:3]), free.labels_[:3])


def test_few_images_are_refused():
    with pytest.raises(ValueError, match="at least 64 images, got 9"):
        InvariantClustering(2, group="auto").fit(letters(9, 0))
