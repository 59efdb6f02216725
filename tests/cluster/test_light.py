"""Light that varies inside the image: local contrast, and the rule that chooses it without labels."""

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from unpose.cluster import InvariantClustering, constant_images
from unpose.cluster.graph import mutual_share
from unpose.cluster.light import light_notes, normalise_light
from unpose.data import drawings, posed
from unpose.images import as_batch


def lit(images, seed):
    """Each image under a slope of light and a bright spot at random places."""
    rng = np.random.default_rng(seed)
    side = images.shape[1]
    y, x = np.mgrid[:side, :side] / side
    done = []
    for image in images:
        angle, (cx, cy) = rng.uniform(0, 2 * np.pi), rng.uniform(0.2, 0.8, 2)
        field = np.exp(2.0 * (np.cos(angle) * (x - 0.5) + np.sin(angle) * (y - 0.5)))
        spot = np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * 0.15**2))
        done.append((0.2 + 0.8 * image) * field + spot)
    return np.stack(done).astype(np.float32)


def figures():
    """Three kinds of figures at four poses each, from 0 to 1."""
    return posed(drawings(27).mean(-1)[:3], copies=4, max_shift=1.5, random_state=3).images.clip(0, 1)


def correlation(a, b):
    return float(torch.nn.functional.cosine_similarity(a.flatten(1), b.flatten(1)).mean())


def test_local_contrast_removes_light_that_a_plane_cannot():
    image = np.zeros((1, 31, 31), np.float32)
    image[:, 6:25, 12:15] = image[:, 6:9, 12:22] = image[:, 16:19, 8:15] = 1
    clean, dark = as_batch(image), as_batch(lit(image, 1))
    lost = 1 - correlation(normalise_light(clean, "ignore"), normalise_light(dark, "ignore"))
    assert 1 - correlation(normalise_light(clean, "local"), normalise_light(dark, "local")) < 0.5 * lost


def test_local_contrast_turns_with_the_image_and_ignores_a_factor():
    image = torch.rand(1, 2, 23, 23, generator=torch.Generator().manual_seed(0))
    found = normalise_light(image, "local")
    turned = normalise_light(image.rot90(1, (2, 3)), "local")
    torch.testing.assert_close(turned, found.rot90(1, (2, 3)), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(normalise_light(7 * image, "local"), found, rtol=1e-4, atol=1e-4)


def test_constant_images_stay_constant():
    images = np.full((3, 17, 17), 0.3, np.float32)
    images[0, 5:9, 5:12] = 1
    images[1] += np.linspace(0, 1, 17, dtype=np.float32)
    found = normalise_light(as_batch(images), "local")
    assert found[0].abs().max() > 0
    assert (found[1:] == 0).all()


@pytest.mark.parametrize("light", ["ignore", "local", "keep"])
@pytest.mark.parametrize("factor", [3e38, 1e20])
def test_one_picture_with_huge_pixels_changes_nothing_for_the_others(light, factor):
    images = figures()
    huge = images.copy()
    huge[2] *= factor
    expected = InvariantClustering(3, light=light, features="pixels", random_state=0).fit(images)
    found = InvariantClustering(3, light=light, features="pixels", random_state=0).fit(huge)
    others = np.arange(len(images)) != 2
    assert (found.labels_ >= 0).all()
    assert np.isfinite(found.means_).all()
    if light != "keep":
        assert found.labels_.tolist() == expected.labels_.tolist()
        assert found.predict(huge[:4]).tolist() == expected.labels_[:4].tolist()
    else:  # scaled to full scale
        assert adjusted_rand_score(expected.labels_[others], found.labels_[others]) == 1


def test_a_whole_set_of_huge_pixels_is_clustered_as_if_it_were_small():
    images = figures()
    found = InvariantClustering(3, features="pixels", random_state=0).fit(3e37 * images)
    assert (
        found.labels_.tolist() == InvariantClustering(3, features="pixels", random_state=0).fit(images).labels_.tolist()
    )


@pytest.mark.parametrize("factor", [3e38, 1e9])
def test_constant_images_are_found_beside_huge_ones(factor):
    images = figures()
    images[1], images[2] = 0.3, factor * images[2]
    for light in ("ignore", "local", "keep"):
        assert np.flatnonzero(constant_images(images, light=light)).tolist() == [1]


def test_mutual_share_is_its_definition():
    indices = np.random.default_rng(0).permuted(np.tile(np.arange(11), (11, 1)), axis=1)[:, :4]
    pairs = [i in indices[j] for i in range(11) for j in indices[i]]
    assert mutual_share(indices) == pytest.approx(np.mean(pairs))
    assert mutual_share(np.array([[1], [0]])) == 1.0
    assert mutual_share(np.array([[1], [2], [0]])) == 0.0


def test_notes_say_what_was_found_and_what_to_try():
    assert light_notes("auto", 0.01) == light_notes("ignore", 0.3) == []
    assert "was used" in light_notes("auto", 0.5)[0]
    assert 'Try light "local"' in light_notes("ignore", 0.5)[0]


@pytest.mark.slow
def test_auto_uses_local_contrast_where_light_varies_and_nowhere_else(tmp_path):
    things = posed(drawings(27).mean(-1), copies=10, max_shift=1.5, random_state=2)
    noise = np.random.default_rng(1).normal(0, 0.02, things.images.shape).astype(np.float32)
    plain = InvariantClustering(3, light="auto").fit(things.images + noise)
    assert (plain.light_, plain.notes_) == ("ignore", [])
    uneven = lit(things.images, 5) + noise
    model = InvariantClustering(3, light="auto").fit(uneven)
    assert model.light_ == "local"
    assert "local contrast was used" in model.notes_[-1]
    assert adjusted_rand_score(things.sources, model.labels_) > 0.9
    model.save(tmp_path)
    back = InvariantClustering.load(tmp_path)
    assert (back.light_, back.notes_) == ("local", model.notes_)
    assert np.array_equal(back.predict(uneven[:4]), model.labels_[:4])
