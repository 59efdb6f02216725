"""Encoders learnt without labels: the loss, invariance, collapse, resuming, errors."""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from unpose.adapt import symmetrize
from unpose.audit import equivariance_error
from unpose.data import InputError
from unpose.train import (
    DivergedError,
    StoppedError,
    build_network,
    load_network,
    read_notes,
    recipe_from,
    train,
    train_unlabelled,
    unlabelled_recipe,
    unlabelled_seconds,
    vicreg_loss,
)
from unpose.train.unlabelled import (
    Unlabelled,
    _unlabelled_dataset,
    collapse_gauges,
    confirmed_neighbours,
    has_collapsed,
    random_views,
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


def test_a_run_that_diverges_keeps_the_last_good_epoch(images, tmp_path, monkeypatch):
    whole = Unlabelled.batch

    def spoilt(self, store, rows, step):
        views, labels = whole(self, store, rows, step)
        return (views if step < 6 else views * torch.nan), labels

    monkeypatch.setattr(Unlabelled, "batch", spoilt)
    with pytest.raises(DivergedError, match=r"in epoch 2, at step 7.*keeps the state of the last good checkpoint"):
        train_unlabelled(images, tiny(), tmp_path)
    monkeypatch.undo()
    assert torch.isfinite(load_network(tmp_path / "model.safetensors")(torch.from_numpy(images[:3, None]))).all()
    assert len(train_unlabelled(images, tiny(), tmp_path, resume=True).history) == 2


def test_views_keep_the_background_and_depend_on_the_step_alone(images):
    recipe = tiny(unlabelled=TINY["unlabelled"] | {"noise": 0.0, "brightness": 0.0})
    batch = 0.3 + 0.5 * torch.from_numpy(images[:5, None])
    ground = torch.full((5, 1, 1, 1), 0.3)
    views = random_views(batch, ground, recipe, 7)
    torch.testing.assert_close(views, random_views(batch, ground, recipe, 7), atol=0, rtol=0)
    assert float((views - random_views(batch, ground, recipe, 8)).abs().max()) > 0.1
    flat = random_views(ground.expand(5, 1, 13, 13), ground, recipe, 7)
    torch.testing.assert_close(flat, ground.expand(5, 1, 13, 13))  # corners are not black


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
    encoder = build_network(tiny(), _unlabelled_dataset(images, "images")).eval().requires_grad_(False)
    batch = torch.from_numpy(images[:4, None])
    averaged = symmetrize(encoder, "c4", over="logits")
    torch.testing.assert_close(averaged(batch), encoder(batch), atol=1e-4, rtol=1e-4)  # invariant already
    assert averaged(batch).shape == (4, 20)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter's own warnings
def test_an_encoder_is_exported_to_onnx(images, tmp_path):
    if any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")):
        pytest.skip("onnx, onnxscript and onnxruntime are not installed")
    import onnxruntime

    encoder = train_unlabelled(images, tiny(epochs=1, optimizer={"warmup_epochs": 0})).encoder
    batch = torch.from_numpy(images[:4, None])
    torch.onnx.export(encoder, (batch,), str(tmp_path / "encoder.onnx"), dynamo=True)
    session = onnxruntime.InferenceSession(str(tmp_path / "encoder.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
    np.testing.assert_allclose(found, encoder(batch).detach().numpy(), atol=1e-4)


@pytest.mark.slow
def test_resumed_equals_uninterrupted(images, tmp_path):
    recipe = tiny(unlabelled=TINY["unlabelled"] | {"neighbour_share": 0.5, "neighbours": 2}, epochs=3)
    whole = train_unlabelled(images[::2], recipe)

    def stop(current):
        if current.step == 6:  # after the neighbours were confirmed, in the middle of an epoch
            raise StoppedError

    with pytest.raises(StoppedError):
        train_unlabelled(images[::2], recipe, tmp_path, progress=stop)
    rest = train_unlabelled(images[::2], recipe, tmp_path, resume=True)
    for name, weight in whole.encoder.state_dict().items():
        assert torch.equal(weight, rest.encoder.state_dict()[name]), name
    for row, other in zip(whole.history, rest.history, strict=True):
        assert {**row, "seconds": 0} == {**other, "seconds": 0}


def test_without_the_variance_term_the_loss_collapses_and_both_gauges_show_it():
    gauges = {}
    for variance in (25.0, 0.0):
        generator = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        network = torch.nn.Sequential(
            torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 16)
        )
        optimizer = torch.optim.Adam(network.parameters(), 0.02)
        points = torch.randn(64, 6, generator=generator)
        for _ in range(80):
            views = [points + 0.3 * torch.randn(64, 6, generator=generator) for _ in range(2)]
            optimizer.zero_grad()
            vicreg_loss(network(views[0]), network(views[1]), variance=variance).backward()
            optimizer.step()
        gauges[variance] = collapse_gauges(network(points).detach().double().numpy())
    assert not has_collapsed(*gauges[25.0])
    assert has_collapsed(*gauges[0.0])
    for sound, collapsed in zip(gauges[25.0], gauges[0.0], strict=True):
        assert collapsed < 0.6 * sound


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_training_without_the_variance_term_collapses(images, seed):
    longer = TINY["unlabelled"] | {"steps": 40, "noise": 0.0, "erase": 0.0}
    sound = train_unlabelled(images, tiny(unlabelled=longer, seed=seed))
    collapsed = train_unlabelled(images, tiny(unlabelled=longer | {"variance": 0.0}, seed=seed))
    assert not sound.has_collapsed
    assert collapsed.has_collapsed
    for gauge in ("effective_rank", "tree_length"):
        assert collapsed.history[-1][gauge] < 0.8 * sound.history[-1][gauge]


def test_gauges_see_vectors_that_shrink_and_vectors_on_a_line():
    rng = np.random.default_rng(0)
    spread = rng.standard_normal((64, 16))
    rank, tree = collapse_gauges(spread)
    assert rank > 6
    assert not has_collapsed(rank, tree)
    assert has_collapsed(*collapse_gauges(0.01 * spread + 5))
    assert has_collapsed(*collapse_gauges(np.ones((9, 3))))
    assert collapse_gauges(spread[:, :1] * np.ones(16))[0] < 2.1


def test_neighbours_that_the_encoder_contradicts_are_dropped():
    vectors = torch.cat([torch.randn(30, 4) + 9, torch.randn(30, 4) - 9])
    near = torch.stack([(torch.arange(60) + 1) % 30, torch.arange(60).flip(0)], dim=1)
    near[30:, 0] = 30 + (torch.arange(30) + 1) % 30
    vectors[0] = vectors[1]  # one pair that is near without doubt
    found = confirmed_neighbours(near, vectors)
    assert found[0, 0] == 1
    assert torch.equal(found[:, 1], torch.arange(60))  # all of another kind


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
    sizes, steps = watched
    before = torch.get_rng_state()
    assert unlabelled_seconds(tiny(batch_size=20), images) > 0
    assert set(sizes) == {40}  # two views of each image
    assert len(steps) >= 2
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
