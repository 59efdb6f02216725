"""Recipes: in and out of TOML, the paper's numbers, and tables that cannot be meant."""

import tomllib
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kit.commands import unpose
from kit.trainings import blank
from unpose.nn import GroupSelfAttention, LiftingSelfAttention, count_parameters
from unpose.train import (
    Recipe,
    RecipeError,
    build_network,
    named_recipe,
    pretrained,
    read_recipe,
    recipe_from,
    recipe_names,
    recipe_toml,
)


def test_numbers_of_numpy_come_back_too():
    recipe = Recipe(optimizer=replace(Recipe().optimizer, learning_rate=np.logspace(-3, -2, 2)[0]))
    assert recipe_from(tomllib.loads(recipe_toml(recipe))) == recipe


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_of_the_package_comes_back_from_its_toml(name):
    recipe = named_recipe(name)
    assert recipe.title
    assert recipe_from(tomllib.loads(recipe_toml(recipe))) == recipe


@given(
    title=st.text(),
    rate=st.floats(1e-12, 1e6),
    seed=st.integers(0, 2**63 - 1),
    angle=st.floats(0, np.pi),
    options=st.dictionaries(
        st.text(min_size=1), st.one_of(st.integers(-(2**62), 2**62), st.booleans(), st.lists(st.integers(0, 9)))
    ),
)
def test_any_recipe_comes_back_from_its_toml(title, rate, seed, angle, options):
    recipe = recipe_from(
        {"title": title, "seed": seed, "optimizer": {"learning_rate": rate}, "network": {"options": options}}
    )
    poses, symmetry = (replace(part, max_angle=angle) for part in (recipe.poses, recipe.symmetry))
    recipe = replace(recipe, poses=poses, symmetry=symmetry)
    assert recipe.poses.max_angle == pytest.approx(angle, abs=1e-11)
    assert recipe_from(tomllib.loads(recipe_toml(recipe))) == recipe


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_builds_a_network(name):
    # What begins with a network is for images such as that one takes.
    like = blank(32, 1, 3) if named_recipe(name).network.begin is None else blank(28, 1, 10)
    assert count_parameters(build_network(named_recipe(name), like)) > 1000


def test_more_rotations_begin_with_the_network_of_four_that_comes_along():
    four, eight = pretrained("rotmnist-attention"), build_network(named_recipe("rotmnist-refined"), blank(28, 1, 10))
    assert (four.group.order, eight.group.order) == (4, 8)
    shared = [name for name, weight in eight.state_dict().items() if not name.endswith("element.weight")]
    assert shared
    assert all(torch.equal(eight.state_dict()[name], four.state_dict()[name]) for name in shared)


def test_our_recipe_for_the_published_network_leaves_its_size_and_offsets_queries_only():
    recipe = named_recipe("rotmnist-attention")
    network = build_network(recipe, blank(28, 1, 10))
    assert count_parameters(network) == 44_428
    for layer in network.modules():
        if isinstance(layer, GroupSelfAttention | LiftingSelfAttention):
            query, key, value = layer.project.bias.chunk(3)
            assert query.std().item() == pytest.approx(2, rel=0.3)
            assert max(key.std(), value.std()) < 1


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"epoch": 3}, "unknown entry 'epoch'; known here: average, batch_size"),
        ({"optimizer": {"lr": 3}}, "unknown entry 'optimizer.lr'"),
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"epochs": 2.5}, "epochs must be of type int, got 2.5"),
        ({"epochs": True}, "epochs must be of type int"),
        ({"epochs": "many"}, "epochs must be of type int"),
        ({"optimizer": 3}, "optimizer must be a table"),
        ({"optimizer": {"name": "lion"}}, "optimizer.name must be one of adam, adamw, sgd, muon"),
        ({"optimizer": {"learning_rate": 0}}, "learning_rate must be above 0"),
        ({"optimizer": {"learning_rate": float("nan")}}, "learning_rate must be above 0"),
        ({"optimizer": {"share": -1}}, "share must be at least 0"),
        ({"optimizer": {"warmup_epochs": 30}}, "below epochs"),
        ({"network": {"kind": "os.system"}}, "network.kind must be one of"),
        ({"network": {"options": {"stages": 3}}}, r"network\.options\.stages must be of type list of int, got 3"),
        ({"network": {"options": {"stages": [1, "a"]}}}, r"network\.options\.stages must be of type list of int"),
        ({"network": {"options": {"width": "a"}}}, r"network\.options\.width must be of type int, got 'a'"),
        ({"network": {"options": {"dropout": True}}}, r"network\.options\.dropout must be of type float, got True"),
        ({"network": {"options": {"head": 3}}}, r"network\.options\.head must be of type str, got 3"),
        ({"network": {"kind": "gsa_net", "options": {"config": 7}}}, r"options\.config must be of type str or dict"),
        ({"network": {"kind": "gsa_net", "options": {"config": {"stages": [3]}}}}, r"config\.stages must be .*list of"),
        ({"symmetry": {"groups": [3]}}, r"symmetry\.groups must be of type list of str"),
        ({"data": {"size": "big"}}, "data.size must be of type int"),
        ({"poses": {"max_angle": 200}}, "at most 180"),
        ({"poses": {"max_stretch": 0.9}}, "at least 1"),
        ({"average": 1.0}, "average must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_tables_that_cannot_be_meant(table, message):
    with pytest.raises(RecipeError, match=message):
        recipe_from(table)


@pytest.mark.parametrize("content", [b"epochs = ", b"\xff\xfe", b"[[[", b"x" * 2**21])
def test_files_that_are_no_recipes(content, tmp_path):
    (tmp_path / "bad.toml").write_bytes(content)
    with pytest.raises(RecipeError, match=r"bad\.toml is not a recipe"):
        read_recipe(tmp_path / "bad.toml")


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(RecipeError, match=r"known: .*rotmnist-r4"):
        named_recipe("rotmnist")
    with pytest.raises(RecipeError, match="known"):
        named_recipe("../recipes/digits")


def test_a_short_trial_of_a_long_recipe_shortens_its_warm_up():
    recipe = named_recipe("rotmnist-modern").changed(epochs=2, group="d4")
    assert recipe.optimizer.warmup_epochs == 0.2
    assert recipe.network.group == "d4"
    assert Recipe().changed(epochs=None) == Recipe()


def test_options_that_do_not_fit_the_network():
    recipe = recipe_from({"network": {"options": {"colour": "red"}}})
    with pytest.raises(ValueError, match=r"network\.options do not fit a group_cnn"):
        build_network(recipe, blank(9, 1, 3))
    for config, name in (({"lifted": 6, "stages": [[6]], "colour": "red"}, "colour"), ({"lifted": 6}, "stages")):
        recipe = recipe_from({"network": {"kind": "gsa_net", "options": {"config": config}}})
        with pytest.raises(ValueError, match=rf"network\.options do not fit a gsa_net: .*'{name}'"):
            build_network(recipe, blank(9, 1, 3))


def test_a_recipe_with_an_option_of_the_wrong_type_ends_the_command_in_a_sentence(tmp_path):
    (tmp_path / "odd.toml").write_text("[network.options]\nstages = 3\n")
    answer = unpose("train", "--config", tmp_path / "odd.toml", "-o", tmp_path / "run")
    assert answer.status == 2
    assert "network.options.stages must be of type list of int, got 3" in answer.words
    assert not (tmp_path / "run").exists()
