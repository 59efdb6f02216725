"""Planted symmetries are found, absent ones are not, labels overrule images, and bad input is refused."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from unpose.data import posed
from unpose.discover import FAMILIES, LabelGain, discover, label_gains, moved_example, two_sample_overlap

pytestmark = pytest.mark.laws


@pytest.fixture(scope="module")
def digits():
    """Digits without the symmetric 0, 1 and 8, on a canvas that holds them at any angle, and their classes."""
    images, labels = load_digits(return_X_y=True)
    asymmetric = ~np.isin(labels, (0, 1, 8))
    images = images[asymmetric][:240].reshape(-1, 8, 8).astype(np.float32) / 16
    return np.pad(images.repeat(2, axis=1).repeat(2, axis=2), ((0, 0), (3, 4), (3, 4))), labels[asymmetric][:240]


def turned(images, degrees):
    return posed(images, "so2", random_state=1, max_angle=math.radians(degrees)).images


def test_turns_by_any_angle_hold(digits):
    found = discover(turned(digits[0], 180), families=["turns"])
    assert found["turns"].verdict == "holds"
    assert (found.group, found.max_angle, found.finite_group) == ("se2", 180, "c8")


@pytest.mark.slow
def test_turns_within_thirty_degrees_hold_up_to_about_thirty(digits):
    found = discover(turned(digits[0], 30), families=["turns"])
    assert found["turns"].verdict == "holds up to"
    assert 15 < found["turns"].limit < 60
    assert found.options == f"--group se2 --max-angle {found['turns'].limit:.3g}"


def test_upright_images_are_not_free_to_turn_and_the_images_that_say_no_are_named(digits):
    found = discover(digits[0], families=["turns", "half turn"])
    assert found.max_angle < 30
    assert found["half turn"].verdict == "does not hold"
    assert found.finite_group == "c1"
    objection = found["half turn"].objections[0]
    example = moved_example(digits[0], "half turn", objection)
    np.testing.assert_allclose(example[:, 23:], digits[0][objection.image][::-1, ::-1], atol=1e-6)


def test_a_mirror_that_was_planted_is_found_and_one_that_was_not_is_refused(digits):
    flip = np.random.default_rng(0).random(len(digits[0])) < 0.5
    mirrored = np.where(flip[:, None, None], digits[0][:, :, ::-1], digits[0])
    assert discover(mirrored, families=["mirror"])["mirror"].verdict == "holds"
    refused = discover(digits[0], families=["mirror"])
    assert refused["mirror"].verdict == "does not hold"
    assert "images can be compared as they are" in str(refused)
    assert refused.options == "--group translation"


def test_labels_decide_whether_a_symmetry_of_the_images_is_one_of_the_classes():
    """Arrows that point up or down, equally often: a half turn changes no image set, but the class."""
    rng = np.random.default_rng(0)
    arrow = np.zeros((300, 20, 20), np.float32)
    arrow[:, 4:16, 9:11] = arrow[:, 4:6, 6:14] = 1
    arrow += 0.2 * rng.random(arrow.shape, dtype=np.float32)
    down = rng.random(300) < 0.5
    arrow[down] = arrow[down, ::-1]
    without = discover(arrow, families=["half turn"])["half turn"]
    assert without.verdict == "holds"
    found = discover(arrow, np.where(down, "down", "up"), families=["half turn"])["half turn"]
    assert found.verdict == "does not hold"
    assert all(down[each.image] != down[each.resembles] for each in found.objections)


def test_where_images_cannot_tell_a_network_decides_about_photographs_and_only_about_them():
    """Two of five images are brighter below, and the others have no upper side."""
    rng = np.random.default_rng(2)
    photographs = rng.random((200, 16, 16))
    photographs[:80] += np.linspace(-2, 2, 16)[:, None]
    called = []

    def seeing(images):
        called.append(images)
        return torch.full((len(images), 1), float(len(called) > 2))  # two parts of the images, then two of moved ones

    def found(images, labels=None, network=seeing):
        return discover(images, labels, families=["half turn"], network=network)["half turn"]

    assert found(photographs, network=None).verdict == "cannot tell"
    assert found(np.pad(photographs, ((0, 0), (5, 5), (5, 5)))).verdict == "cannot tell"
    assert not called
    assert found(photographs).verdict == "does not hold"
    classes = rng.integers(2, size=200)  # that say nothing
    called.clear()
    assert found(photographs, classes).verdict == "does not hold"
    assert called[0].shape == (128, 1, 64, 64)
    assert all(torch.equal(one.rot90(2, (2, 3)), two) for one, two in zip(called[:2], called[2:], strict=True))

    def blind(images):
        return torch.zeros(len(images), 1)

    assert found(photographs, network=blind).verdict == "cannot tell"
    assert found(photographs, classes, blind).verdict == "holds"


def test_the_same_seed_gives_the_same_result_and_json_is_plain(digits):
    one, two = (discover(digits[0], digits[1], families=["mirror"], random_state=3) for _ in range(2))
    assert json.dumps(one.to_dict()) == json.dumps(two.to_dict())
    assert one.to_dict()["labelled"] is True


def test_equal_sets_are_not_told_apart_and_distant_sets_are():
    points = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    assert abs(two_sample_overlap(points, points).told_apart) < 1e-6
    assert two_sample_overlap(points, points + 3).plausible < 0.1


def test_with_labels_moved_images_are_told_apart_class_by_class():
    """Moving exchanges the two ends of one class and of the other, so that all points together stay where they were."""
    labels = torch.arange(300) % 2
    points = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    points[:, 0] += 4 * labels - 2
    moved = points * torch.tensor([-1.0, 1.0])
    assert two_sample_overlap(points, moved).told_apart < 0.3
    assert two_sample_overlap(points, moved, labels=labels).told_apart > 0.8


def test_labels_object_at_a_strength_only_if_the_next_one_confirms_it(monkeypatch, digits):
    """One strength of several objects by chance now and then."""
    family = next(each for each in FAMILIES if each.name == "turns")
    nobody = torch.zeros(0, 2, dtype=torch.long)

    def found(objecting):
        gains = [LabelGain(0.9, -0.1 if each in objecting else 0.0, 0.01, nobody) for each in family.strengths]
        monkeypatch.setattr("unpose.discover.symmetry.label_gains", lambda *_, **__: gains)
        return discover(turned(digits[0], 180), digits[1], families=["turns"])["turns"]

    assert found({60}).verdict == "holds"
    assert found({60, 90}).limit == 45
    assert found({180}).limit == 135


def test_label_gains_against_a_slow_loop():
    generator = torch.Generator().manual_seed(0)
    real, moved = torch.randn(2, 31, 3, generator=generator)
    labels = torch.randint(3, (31,), generator=generator)
    (found,) = label_gains(real, [[moved]], labels)
    order = torch.randperm(31, generator=torch.Generator().manual_seed(0))
    halves = order[:15].tolist(), order[15:].tolist()
    right = {True: 0, False: 0}
    for train, test in (halves, halves[::-1]):
        for i in test:
            for with_copies in (False, True):
                pool = [(real[j], j) for j in train] + [(moved[j], j) for j in train] * with_copies
                nearest = min(pool, key=lambda each: float((each[0] - real[i]).norm()))[1]
                right[with_copies] += int(labels[nearest] == labels[i])
    assert found.plain == pytest.approx(right[False] / 31)
    assert found.gain == pytest.approx((right[True] - right[False]) / 31)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_family_moves_back_what_it_moved(family):
    """Half forwards after half backwards is nothing, up to interpolation; a single transformation of order two too."""
    images = torch.zeros(1, 1, 24, 24)
    images[..., 8:15, 9:14] = torch.linspace(0.5, 1, 5)
    identity = torch.eye(3).expand(1, 3, 3)
    strength = family.strengths[1] if family.strengths else 1.0
    there = family.move(images, identity, strength, 1.0)
    assert not torch.allclose(there, images, atol=0.02)
    back = there
    for _ in range({"mirror": 1, "half turn": 1, "quarter turn": 3}.get(family.name, 1)):
        back = family.move(back, identity, strength, 1.0 if family.is_single else -1.0)
    assert float((back - images).abs().mean()) < 0.02


def test_bad_input(digits):
    few = discover(digits[0][:20], families=["mirror"])
    assert (few["mirror"].verdict, few.options) == ("cannot tell", "")
    assert "choose the group yourself" in str(few)
    with pytest.raises(ValueError, match="one entry for each image"):
        discover(digits[0], [0, 1])
    with pytest.raises(ValueError, match="NaN or infinite"):
        discover(np.full((80, 8, 8), np.nan))
    with pytest.raises(ValueError, match="families must be of turns"):
        discover(digits[0], families=["twist"])
    constant = discover(np.zeros((80, 9, 9)), families=["mirror", "turns"])
    assert [each.verdict for each in constant.findings] == ["holds", "holds"]


def test_no_families_give_no_findings_but_words(digits):
    found = discover(digits[0], families=[])
    assert found.findings == ()
    assert str(found) == "\n".join(found.advice)
    assert "Nothing could be measured" in str(found)


class Source:
    """Many images of which only rows are ever read, as from an array of Zarr."""

    def __init__(self, images):
        self.images, self.shape, self.dtype, self.read = images, images.shape, images.dtype, []

    def __len__(self):
        return len(self.images)

    def __getitem__(self, rows):
        self.read += np.arange(len(self))[rows].tolist()
        return self.images[rows]

    def __array__(self, *args, **kwargs):
        raise AssertionError("all images were read")


@pytest.mark.parametrize("labelled", [False, True])
def test_of_many_images_only_a_sample_is_read(labelled):
    images = np.random.default_rng(0).random((3300, 8, 8), np.float32)
    labels = np.arange(len(images)) % 2 if labelled else None
    source = Source(images)
    found = discover(source, labels, families=["mirror"])
    assert len(set(source.read)) == len(source.read) == 3000
    assert found.n_images == len(images)
    assert found.to_dict() == discover(images, labels, families=["mirror"]).to_dict()
    assert found.to_dict() == discover(list(images), labels, families=["mirror"]).to_dict()
