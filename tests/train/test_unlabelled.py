"""Encoders learnt without labels: the loss, invariance, collapse, resuming, errors."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kit.doubles import Killed, StopAt, without_seconds
from kit.trainings import differing, state_file
from unpose.adapt import symmetrize
from unpose.audit import equivariance_error
from unpose.data import Dataset, InputError, Split
from unpose.train import (
    DivergedError,
    StoppedError,
    build_network,
    load_network,
    predict_logits,
    read_notes,
    recipe_from,
    train,
    train_unlabelled,
    unlabelled_recipe,
    unlabelled_seconds,
    vicreg_loss,
)

TINY = {
    "epochs": 2,
    "batch_size": 8,
    "keep": "last",
    "network": {"kind": "group_resnet", "group": "c4", "options": {"widths": [2, 3], "depths": [1, 1]}},
    "optimizer": {"learning_rate": 0.01},
    "poses": {"max_angle": 180, "max_shift": 1, "mirror": True},
    "unlabelled": {"loss": "vicreg", "steps": 4, "expander": 16, "contrast": 1.2, "noise": 0.02, "erase": 0.5},
}

_QUICK = {"learning_rate": 0.01, "warmup_epochs": 0}


@pytest.fixture(scope="module")
def images():
    """Bars and discs at random places, 24 of each, 13 x 13 pixels."""
    rng = np.random.default_rng(3)
    y, x = np.mgrid[-6:7, -6:7]
    found = np.empty((48, 13, 13), np.float32)
    for number in range(48):
        dx, dy, turn = rng.uniform(-2, 2), rng.uniform(-2, 2), rng.uniform(0, np.pi)
        along = (x - dx) * np.cos(turn) + (y - dy) * np.sin(turn)
        distance = abs(along) if number < 24 else np.hypot(x - dx, y - dy) - 2
        found[number] = 1 / (1 + np.exp(4 * (distance - 1)))
    return found


def tiny(**changes):
    return recipe_from(TINY | changes)


def test_the_loss_is_that_of_the_paper(generator):
    first, second = torch.randn(2, 11, 5, generator=generator, dtype=torch.float64)
    expected = 3.0 * ((first - second) ** 2).sum() / (11 * 5)
    for view in (first, second):
        covariance = torch.cov(view.T)
        deviation = (covariance.diagonal() + 1e-4).sqrt()
        expected = expected + 2.0 * (1 - deviation).clamp(min=0).mean() / 2
        expected = expected + 0.7 * (covariance - covariance.diagonal().diag()).square().sum() / 5
    found = vicreg_loss(first, second, invariance=3.0, variance=2.0, covariance=0.7)
    torch.testing.assert_close(found, expected)
    with pytest.raises(ValueError, match="at least 2"):
        vicreg_loss(first[:1], second[:1])


def test_the_loss_is_computed_in_float32_under_autocast(generator):
    first, second = torch.randn(2, 64, 7, generator=generator).bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = vicreg_loss(first, second)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, vicreg_loss(first.float(), second.float()), atol=0, rtol=0)
    # Vectors without any spread: the root of their variance has a gradient.
    constant = torch.full((5, 3), 7.0, requires_grad=True)
    vicreg_loss(constant, constant).backward()
    assert torch.isfinite(constant.grad).all()


@pytest.mark.parametrize(("scale", "level"), [(0.0, 0.4), (1e4, -3e4)])
def test_constant_and_very_bright_images_train_to_finite_weights(images, scale, level):
    result = train_unlabelled(np.float32(scale) * images + np.float32(level), tiny(epochs=1, optimizer=_QUICK))
    assert all(torch.isfinite(weight).all() for weight in result.encoder.state_dict().values())


def test_a_run_that_diverges_keeps_the_last_good_epoch(images, tmp_path, outputs_changed):
    with (
        outputs_changed(lambda outputs, steps: outputs if steps < 6 else outputs * torch.nan),
        pytest.raises(DivergedError, match=r"in epoch 2, at step 7.*keeps the state of the last good checkpoint"),
    ):
        train_unlabelled(images, tiny(), tmp_path)
    assert torch.isfinite(load_network(tmp_path / "model.safetensors")(torch.from_numpy(images[:3, None]))).all()
    assert len(train_unlabelled(images, tiny(), tmp_path, resume=True).history) == 2


def views_of_steps(watched, images, **changes):
    """The views that the encoder was given in each step of an epoch: (steps, 2 b, c, h, w)."""
    watched.trained.clear()
    train_unlabelled(images, tiny(epochs=1, optimizer=_QUICK, unlabelled=TINY["unlabelled"] | changes))
    return torch.stack([views for views in watched.trained if len(views) == 2 * TINY["batch_size"]])


def test_views_keep_the_background_and_depend_on_the_step_alone(images, watched):
    still = {"noise": 0.0, "brightness": 0.0}
    views = views_of_steps(watched, images, **still)
    assert len(views) == 2 * TINY["unlabelled"]["steps"]  # the encoder is part of what is trained
    torch.testing.assert_close(views, views_of_steps(watched, images, **still), atol=0, rtol=0)
    others = views[::2].flatten(1)
    assert torch.cdist(others, others).add(torch.eye(len(others))).min() > 0.1
    flat = views_of_steps(watched, np.full((9, 13, 13), 0.3, np.float32), **still)
    torch.testing.assert_close(flat, torch.full_like(flat, 0.3))  # corners are not black


def test_an_encoder_is_invariant_and_can_be_read(images, tmp_path):
    result = train_unlabelled(images, tiny(), tmp_path / "run")
    path = tmp_path / "run" / "model.safetensors"
    encoder = load_network(path)
    batch = torch.from_numpy(images[:4, None])
    torch.testing.assert_close(encoder(batch), result.encoder(batch))
    assert encoder(batch).shape == (4, 20)
    report = equivariance_error(encoder, batch, "c4")
    assert report.worst_exact < 1e-4 < 1e-3 < report.control_error
    assert read_notes(path)["recipe"]["unlabelled"]["loss"] == "vicreg"
    header, *rows = (tmp_path / "run" / "log.csv").read_text().splitlines()
    assert header == "epoch,learning_rate,train_loss,effective_rank,tree_length,seconds"
    assert len(rows) == 2
    with pytest.raises(ValueError, match="holds a finished run"):
        train_unlabelled(images, tiny(), tmp_path / "run", resume=True)


def test_an_encoder_serves_adapt(images):
    part = Split(images, np.zeros(len(images), np.int64))
    dataset = Dataset("images", "made for tests", ("no label", "unused"), part, part, part)
    encoder = build_network(tiny(), dataset).eval().requires_grad_(False)
    batch = torch.from_numpy(images[:4, None])
    averaged = symmetrize(encoder, "c4", over="logits")
    torch.testing.assert_close(averaged(batch), encoder(batch), atol=1e-4, rtol=1e-4)  # invariant already
    assert averaged(batch).shape == (4, 20)


@pytest.mark.extra("onnx")
@pytest.mark.filterwarnings("ignore")  # the exporter's own warnings
def test_an_encoder_is_exported_to_onnx(images, tmp_path):
    import onnxruntime

    encoder = train_unlabelled(images, tiny(epochs=1, optimizer={"warmup_epochs": 0})).encoder
    batch = torch.from_numpy(images[:4, None])
    torch.onnx.export(encoder, (batch,), str(tmp_path / "encoder.onnx"), dynamo=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "encoder.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
    np.testing.assert_allclose(found, encoder(batch).detach().numpy(), atol=1e-4)


WITH_NEIGHBOURS = {"steps": 3, "neighbour_share": 0.5, "neighbours": 2}


@pytest.mark.parametrize("error", [Killed, pytest.param(StoppedError, marks=pytest.mark.slow)])
def test_resumed_equals_uninterrupted(error, images, tmp_path):
    """The run ends in the middle of the second epoch, after the neighbours were confirmed."""
    recipe = tiny(unlabelled=TINY["unlabelled"] | WITH_NEIGHBOURS, epochs=3)
    whole = train_unlabelled(images[::2], recipe, tmp_path / "whole")
    with pytest.raises(error):
        train_unlabelled(images[::2], recipe, tmp_path / "parts", progress=StopAt(5, error))
    rest = train_unlabelled(images[::2], recipe, tmp_path / "parts", resume=True)
    assert differing(state_file(tmp_path / "whole"), state_file(tmp_path / "parts")) == {}
    assert differing(whole.encoder.state_dict(), rest.encoder.state_dict()) == {}
    assert without_seconds(rest.history) == without_seconds(whole.history)


def test_neighbours_that_the_encoder_contradicts_are_dropped(images, tmp_path):
    """After a third of the epochs, those stay that are nearer than 95 % of all images."""
    recipe = tiny(unlabelled=TINY["unlabelled"] | WITH_NEIGHBOURS, epochs=3)
    states, encoders = [], []

    def keep(history):
        states.append(state_file(tmp_path)["extra.neighbours"])
        encoders.append(load_network(tmp_path / "model.safetensors"))

    train_unlabelled(images, recipe, tmp_path, on_epoch=keep)
    vectors = predict_logits(encoders[0], images)
    points = (vectors - vectors.mean(0)) / vectors.std(0).clamp(min=1e-6)
    cosines = torch.nn.functional.normalize(points, dim=1)
    cosines = cosines @ cosines.T
    near, own = states[0], torch.arange(len(images))[:, None]
    confirmed = cosines.gather(1, near) > cosines.quantile(0.95, dim=1, keepdim=True)
    assert torch.equal(confirmed | (near == own), torch.ones_like(confirmed))
    assert 0 < (near != own).sum() < near.numel()
    assert all(torch.equal(later, near) for later in states)  # and no others are dropped later


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_training_without_the_variance_term_collapses(images, seed):
    longer = TINY["unlabelled"] | {"steps": 15, "noise": 0.0, "erase": 0.0}
    sound = train_unlabelled(images, tiny(unlabelled=longer, seed=seed))
    collapsed = train_unlabelled(images, tiny(unlabelled=longer | {"variance": 0.0}, seed=seed))
    assert not sound.has_collapsed
    assert collapsed.has_collapsed
    for gauge in ("effective_rank", "tree_length"):
        assert collapsed.history[-1][gauge] < 0.8 * sound.history[-1][gauge]


@pytest.mark.parametrize(
    ("of", "ranks", "has_collapsed"),
    [
        (lambda spread: spread, (6, 100), False),
        (lambda spread: spread[:, :1] * torch.ones(spread.shape[1]), (1.5, 2.1), False),
        (lambda spread: 0.01 * spread + 5, (0.9, 1.5), True),
        (lambda spread: torch.ones_like(spread), (0.9, 1.5), True),
    ],
    ids=["spread", "on a line", "shrunk", "equal"],
)
def test_gauges_see_vectors_that_shrink_and_vectors_on_a_line(of, ranks, has_collapsed, images, outputs_changed):
    def vectors(outputs, steps):
        spread = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0))
        return of(spread) + 0 * outputs.sum()

    with outputs_changed(vectors):
        found = train_unlabelled(images, tiny(epochs=1, optimizer=_QUICK))
    assert found.has_collapsed == has_collapsed
    assert ranks[0] < found.history[-1]["effective_rank"] < ranks[1]


@pytest.mark.parametrize(
    ("group", "options", "network", "degrees", "mirror"),
    [
        ("se2+mirror", {}, "d4", 180, True),
        ("se2", {"max_angle": 0.2}, "c1", 11.459, False),
        ("translation+mirror", {}, "d1", 10, True),
        ("c8", {}, "c8", 180, False),
        ("similarity", {"small": True}, "c4", 180, False),
    ],
)
def test_the_recipe_follows_the_group(group, options, network, degrees, mirror):
    recipe = unlabelled_recipe(group, **options)
    assert recipe.network.group == network
    assert abs(np.degrees(recipe.poses.max_angle) - degrees) < 0.01
    assert recipe.poses.mirror is mirror


def test_a_duration_is_that_of_the_steps_that_are_run(images, watched):
    before = torch.get_rng_state()
    assert unlabelled_seconds(tiny(batch_size=20), images) > 0
    assert {len(views) for views in watched.trained} == {40}  # two views of each image
    assert watched.steps >= 2
    assert torch.equal(torch.get_rng_state(), before)


def test_bad_input_says_what_is_needed(images):
    for given, message in (
        (images[:7], "at least 8 images"),
        (images[0], r"\(n, h, w\)"),
        (np.where(images > 0.9, np.nan, images), "finite"),
    ):
        with pytest.raises(InputError, match=message):
            train_unlabelled(given, tiny())
    with pytest.raises(ValueError, match="trains a classifier"):
        train_unlabelled(images, replace(tiny(), unlabelled=recipe_from({}).unlabelled))
    with pytest.raises(ValueError, match="keep = 'last'"):
        train_unlabelled(images, tiny(keep="best"))
    with pytest.raises(ValueError, match="train_unlabelled"):
        train(None, tiny())
