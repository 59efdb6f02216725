"""The estimator on pictures: groups, poses, averages, light, bad input, the way to disk and back."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.metrics import adjusted_rand_score

from kit.doubles import InMemory
from kit.images import scribbles, things
from unpose.cluster import InvariantClustering, align_stack
from unpose.data import posed, read_folder
from unpose.groups import parse


def shapes():
    """Four things without symmetry, one of them the mirror image of another."""
    plain = things(21)[[0, 2, 1]]
    plain[2] = things(21, 4)[3]
    return np.concatenate([plain, plain[:1, :, ::-1]])


@pytest.fixture(scope="module")
def turned():
    return posed(shapes(), "se2", copies=9, max_shift=2.0, random_state=1)


@pytest.fixture(scope="module")
def fitted(turned):
    return InvariantClustering(4).fit(turned.images)


def test_groups_are_the_things(turned, fitted):
    assert adjusted_rand_score(turned.sources, fitted.labels_) == 1.0
    assert fitted.n_clusters_ == 4
    assert fitted.means_.shape == fitted.standard_errors_.shape == (4, 21, 21)
    assert (fitted.symmetries_ == 1).all()
    assert (fitted.confidences_ > 0.9).all()
    assert fitted.stability_ > 0.9
    assert fitted.notes_ == []
    assert np.array_equal(fitted.labels_[fitted.exemplars_], np.arange(4))
    assert fitted.weights_.shape == (36, 36)
    assert fitted.neighbours_.indices.shape == (36, 12)
    assert abs(fitted.weights_ - fitted.weights_.T).max() == 0


def test_a_mirror_image_is_another_thing_unless_mirrors_count_as_poses(turned):
    model = InvariantClustering(3, group="se2+mirror").fit(turned.images)
    assert adjusted_rand_score(np.where(turned.sources == 3, 0, turned.sources), model.labels_) == 1.0


def test_poses_are_right_up_to_one_pose_per_group(turned, fitted):
    angle, shift = [], []
    for k in range(4):
        rows = np.flatnonzero(fitted.labels_ == k)
        # mean_from_image @ image_from_original is the same for all images of one original
        together = fitted.poses_[rows] @ turned.poses[rows]
        differences = np.linalg.inv(together[:1]) @ together[1:]
        angle += np.degrees(np.abs(np.arctan2(differences[:, 0, 1], differences[:, 0, 0]))).tolist()
        shift += np.hypot(differences[:, 0, 2], differences[:, 1, 2]).tolist()
    assert np.median(angle) <= 0.5
    assert np.median(shift) <= 0.1


def test_averages_are_as_sharp_as_what_they_average(turned, fitted):
    def sharpness(image):
        return np.sqrt((np.diff(image, axis=-1) ** 2).sum() / (image**2).sum())

    for k in range(4):
        stack = fitted.aligned(turned.images, k)
        assert stack.shape == (9, 21, 21)
        assert sharpness(fitted.means_[k]) > 0.9 * sharpness(stack)
        np.testing.assert_allclose(stack.mean(0), fitted.means_[k], atol=1e-4)
        np.testing.assert_allclose(stack.std(0, ddof=1) / 3, fitted.standard_errors_[k], atol=1e-4)


def test_a_symmetric_thing_is_not_smeared():
    cross = np.zeros((1, 21, 21), np.float32)
    cross[:, 3:18, 9:12] = cross[:, 9:12, 3:18] = 1
    stack = align_stack(posed(cross, copies=12, max_shift=2.0, random_state=3).images)
    assert stack.mean.max() > 0.9 * stack.aligned.max(axis=(1, 2)).mean()
    assert stack.standard_error.max() < 0.1
    model = InvariantClustering(1).fit(posed(cross, copies=5, max_shift=2.0).images)
    assert model.symmetries_[0] == 4


def test_light_changes_nothing(turned, fitted):
    rng = np.random.default_rng(0)
    n, across = len(turned.images), np.linspace(-0.5, 0.5, 21)
    gain, level, right, down = rng.uniform(0.5, 1.5, n), rng.uniform(-0.3, 0.3, n), *rng.uniform(-0.5, 0.5, (2, n))
    ramp = right[:, None, None] * across + down[:, None, None] * across[:, None]
    lit = gain[:, None, None] * turned.images + level[:, None, None] + ramp
    assert np.array_equal(InvariantClustering(4).fit(lit).labels_, fitted.labels_)


def test_the_background_plane_is_found_under_an_object_at_the_border():
    image = np.zeros((1, 24, 31), np.float32)
    image[:, 9:15, :12] = 1.0
    rows, columns = np.mgrid[:24, :31] / 31
    tilted = image + (0.2 - 0.3 * rows + 0.5 * columns).astype(np.float32)
    for given in (tilted, image):
        found = InvariantClustering(1, features="pixels").fit(given).references_
        np.testing.assert_allclose(found[0, 0], image[0], atol=2e-3)
    with pytest.raises(ValueError, match="light must be"):
        InvariantClustering(1, light="dark").fit(tilted)


def test_the_number_of_groups_is_found(turned):
    assert adjusted_rand_score(turned.sources, InvariantClustering().fit(turned.images).labels_) > 0.9


def test_the_same_labels_for_any_number_of_workers(turned, fitted):
    model = InvariantClustering(4, n_jobs=3, memory="3GB").fit(turned.images)
    assert np.array_equal(model.labels_, fitted.labels_)
    assert np.array_equal(model.poses_, fitted.poses_)
    assert np.array_equal(model.means_, fitted.means_)
    assert np.array_equal(model.confidences_, fitted.confidences_)
    assert model.stability_ == fitted.stability_


def test_fit_reports_progress_and_continues_from_checkpoints(turned, fitted):
    stages, stored = [], InMemory()
    model = InvariantClustering(4).fit(
        turned.images, progress=lambda stage, done, total: stages.append(stage), checkpoints=stored
    )
    assert "read out" in stages
    assert {name.partition("-")[0] for name in stored} >= {"round0", "average0"}
    finished, stages = set(stored), []
    labels = InvariantClustering(4).fit_predict(
        turned.images, progress=lambda stage, done, total: stages.append(stage), checkpoints=stored
    )
    assert set(stored) == finished
    assert np.array_equal(labels, fitted.labels_)
    assert np.array_equal(model.means_, fitted.means_)


def test_new_images_go_to_their_group(turned, fitted):
    fresh = posed(shapes(), "se2", copies=2, max_shift=2.0, random_state=9)
    predicted = fitted.predict(fresh.images)
    assert adjusted_rand_score(fresh.sources, predicted) == 1.0
    distances = fitted.transform(fresh.images)
    assert distances.shape == (8, 4)
    assert np.array_equal(distances.argmin(1), predicted)
    assert fitted.score(fresh.images) < 0
    assert np.array_equal(fitted.predict(turned.images), fitted.labels_)


@pytest.mark.parametrize("unit", [1e6, 1e-9])
def test_new_images_in_other_units_go_to_their_group(unit):
    bars = np.zeros((3, 15, 15), np.float32)
    bars[0, 2:13, 6:8] = bars[1, 4:11, 4:11] = bars[2, 3:12, 3:6] = bars[2, 9:12, 3:11] = 1
    old, new = (posed(bars, copies=copies, max_shift=1.0, random_state=copies) for copies in (7, 3))
    plain = InvariantClustering(3, features="pixels").fit(old.images)
    scaled = InvariantClustering(3, features="pixels").fit(unit * old.images.astype(np.float64))
    assert np.array_equal(scaled.labels_, plain.labels_)
    assert np.array_equal(scaled.predict(unit * new.images.astype(np.float64)), plain.predict(new.images))


def test_rows_of_pixels_and_colour(turned, fitted):
    rows = turned.images.reshape(36, -1)
    model = InvariantClustering(4, image_shape=(21, 21)).fit(rows)
    assert np.array_equal(model.labels_, fitted.labels_)
    assert np.array_equal(model.predict(rows[:5]), fitted.labels_[:5])
    few = turned.images[::2]
    colour = np.stack([few, 0.5 * few, few**2], axis=-1)
    assert adjusted_rand_score(InvariantClustering(4).fit(colour).labels_, turned.sources[::2]) == 1.0


def test_channels_may_come_first_or_last(turned):
    """A batch of torch is recognised by its shape, unless the caller says what it is."""
    last = np.stack([turned.images, 0.5 * turned.images, turned.images**2], axis=-1)[:3]
    first = torch.from_numpy(last).movedim(-1, 1)
    model = InvariantClustering(1).fit(first)
    assert model.image_shape_ == (21, 21, 3)
    assert model.means_.shape == (1, 21, 21, 3)
    distances = model.transform(last)
    assert (distances < 0.3).all()
    assert np.array_equal(model.transform(list(first.numpy())), distances)
    assert np.array_equal(model.set_params(channels_first=True).transform(first), distances)
    with pytest.raises(ValueError, match="look like"):
        model.set_params(channels_first=False).transform(first)


def test_pictures_of_different_sizes_are_placed_as_on_the_command_line(turned, tmp_path):
    rng = np.random.default_rng(2)
    pictures = [
        (255 * np.pad(image.clip(0, 1), rng.integers(0, 5, 2))).astype(np.uint8) for image in turned.images[6:12]
    ]
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / f"{number}.png")
    placed = read_folder(tmp_path).images
    model = InvariantClustering(2).fit(pictures)
    assert model.image_shape_ == placed.shape[1:]
    assert np.array_equal(model.transform(pictures), model.transform(placed))
    assert np.array_equal(model.predict([pictures[0], np.zeros((9, 9))]), [model.labels_[0], -1])


def test_new_points_join_the_cluster_of_their_neighbours_and_not_of_the_nearest_average():
    points, moon = make_moons(160, noise=0.03, random_state=0)
    model = InvariantClustering(2).fit(points[:120])
    right = np.array([model.labels_[moon[:120] == k][0] for k in (0, 1)])[moon]
    assert np.array_equal(model.labels_, right[:120])
    assert np.array_equal(model.predict(points), right)
    nearest_average = model.transform(points).argmin(1)
    assert (nearest_average != right).mean() > 0.1


def test_assignments_tell_copies_confident_doubtful_and_foreign_images(turned, fitted):
    fresh = posed(shapes(), "se2", copies=2, max_shift=2.0, random_state=9)
    half = 0.5 * (turned.images[0] + turned.images[9])  # two things on top of each other
    checks = np.indices((21, 21)).sum(0) // 2 % 2 * np.float32(1)
    found = fitted.assign(np.stack([*turned.images[:3], *fresh.images, half, checks, np.zeros((21, 21))]))
    assert np.array_equal(found.labels[:3], fitted.labels_[:3])
    assert (found.confidences[:3] == 1).all()  # copies of fitted images
    assert (found.confidences[3:11] > 0.9).all()
    assert (found.p_values[11:13] < 1e-3).all()
    assert found.labels[13] == -1
    assert (found.p_values[13], found.confidences[13], found.second[13]) == (0, 0, -1)
    assert np.isinf(found.distances[13])
    angle = found.poses[3:11] @ fresh.poses  # the same for both copies of a thing, up to rounding
    np.testing.assert_allclose(angle[::2][:, :2, :2], angle[1::2][:, :2, :2], atol=0.05)


def test_p_values_are_uniform_for_few_images_of_the_same_kind():
    rng = np.random.default_rng(0)
    model = InvariantClustering(1).fit(rng.random((400, 6)))
    p_values = np.concatenate([model.assign(rng.random((12, 6))).p_values for _ in range(30)])
    assert abs((p_values < 0.05).mean() - 0.05) < 0.04
    assert abs((p_values < 0.5).mean() - 0.5) < 0.1
    assert model.assign(np.full((1, 6), 20.0)).p_values < 1e-6
    few = InvariantClustering(2).fit([[0.0], [0.1], [0.3], [9.0], [9.2]])
    assert np.isnan(few.assign([[0.2], [9.1]]).p_values).all()  # too few members to know their range


def test_new_images_of_one_known_kind_are_not_foreign():
    rng = np.random.default_rng(5)
    fitted = np.concatenate([rng.normal(centre, 1.0, (60, 2)) for centre in (0.0, 12.0, 24.0, 36.0)])
    model = InvariantClustering(4).fit(fitted)
    p_values = model.assign(rng.normal(12.0, 1.0, (120, 2))).p_values
    assert (p_values < 0.05).mean() < 0.09


def test_new_images_of_an_unseen_kind_are_told_by_each_other_although_they_are_near_fitted_ones():
    rng = np.random.default_rng(0)
    fitted = np.concatenate([rng.normal(centre, 1.0, (90, 2)) for centre in (0.0, 12.0)])
    known = np.concatenate([rng.normal(centre, 1.0, (31, 2)) for centre in (0.0, 12.0)])
    unseen = rng.normal((0.6, 0.0), 0.1, (29, 2))
    model = InvariantClustering(2).fit(fitted)
    p_values = model.assign(np.concatenate([known, unseen])).p_values
    assert (p_values[:62] < 0.05).mean() < 0.1
    assert (p_values[62:] < 0.05).mean() > 0.7
    few = model.assign(unseen[:12]).p_values
    assert (few > 0.05).all()  # one by one they look like members of the cluster
    assert (model.assign(np.concatenate([known[:40], known[:40] + 40.0])).p_values[40:] < 0.01).all()
    alone = model.assign(np.concatenate([known, [[40.0, 0.0]]])).p_values
    assert alone[-1] < 1e-3  # far from all images, new ones included


def test_new_images_of_an_unseen_kind_are_told_by_each_other_at_any_pose():
    """Each of them is a possible member of the cluster; but fitted images have no such number of equals."""
    drawn = things(15, 1) + 0.35 * scribbles(71, 15)
    fitted = posed(drawn[:70], "se2", max_shift=1.0, random_state=1).images
    unseen = posed(drawn[70:], "se2", copies=14, max_shift=1.0, random_state=2).images
    model = InvariantClustering(1, features="pixels").fit(fitted)
    assert np.median(model.assign(unseen[:12]).p_values) > 0.05
    assert np.median(model.assign(unseen).p_values) < 0.05


def test_noise_is_averaged_away_and_shapes_are_not(turned, fitted):
    assert [each.averaged for each in fitted.history_] == [False]  # copies differ by next to nothing
    noisy = turned.images + np.random.default_rng(0).normal(0, 0.4, turned.images.shape).astype(np.float32)
    model = InvariantClustering(4).fit(noisy)
    assert model.history_[0].averaged
    assert model.history_[-1].mean_distance < 0.7 * model.history_[0].mean_distance
    assert adjusted_rand_score(turned.sources, model.labels_) > 0.8


def test_to_disk_and_back(turned, fitted, tmp_path):
    fitted.save(tmp_path / "run")
    back = InvariantClustering.load(tmp_path / "run")
    for name in ("labels_", "means_", "poses_", "standard_errors_", "confidences_", "symmetries_", "copies_"):
        assert np.array_equal(getattr(back, name), getattr(fitted, name)), name
    assert abs(back.weights_ - fitted.weights_).max() == 0
    assert back.history_ == fitted.history_
    assert back.stability_ == fitted.stability_
    assert np.array_equal(back.predict(turned.images[:6]), fitted.predict(turned.images[:6]))
    assert clone(back).get_params() == clone(fitted).get_params()


@pytest.mark.parametrize("spoil", ["cut", "other format", "no json", "missing", "wrong shape"])
def test_a_spoilt_model_is_refused(fitted, tmp_path, spoil):
    fitted.save(tmp_path)
    about, arrays = tmp_path / "model.json", tmp_path / "model.safetensors"
    if spoil == "cut":
        arrays.write_bytes(arrays.read_bytes()[:-100])
    elif spoil == "missing":
        arrays.unlink()
    elif spoil == "no json":
        about.write_text("{")
    else:
        content = json.loads(about.read_text())
        content |= {"format": 99} if spoil == "other format" else {"n_clusters": 7}
        about.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=str(tmp_path)):
        InvariantClustering.load(tmp_path)


def test_files_of_two_models_are_no_model(turned, tmp_path):
    """As a crash between the two leaves them; all shapes agree."""
    for name, image in (("one", 0), ("other", 1)):
        InvariantClustering(1, features="pixels", n_jobs=1).fit(turned.images[[image]]).save(tmp_path / name)
    (tmp_path / "one" / "model.json").write_bytes((tmp_path / "other" / "model.json").read_bytes())
    with pytest.raises(ValueError, match="not saved together"):
        InvariantClustering.load(tmp_path / "one")


def test_bad_input(turned):
    images = turned.images[:6]
    for model, data, message in [
        (InvariantClustering(7), images, "at most the number of images"),
        (InvariantClustering(0), images, "at least 1"),
        (InvariantClustering(2, image_shape=(5, 7)), images.reshape(6, -1), "image_shape"),
        (InvariantClustering(2), np.full((4, 9, 9), 0.5), "constant"),
        (InvariantClustering(2), np.where(np.arange(6)[:, None, None] == 3, np.nan, images), "3"),
        (InvariantClustering(2, group="s02"), images, "s02"),
        (InvariantClustering(2, light="off"), images, "light"),
        (InvariantClustering(2), np.zeros((0, 9, 9)), "no images"),
        (InvariantClustering(2), [np.ones((8, 8, 2)), np.ones((9, 9, 3))], "the same channels"),
        (InvariantClustering(2), [np.eye(9), np.full((8, 8), np.nan)], "image 1: .*NaN"),
    ]:
        with pytest.raises(ValueError, match=message):
            model.fit(data)


@pytest.mark.parametrize(
    ("data", "given"), [([], "an empty list"), (None, "type NoneType"), ({"a.png": 1}, "type dict")]
)
def test_what_holds_no_images_is_named(data, given):
    with pytest.raises(ValueError, match=f"give at least one image: .*; got .*{given}"):
        InvariantClustering().fit(data)


def test_a_folder_or_files_are_read_and_named(turned, tmp_path):
    for number, image in enumerate(turned.images[6:12]):
        Image.fromarray((255 * image.clip(0, 1)).astype(np.uint8)).save(tmp_path / f"{number}.png")
    model = InvariantClustering(2).fit(tmp_path)
    assert model.names_ == [f"{number}.png" for number in range(6)]
    images = read_folder(tmp_path).images
    again = InvariantClustering(2).fit(images)
    assert np.array_equal(model.labels_, again.labels_)
    assert again.names_ is None
    assert np.array_equal(model.predict([tmp_path / "5.png", str(tmp_path / "0.png")]), model.predict(images[[5, 0]]))
    column = np.array([str(tmp_path / "5.png"), str(tmp_path / "0.png")])  # such as a column of a data frame
    assert np.array_equal(model.predict(column), model.predict(images[[5, 0]]))
    Image.fromarray((255 * np.pad(turned.images[6].clip(0, 1), 4)).astype(np.uint8)).save(tmp_path / "wide.png")
    assert len(model.predict([tmp_path / "wide.png"])) == 1  # brought to the size that was fitted
    (tmp_path / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\nno more")
    with pytest.raises(ValueError, match=r"1 of the files cannot be read, the first is torn\.png.*read_folder"):
        model.predict(tmp_path)


def test_stacks_and_fitted_estimators_show_pictures_in_notebooks(turned, fitted):
    stack = align_stack(turned.images[:4])
    assert repr(stack).startswith("AlignedStack(4 images of 21x21")
    assert len(repr(stack)) < 100
    assert stack._repr_html_().count("data:image/png;base64,") == 2
    assert fitted._repr_mimebundle_()["text/html"].count("9 images</figcaption>") == 4
    assert "data:image/png" not in InvariantClustering(4)._repr_mimebundle_()["text/html"]


def test_few_copied_and_empty_images(turned):
    one = InvariantClustering().fit(turned.images[:1])
    assert one.labels_.tolist() == [0]
    assert one.n_clusters_ == 1
    for few in (turned.images[[0, 0]], turned.images[:5]):  # of one thing: no group of one
        assert np.bincount(InvariantClustering().fit(few).labels_).min() > 1
    copies = np.repeat(turned.images[:2], 5, axis=0)
    model = InvariantClustering(2).fit(copies)
    assert adjusted_rand_score(np.repeat([0, 1], 5), model.labels_) == 1.0
    with pytest.raises(ValueError, match="images that differ"):
        InvariantClustering(4).fit(copies)
    mixed = np.concatenate([turned.images[:9], np.zeros((1, 21, 21), np.float32)])
    model = InvariantClustering(1).fit(mixed)
    assert model.labels_.tolist() == [0] * 9 + [-1]
    assert np.array_equal(model.poses_[9], np.eye(3))
    assert model.predict(mixed)[9] == -1
    assert math.isfinite(model.score(mixed))


def test_rows_of_what_was_fitted_are_read_as_images(turned, fitted):
    images = turned.images[:5]
    assert np.array_equal(fitted.predict(images.reshape(5, -1)), fitted.predict(images))
    assert np.array_equal(fitted.predict(images), fitted.labels_[:5])


def test_images_given_to_an_estimator_of_vectors_are_refused(turned):
    vectors = InvariantClustering(2).fit(turned.images.reshape(len(turned.images), -1))
    with pytest.raises(ValueError, match="vectors of 441 numbers were fitted, got images"):
        vectors.predict(turned.images)
    assert vectors.predict(turned.images.reshape(len(turned.images), -1)).shape == (36,)


def test_an_image_shape_of_any_kind_is_saved(turned, tmp_path):
    rows = turned.images[:3].reshape(3, -1)
    model = InvariantClustering(1, image_shape=np.array([21, 21])).fit(rows)
    for shape in (np.array([21, 21]), [21, 21]):
        model.set_params(image_shape=shape).save(tmp_path)
        assert InvariantClustering.load(tmp_path).image_shape == (21, 21)
    assert np.array_equal(InvariantClustering.load(tmp_path).predict(rows), model.labels_)


def test_tensors_that_track_gradients_and_all_processors(turned):
    tracked = torch.tensor(turned.images[:4], requires_grad=True)
    assert not InvariantClustering(1, n_jobs=-1).fit(tracked).labels_.any()
    with pytest.raises(ValueError, match="n_jobs"):
        InvariantClustering(1, n_jobs=0).fit(tracked)


def test_blank_images_have_no_score(fitted):
    with pytest.raises(ValueError, match="none of the 3 images shows anything"):
        fitted.score(np.zeros((3, 21, 21)))


@pytest.mark.slow
def test_rows_of_bytes_have_the_scale_of_images_of_bytes(turned):
    given = np.clip(np.rint(255 * turned.images[::4]), 0, 255).astype(np.uint8)
    rows = given.reshape(len(given), -1)
    model = InvariantClustering(3, light="keep").fit(given)
    assert np.array_equal(model.predict(rows), model.predict(given))
    again = InvariantClustering(3, light="keep", image_shape=given.shape[1:]).fit(rows)
    assert np.allclose(again.means_, model.means_, atol=1e-5)


def test_a_group_given_as_an_object_is_saved_by_its_name(turned, tmp_path):
    model = InvariantClustering(1, group=parse("se2")).fit(turned.images[:4])
    model.save(tmp_path)
    again = InvariantClustering.load(tmp_path)
    assert again.group == "se2"
    assert np.array_equal(again.predict(turned.images[:4]), model.predict(turned.images[:4]))


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
