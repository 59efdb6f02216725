"""The loop: killed and resumed is uninterrupted, the test set is used once, and what happens when all goes wrong."""

import dataclasses
import json

import numpy as np
import pytest
import safetensors.torch
import torch

from kit.doubles import Killed, StopAt, without_seconds
from kit.trainings import differing, state_file
from unpose.data import Dataset, InputError, Split, splits
from unpose.nn import GSANetConfig, count_parameters, group_cnn, gsa_net, rebuild, swivel_net, with_larger_group
from unpose.train import (
    DivergedError,
    StateError,
    StoppedError,
    accuracy,
    accuracy_by_angle,
    baseline_description,
    build_network,
    load_network,
    predict_logits,
    read_classes,
    read_notes,
    save_network,
    train,
)
from unpose.train.limits import Limits


def marked(count, seed):
    """Noise of the problem's shape, with labels of its three classes."""
    images = np.random.default_rng(seed).random((count, 9, 11), dtype=np.float32)
    return Split(images, np.arange(count) % 3)


@pytest.mark.parametrize(
    "optimizer",
    ["adamw", *(pytest.param(name, marks=pytest.mark.slow) for name in ("muon", "adam", "sgd"))],
)
def test_a_run_killed_anywhere_and_resumed_equals_one_that_never_stopped(optimizer, problem, full_recipe, tmp_path):
    recipe = full_recipe(optimizer)
    whole = train(problem, recipe, tmp_path / "whole")
    for step in (1, 8, 17):  # six steps an epoch; a state is written after every fourth
        folder = tmp_path / f"killed {step}"
        with pytest.raises(Killed):
            train(problem, recipe, folder, checkpoint_steps=4, progress=StopAt(step))
        again = train(problem, recipe, folder, checkpoint_steps=4, resume=True)
        assert differing(state_file(folder), state_file(tmp_path / "whole")) == {}
        assert again.test_accuracy == whole.test_accuracy
        assert without_seconds(again.history) == without_seconds(whole.history)
        assert differing(load_network(folder / "model.safetensors").state_dict(), whole.network.state_dict()) == {}


@pytest.mark.slow
def test_a_run_that_is_asked_to_stop_loses_no_step(problem, full_recipe, tmp_path):
    recipe = full_recipe()
    whole = train(problem, recipe)
    for step in (1, 6, 11):  # in an epoch, and after the last step of one
        folder = tmp_path / str(step)
        with pytest.raises(StoppedError):
            train(problem, recipe, folder, progress=StopAt(step, StoppedError))
        seen = []
        again = train(problem, recipe, folder, resume=True, progress=lambda moment, seen=seen: seen.append(moment.step))
        assert seen == list(range(step + 1, 19))
        assert differing(again.network.state_dict(), whole.network.state_dict()) == {}


def test_the_seed_decides_everything_and_the_callers_generator_is_left_alone(problem, full_recipe):
    torch.manual_seed(11)
    before = torch.get_rng_state()
    first = train(problem, full_recipe())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert differing(train(problem, full_recipe()).network.state_dict(), first.network.state_dict()) == {}
    other = train(problem, full_recipe(seed=6)).network.state_dict()
    assert not all(torch.equal(other[name], weight) for name, weight in first.network.state_dict().items())


def test_it_learns(problem, small_recipe):
    outcome = train(problem, small_recipe(epochs=20))
    assert outcome.test_accuracy > 0.8
    assert outcome.history[-1]["train_loss"] < 0.5 * outcome.history[0]["train_loss"]
    assert accuracy(outcome.network, problem.test) == outcome.test_accuracy
    turns = accuracy_by_angle(outcome.network, problem.test, [0.0, np.pi])
    assert turns[0] == outcome.test_accuracy
    assert abs(turns[1] - turns[0]) < 0.04  # half a turn only moves pixels; rounding may flip a tie


def test_validation_chooses_and_the_test_set_is_used_once_at_the_end(problem, small_recipe, watched, tmp_path):
    outcome = train(problem, small_recipe(epochs=4), tmp_path)
    assert [len(images) for images in watched.evaluated] == [len(problem.validation)] * 4 + [len(problem.test)]
    best = max(outcome.history, key=lambda row: (row["validation_accuracy"], -row["validation_loss"]))
    assert outcome.best_epoch == best["epoch"]
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["test_accuracy"] == outcome.test_accuracy == outcome.by_class.accuracy
    assert result["test_by_class"]["confusion"] == outcome.by_class.confusion.tolist()
    assert result["chosen_epoch"] == outcome.best_epoch
    assert "once" in result["test_set"]


def test_the_last_epoch_is_kept_where_the_recipe_says_so(problem, small_recipe, tmp_path):
    # A rate so high that the end is not the best: the two ways to choose differ.
    recipe = small_recipe(epochs=6, optimizer={"learning_rate": 0.5, "schedule": "constant"})
    best = train(problem, recipe)
    last = train(problem, recipe.changed(keep="last"), tmp_path)
    assert without_seconds(best.history) == without_seconds(last.history)
    assert best.best_epoch < last.best_epoch == 6
    assert last.validation_accuracy == last.history[-1]["validation_accuracy"]
    assert accuracy(load_network(tmp_path / "model.safetensors"), problem.test) == last.test_accuracy
    assert json.loads((tmp_path / "result.json").read_text())["chosen_by"] == "the end of the schedule"


def test_a_run_begins_with_what_another_learnt_with_fewer_turns(problem, small_recipe, tmp_path):
    options = {"config": {"lifted": 6, "stages": [[6]], "window": 3, "heads": 2}}
    coarse = small_recipe(epochs=1, network={"kind": "gsa_net", "group": "c2", "options": options})
    learnt = train(problem, coarse, tmp_path / "coarse").network
    file = str(tmp_path / "coarse" / "model.safetensors")
    finer = coarse.changed(group="c4", begin=file)
    assert differing(build_network(finer, problem).state_dict(), with_larger_group(learnt, "c4").state_dict()) == {}
    train(problem, finer, tmp_path / "finer")
    assert json.loads((tmp_path / "finer" / "result.json").read_text())["began_with"] == file


def test_a_beginning_that_does_not_fit(problem, small_recipe, tmp_path):
    with pytest.raises(ValueError, match="neither a file nor a model"):
        build_network(small_recipe(network={"begin": str(tmp_path / "gone.safetensors")}), problem)
    with pytest.raises(ValueError, match=r"differs from the recipe's network in .*image_size.*, n_classes"):
        build_network(small_recipe(network={"begin": "mnist-c8"}), problem)
    (tmp_path / "text").write_text("no weights")
    with pytest.raises(ValueError, match="text"):
        build_network(small_recipe(network={"begin": str(tmp_path / "text")}), problem)


def test_what_a_run_leaves(problem, small_recipe, tmp_path):
    outcome = train(problem, small_recipe(), tmp_path / "deep" / "run")
    assert sorted(path.name for path in (tmp_path / "deep" / "run").iterdir()) == [
        "config.toml", "log.csv", "model.safetensors", "result.json", "state.safetensors",
    ]  # fmt: skip
    rows = (tmp_path / "deep" / "run" / "log.csv").read_text().splitlines()
    assert rows[0].startswith("epoch,learning_rate,train_loss")
    assert len(rows) == 4
    assert float(rows[2].split(",")[2]) == outcome.history[1]["train_loss"]
    assert read_classes(tmp_path / "deep" / "run" / "model.safetensors") == ("bar", "corner", "dot")


def test_the_light_of_a_file_is_that_of_all_classes(problem, small_recipe, tmp_path):
    # Class after class, as folders are read: the first thousand would be of one.
    images = np.zeros((2400, 9, 9), np.float32)
    images[:, 3:6, 4] = 1.0
    labels = np.repeat([0, 1], [1440, 960])
    images[labels == 1] = 1 - images[labels == 1]
    rest, recipe = Split(images[::30], labels[::30]), small_recipe(epochs=1, batch_size=240)
    train(Dataset("two", "made", ("bar", "hole"), Split(images, labels), rest, rest), recipe, tmp_path)
    light = read_notes(tmp_path / "model.safetensors")["light"]
    assert light["agreement"] == pytest.approx(0.6, abs=0.01)


def test_steps_between_states_are_at_least_one(problem, small_recipe, tmp_path):
    with pytest.raises(ValueError, match="checkpoint_steps must be at least 1, got 0"):
        train(problem, small_recipe(epochs=1), tmp_path, checkpoint_steps=0)


def test_corners_that_turning_brings_in_are_as_light_as_the_border(rng):
    class Corner(torch.nn.Module):
        """Two classes: whether the corners of an image are black."""

        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(()))

        def forward(self, x):
            black = (x[..., 0, 0] < 0.1).any(1).float() * self.scale
            return torch.stack([1 - black, black], 1)

    images = np.full((6, 11, 11), 0.8, np.float32)
    images[:, 4:7, 5] = rng.random((6, 3))
    part = Split(images, np.zeros(6, np.int64))
    assert np.array_equal(accuracy_by_angle(Corner(), part, [0.0, 0.5, 0.8]), [1, 1, 1])
    colour = Split(np.stack([images, images / 2, 1 - images], -1), part.labels)
    assert np.array_equal(accuracy_by_angle(Corner(), colour, [0.8]), [1])
    for kind in (torch.float16, torch.bfloat16, torch.float64):
        assert np.array_equal(accuracy_by_angle(Corner().to(kind), part, [0.8]), [1])


def learnt(folder):
    return splits.decode_fingerprints(read_notes(folder / "model.safetensors")["learnt"], "its file")


def test_the_file_says_which_images_had_a_part_in_it(problem, small_recipe, tmp_path):
    train(problem, small_recipe(epochs=1), tmp_path)
    used = (problem.train.images, problem.validation.images)
    assert learnt(tmp_path) == {fingerprint for images in used for fingerprint in splits.image_fingerprints(images)}
    assert not learnt(tmp_path) & set(splits.image_fingerprints(problem.test.images))


def test_what_a_beginning_learnt_from_is_learnt_from_too(problem, small_recipe, tmp_path):
    train(problem, small_recipe(epochs=1), tmp_path / "first")
    others = Dataset("others", "made for tests", problem.classes, *(marked(20, seed) for seed in (7, 8, 9)))
    second = small_recipe(epochs=1, network={"begin": str(tmp_path / "first" / "model.safetensors")})
    train(others, second, tmp_path / "second")
    own = {*splits.image_fingerprints(others.train.images), *splits.image_fingerprints(others.validation.images)}
    assert learnt(tmp_path / "second") == own | learnt(tmp_path / "first")
    bare = save_network(tmp_path / "bare.safetensors", load_network(tmp_path / "first" / "model.safetensors"))
    train(others, small_recipe(epochs=1, network={"begin": str(bare)}), tmp_path / "third")
    assert "learnt" not in read_notes(tmp_path / "third" / "model.safetensors")  # what came before is unknown


def test_so_many_images_that_the_file_would_grow_are_not_listed(problem, small_recipe, tmp_path):
    for listed in (72, 73):  # there are 53 for training and 20 for validation
        train(problem, small_recipe(epochs=1), tmp_path / str(listed), limits=Limits(listed_images=listed))
        assert ("learnt" in read_notes(tmp_path / str(listed) / "model.safetensors")) == (listed == 73)


# When things go wrong ------------------------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_state(
    problem, small_recipe, tmp_path, outputs_changed
):
    recipe = small_recipe(optimizer={"name": "sgd"})
    with (
        outputs_changed(lambda outputs, steps: outputs if steps < 9 else outputs * torch.nan),
        pytest.raises(DivergedError, match=r"in epoch 2, at step 10,.*last good checkpoint.*lower optimizer"),
    ):
        train(problem, recipe, tmp_path)
    assert all(torch.isfinite(tensor).all() for tensor in state_file(tmp_path).values())
    network = load_network(tmp_path / "model.safetensors")
    assert np.isfinite(accuracy(network, problem.test))
    train(problem, recipe, tmp_path, resume=True)  # the state is good to go on from


def test_a_run_that_diverges_at_once_says_so(problem, small_recipe, tmp_path):
    with pytest.raises(DivergedError, match="no good checkpoint yet"):
        train(problem, small_recipe(optimizer={"name": "sgd", "learning_rate": 1e30}), tmp_path)
    assert not (tmp_path / "state.safetensors").exists()


def test_a_folder_is_never_overwritten_by_accident(problem, small_recipe, tmp_path):
    train(problem, small_recipe(epochs=1), str(tmp_path / "run"))  # a name will do
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    (tmp_path / "run" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="not empty and nothing is overwritten"):
        train(problem, small_recipe(epochs=1), tmp_path / "run")
    with pytest.raises(ValueError, match="finished run"):
        train(problem, small_recipe(epochs=1), tmp_path / "run", resume=True)
    assert before.items() <= {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}.items()
    train(problem, small_recipe(epochs=1, seed=8), tmp_path / "run", force=True)
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"
    assert (tmp_path / "run" / "model.safetensors").read_bytes() != before["model.safetensors"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        train(problem, small_recipe(epochs=1), tmp_path / "file", force=True)


@pytest.mark.parametrize(("resume", "force"), [(False, True), (True, True), (True, False)])
def test_only_a_run_is_replaced(resume, force, problem, small_recipe, tmp_path):
    for name, text in (("config.toml", "[server]\nport = 80\n"), ("log.csv", "day,hours\n"), ("result.json", "{}")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_text(text)
        with pytest.raises(ValueError, match=r"holds no run to replace|holds a finished run|not empty"):
            train(problem, small_recipe(epochs=1), folder, resume=resume, force=force)
        assert [path.name for path in folder.iterdir()] == [name]
        assert (folder / name).read_text() == text


def test_what_a_killed_writer_left_is_swept_up_and_a_strangers_folder_is_not_taken(problem, small_recipe, tmp_path):
    with pytest.raises(Killed):
        train(problem, small_recipe(), tmp_path / "run", progress=StopAt(1))  # before the first state
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.toml"]
    (tmp_path / "run" / ".state.safetensors.x7.tmp").write_bytes(b"half")
    train(problem, small_recipe(), tmp_path / "run", resume=True)
    assert not list((tmp_path / "run").glob(".*"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="nothing is overwritten"):
        train(problem, small_recipe(), tmp_path / "other", resume=True)


def test_a_validation_loss_that_is_no_number_stops_the_run_too(problem, small_recipe):
    images = problem.validation.images.copy()
    images[3] *= 1e38  # a number still, but not after a convolution
    spoilt = dataclasses.replace(problem, validation=Split(images, problem.validation.labels))
    with pytest.raises(DivergedError, match=r"the validation loss became (nan|inf) in epoch 1"):
        train(spoilt, small_recipe())


@pytest.fixture
def stopped(problem, full_recipe, tmp_path):
    with pytest.raises(StoppedError):
        train(problem, full_recipe(), tmp_path / "run", progress=StopAt(8, StoppedError))
    return tmp_path / "run"


def resumed(problem, recipe, folder):
    return train(problem, recipe, folder, resume=True)


def test_states_that_are_cut_off_or_changed(stopped, problem, full_recipe, generator):
    state = stopped / "state.safetensors"
    content = state.read_bytes()
    for cut in (0, 7, 100, len(content) // 2, len(content) - 1):
        state.write_bytes(content[:cut])
        with pytest.raises(StateError, match=r"state\.safetensors does not hold a resumable run"):
            resumed(problem, full_recipe(), stopped)
        assert state.read_bytes() == content[:cut]
    length = 8 + int.from_bytes(content[:8], "little")
    for at in torch.randint(length, (15,), generator=generator).tolist():
        broken = bytearray(content)
        broken[at] ^= 1 << (at % 8)
        state.write_bytes(broken)
        try:  # a flipped bit in a number of the history is not to be seen
            train(problem, full_recipe(), stopped, resume=True, progress=StopAt(9, StoppedError))
        except (StateError, StoppedError) as error:
            assert isinstance(error, StoppedError) or "state.safetensors" in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "layout 2"),
        ({"format": None}, "layout None"),
        ({"step": -1}, "step is -1"),
        ({"step": "soon"}, "not a non-negative integer"),
        ({"best_epoch": 7}, "none of its 1 epochs"),
        ({"history": 3}, "history"),
        ({"history": [{"epoch": "x"}]}, "malformed rows"),
        ({"identity": None}, "identify its run"),
    ],
)
def test_states_that_lie(changes, message, stopped, problem, full_recipe):
    path = stopped / "state.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["unpose-run"])
    path.write_bytes(safetensors.torch.save(state_file(stopped), {"unpose-run": json.dumps(about | changes)}))
    with pytest.raises(StateError, match=message):
        resumed(problem, full_recipe(), stopped)


def test_tensors_that_do_not_belong(stopped, problem, full_recipe):
    path = stopped / "state.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        metadata = file.metadata()
    good = state_file(stopped)
    for change in (
        {"network.extra": torch.zeros(2)},
        {"optimizer.99.step": torch.zeros(())},
        {"optimizer.0.hook": torch.zeros(())},
        {"optimizer.0.exp_avg": torch.zeros(2, 2)},
        {"totals": torch.zeros(4)},
    ):
        path.write_bytes(safetensors.torch.save(good | change, metadata))
        with pytest.raises(StateError):
            resumed(problem, full_recipe(), stopped)


def test_another_recipe_or_other_data_is_not_gone_on_with(stopped, problem, full_recipe):
    with pytest.raises(StateError, match="its recipe is"):
        resumed(problem, full_recipe(seed=6), stopped)
    changed = Split(problem.train.images + 0.01, problem.train.labels)
    with pytest.raises(StateError, match="its data is"):
        resumed(dataclasses.replace(problem, train=changed), full_recipe(), stopped)


def test_images_that_are_no_numbers_are_named(problem, small_recipe):
    images = problem.train.images.copy()
    images[3, 2, 2] = np.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        train(dataclasses.replace(problem, train=Split(images, problem.train.labels)), small_recipe())


# Laws ----------------------------------------------------------------------------------------------------------------


def images_of_steps(watched, dataset, recipe, **options):
    """The images that the network was given in each step of a training on the CPU."""
    watched.trained.clear()
    train(dataset, recipe, **options)
    return torch.stack(watched.trained)  # (steps, batch, c, h, w)


def test_an_epoch_takes_every_image_once_and_each_epoch_another_order(problem, small_recipe, watched):
    images = torch.from_numpy(problem.train.images)[:, None]
    seen = images_of_steps(watched, problem, small_recipe(epochs=2))
    assert len(seen) == 12  # six full batches of 8 among 53 images, twice
    found = [(image == images).all((1, 2, 3)).nonzero().item() for image in seen.flatten(0, 1)]
    assert len(set(found[:48])) == len(set(found[48:])) == 48
    assert found[:48] != found[48:]


@pytest.fixture
def spots(small_recipe):
    """A data set of equal round spots, and what becomes of their centres and spreads by the poses of a recipe."""
    grid = torch.arange(25.0) - 12
    spot = torch.exp(-(grid**2 + grid[:, None] ** 2) / 18)
    part = Split(spot.expand(96, 25, 25).numpy(), np.arange(96) % 2)

    def moved(watched, **poses):
        recipe = small_recipe(epochs=1, network={"options": {"width": 1, "stages": [1]}}, poses=poses)
        seen = images_of_steps(watched, Dataset("spots", "made", ("a", "b"), part, part, part), recipe).flatten(0, 2)
        mass = seen / seen.sum((1, 2), keepdim=True)
        places = torch.stack(torch.meshgrid(grid, grid, indexing="ij"), -1)
        centres = torch.einsum("nyx,yxi->ni", mass, places)
        around = places - centres[:, None, None]
        return seen, centres, torch.einsum("nyx,nyxi,nyxj->nij", mass, around, around)

    return moved


def test_a_stretch_lengthens_one_axis_by_what_it_shortens_the_other(spots, watched):
    bounds = {"max_angle": 180, "max_shift": 2.0, "max_scale": 1.2}
    _, centres, still = spots(watched, **bounds)
    _, also, stretched = spots(watched, **bounds, max_stretch=1.3)
    torch.testing.assert_close(also, centres, atol=0.05, rtol=0)
    torch.testing.assert_close(stretched.det(), still.det(), rtol=0.05, atol=0)
    longer, shorter = torch.linalg.svdvals(stretched).sqrt().unbind(1)
    assert 1.25 < (longer / shorter).max() < 1.31


def test_a_bend_moves_pixels_and_hardly_the_image(spots, watched):
    still, centres, _ = spots(watched, max_angle=1e-9)
    bent, also, _ = spots(watched, max_angle=1e-9, bend=0.7)
    assert (still - still[0]).abs().max() < 1e-5
    assert (bent - still).abs().amax((1, 2)).min() > 0.02
    assert (also - centres).mean(0).abs().max() < 0.1


def test_images_of_one_level_are_learnt_from_as_if_they_were_never_moved(small_recipe):
    levels = np.array([0.9, 0.6], np.float32).repeat(12)
    part = Split(np.tile(levels[:, None, None, None], (1, 9, 11, 3)) * [1, 0.9, 0.8], np.arange(24) // 12)
    bright = Dataset("paper", "made for tests", ("light", "grey"), part, part, part)
    poses = {"max_angle": 180, "max_shift": 3, "max_scale": 1.3, "mirror": True, "bend": 0.7}
    still, moved = (train(bright, small_recipe(epochs=1, **changes)) for changes in ({}, {"poses": poses}))
    for name, weights in still.network.state_dict().items():
        torch.testing.assert_close(moved.network.state_dict()[name], weights, msg=lambda told, n=name: f"{n}: {told}")


def test_fewer_images_than_a_batch_are_one_step(problem, small_recipe):
    few = Dataset("few", "", problem.classes, problem.train.take(np.arange(5)), problem.validation, problem.test)
    steps = []
    train(few, small_recipe(epochs=2), progress=lambda moment: steps.append(moment.step))
    assert steps == [1, 2]
    with pytest.raises(InputError, match="no images for training"):
        dataclasses.replace(few, train=problem.train.take(np.arange(0)))


@pytest.fixture
def one_step_an_epoch(problem, small_recipe):
    """What a training leaves that has one step in each epoch: its history, and its state after each step."""

    def trained(folder, **changes):
        states = []
        recipe = small_recipe(batch_size=53, network={"options": {"width": 1, "stages": [1]}}, **changes)
        result = train(problem, recipe, folder, on_epoch=lambda _: states.append(state_file(folder)))
        return result.history, states, build_network(recipe, problem)

    return trained


def test_the_learning_rate_warms_up_and_falls_to_zero(one_step_an_epoch, tmp_path):
    def rates(**schedule):
        optimizer = {"learning_rate": 0.5, **schedule}
        history, *_ = one_step_an_epoch(tmp_path / schedule["schedule"], epochs=10, optimizer=optimizer)
        return [row["learning_rate"] for row in history]

    found = rates(schedule="cosine", warmup_epochs=2)
    assert found[:2] == pytest.approx([0.5 / 3, 1.0 / 3])
    assert found[2] == 0.5
    assert found[2:] == sorted(found[2:], reverse=True)
    assert found[6] == pytest.approx(0.25)  # half way down
    assert 0 < found[-1] < 0.02
    assert set(rates(schedule="constant")) == {0.5}


def test_the_average_is_the_weighted_sum_of_what_it_saw(one_step_an_epoch, tmp_path):
    _, states, network = one_step_an_epoch(tmp_path, epochs=9, average=0.4)
    for name, expected in network.state_dict().items():
        for step, state in enumerate(states):
            decay = min(0.4, (1 + step) / (10 + step)) if expected.is_floating_point() else 0
            expected = decay * expected + (1 - decay) * state[f"network.{name}"]
            torch.testing.assert_close(state[f"average.{name}"], expected, msg=lambda told, n=name: f"{n}: {told}")


@pytest.mark.parametrize(
    "build",
    [
        lambda: group_cnn("d4", 1, 10, 28, parameters=12_000, stages=(1, 2, 1)),
        lambda: group_cnn("c8", 1, 10, 28, parameters=12_000, stages=(1, 2, 1)),
        pytest.param(lambda: swivel_net("c4", 1, 10, 28, widths=(6, 8, 10), heads=2), marks=pytest.mark.slow),
        lambda: gsa_net("c8", 1, 3, 8, config=GSANetConfig(6, ((6,), (8,)), window=3, heads=2)),
    ],
    ids=["d4", "c8", "swivel", "attention"],
)
def test_a_twin_knows_translations_only_and_has_as_many_parameters(build):
    network = build()
    twin = rebuild(baseline_description(network.description))
    assert twin.group.name == "c1"
    own, others = count_parameters(network), count_parameters(twin)
    if network.description["network"] == "gsa_net":
        assert 0.95 * own < others <= own
    else:
        assert own <= others < 1.2 * own  # one channel more can be a sixth of so small a network


def test_building_twice_gives_the_same_weights(problem, small_recipe):
    one, other = (build_network(small_recipe(), problem).state_dict() for _ in range(2))
    assert differing(one, other) == {}


def test_a_module_without_weights_is_measured_too(problem):
    found = predict_logits(torch.nn.Flatten(), problem.test.images)
    torch.testing.assert_close(found, torch.from_numpy(problem.test.images).flatten(1))


def test_measuring_leaves_a_frozen_part_frozen(problem):
    network = group_cnn("c4", 1, 3, (9, 11), parameters=2000).train()
    frozen = next(module for module in network.modules() if isinstance(module, torch.nn.modules.batchnorm._BatchNorm))
    frozen.eval()
    accuracy(network, problem.test)
    assert network.training
    assert not frozen.training
