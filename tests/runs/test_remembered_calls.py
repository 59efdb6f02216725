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


def test_too_few_images_left_is_a_failure_of_the_model(images):
    batch = AuditedImages(images, list("abcdefg"))
    with pytest.raises(ModelCallError, match="at least two must be left"):
        run_audit(lambda x: torch.where(x[:, :, 2, 2] > 1e9, 0.0, torch.nan), batch, "c4")


def test_pairs_need_a_thing_at_two_angles(images):
    batch = AuditedImages(images, list("abcdefg"))
    with pytest.raises(ValueError, match="two things"):
        real_pairs(lambda x: x.mean((2, 3)), batch, list("abcdefg"), [0.0] * 7, "embedding")
