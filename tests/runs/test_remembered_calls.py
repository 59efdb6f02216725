"""Answers that are kept: each picture is shown once, failures are told apart, and another process continues."""

import pytest
import torch

from unpose.audit import ModelCallError
from unpose.runs.audits import AuditedImages, RememberedCalls, real_pairs, run_audit


class Counting:
    """Means of the channels of each image, and how many images it was asked for."""

    def __init__(self, factor=1.0):
        self.seen, self.factor = 0, factor

    def __call__(self, images):
        self.seen += len(images)
        return self.factor * images.mean((2, 3))


@pytest.fixture
def images():
    return torch.rand(7, 2, 5, 5, generator=torch.Generator().manual_seed(0))


def test_an_image_is_shown_once_in_whatever_batch_it_comes(images):
    model = Counting()
    f = RememberedCalls(model, batch_size=3)
    first = f(images)
    assert f(images[2:6]).equal(first[2:6])
    assert model.seen == 7
    f(images.flip(3))
    assert model.seen == 14


def test_another_process_continues_and_another_model_starts_again(images, tmp_path):
    first = RememberedCalls(Counting(), tmp_path, batch_size=3)(images)
    again, other = Counting(), Counting(2.0)
    assert RememberedCalls(again, tmp_path, batch_size=3)(images).equal(first)
    assert again.seen == 3  # the first batch, to see whether it is still the same model
    assert RememberedCalls(other, tmp_path, batch_size=3)(images).equal(2 * first)
    assert other.seen == 10


@pytest.mark.parametrize("start", [0, 2, 4])
def test_answers_that_are_known_in_part_are_confirmed(images, tmp_path, start):
    RememberedCalls(Counting(), tmp_path, batch_size=3)(images[start : start + 3])
    assert RememberedCalls(Counting(2.0), tmp_path, batch_size=2)(images).equal(2 * Counting()(images))


def test_answers_can_stay_on_the_disk(images, tmp_path):
    f = RememberedCalls(Counting(), tmp_path, batch_size=2, memory=1)
    assert f(images).equal(f(images))


def test_a_failing_image_is_told_apart_from_a_failing_model(images):
    dark = images.clone()
    dark[4] = 0

    def picky(x):
        if (x.amax((1, 2, 3)) == 0).any():
            raise RuntimeError("black\nand more")
        return x.mean((2, 3))

    f = RememberedCalls(picky)
    outputs = f(dark)
    assert f.failed_rows == {4: "black"}
    assert outputs[4].tolist() == [0, 0]
    assert f.with_gaps(dark).isnan().any(1).tolist() == [False] * 4 + [True] + [False] * 2
    with pytest.raises(ModelCallError, match="1 of 7 pictures: black"):
        f.strict(dark)
    with pytest.raises(ModelCallError, match="black"):
        RememberedCalls(picky)(torch.zeros(3, 2, 5, 5))
    f = RememberedCalls(lambda x: x.mean((2, 3)) / x.amax((1, 2, 3))[:, None])
    assert f(dark).isfinite().all()
    assert list(f.failed_rows) == [4]


def test_models_that_take_one_image_or_full_batches_only(images):
    def sized(n):
        def model(x):
            if len(x) != n:
                raise ValueError(f"{n} images, please")
            return x.mean((2, 3))

        return model

    one, three = RememberedCalls(sized(1)), RememberedCalls(sized(3), batch_size=3)
    assert one(images).equal(images.mean((2, 3)))
    assert three(images).equal(images.mean((2, 3)))
    assert one.takes_one
    assert not three.takes_one


def test_measures_and_repairs_do_not_count_failures_as_answers():
    generator = torch.Generator().manual_seed(0)
    whole = torch.randint(1, 99, (10, 1, 17, 17), generator=generator).float()
    audited = AuditedImages(whole, [f"{i}" for i in range(10)])

    def fails_on_flat_parts(x):  # such as the images of completeness, and those with a part hidden
        flat = (x == x[:, :, :1, :1]).double().mean((1, 2, 3)) > 0.2
        return torch.where(flat[:, None], torch.nan, torch.nn.functional.avg_pool2d(x, 4).flatten(1))

    def fails_between_pixels(x):  # a turned image whose corner was neither kept nor faded
        return torch.where(x[:, 0, :1, 0] % 1 > 0, torch.nan, x[:, 0, ::8, ::8].flatten(1))

    found = run_audit(
        fails_on_flat_parts, audited, "c4", kind="embedding", measures=["completeness"], angles=False, repair=False
    ).results
    assert not any("confused" in measure.key for measure in found.measures)
    assert any("fails on a picture of every pair" in remark for remark in found.remarks)

    def fails_when_hidden(x):
        flat = (x[:, :, 2:4, 2:4].flatten(1).std(1) < 1e-3) & (x.frac() > 0).any(3).any(2).any(1)
        return torch.where(flat[:, None], torch.nan, x[:, 0, ::8, ::8].flatten(1))

    found = run_audit(fails_when_hidden, audited, "c4", measures=["explanations"], angles=False, repair=False).results
    assert not any(measure.key == "occlusion" for measure in found.measures)
    assert any("occlusion failed: the model fails on" in remark for remark in found.remarks)
    found = run_audit(fails_between_pixels, audited, "c8", angles=False).results
    assert not found.repairs
    assert not found.advice
    assert any("Repairs could not be tried: the model fails on" in remark for remark in found.remarks)


def test_too_few_images_left_is_a_failure_of_the_model(images):
    batch = AuditedImages(images, list("abcdefg"))
    with pytest.raises(ModelCallError, match="at least two must be left"):
        run_audit(lambda x: torch.where(x[:, :, 2, 2] > 1e9, 0.0, torch.nan), batch, "c4")


def test_pairs_need_a_thing_at_two_angles(images):
    batch = AuditedImages(images, list("abcdefg"))
    with pytest.raises(ValueError, match="two things"):
        real_pairs(lambda x: x.mean((2, 3)), batch, list("abcdefg"), [0.0] * 7, "embedding")
