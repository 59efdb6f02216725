"""Networks: published sizes, descriptions, errors, and dilations."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from unpose.nn import (
    GSA_NET_CONFIGS,
    GSANetConfig,
    count_parameters,
    create_network,
    group_cnn,
    gsa_net,
    rebuild,
    swivel_net,
)
from unpose.train import baseline_description

COUNTS = {
    ("rotated-mnist", "c1"): 44_368,
    ("rotated-mnist", "c4"): 44_428,
    ("rotated-mnist", "c8"): 44_508,
    ("rotated-mnist", "c12"): 44_588,
    ("rotated-mnist", "c16"): 44_668,
    ("cifar-10", "c1"): 2_999_728,
    ("cifar-10", "d1"): 2_999_888,
    ("patch-camelyon", "c1"): 206_494,
    ("patch-camelyon", "c4"): 206_602,
    ("patch-camelyon", "c8"): 206_746,
    ("patch-camelyon", "d4"): 206_746,
}
PRINTED = {"rotated-mnist": 44_670, "cifar-10": 2_990_000, "patch-camelyon": 205_660}
INPUTS = {"rotated-mnist": (1, 10, 28), "cifar-10": (3, 10, 32), "patch-camelyon": (3, 2, 96)}


@pytest.mark.parametrize(("config", "group"), COUNTS)
def test_parameters_of_the_published_networks(config, group):
    found = count_parameters(gsa_net(group, *INPUTS[config], config=config))
    assert found == COUNTS[config, group]
    # Equal to the paper's figure for 16 rotations; 0.3 % above for CIFAR (truncated, not rounded); 0.4 to 0.5 % above
    # for the third, whose description in the paper contradicts itself.
    assert abs(found - PRINTED[config]) / PRINTED[config] < 0.01
    if group == "c16":
        assert f"{found / 1000:.2f}" == "44.67"


@pytest.mark.parametrize("config", GSA_NET_CONFIGS)
def test_published_networks_are_described_by_plain_values(config):
    network = gsa_net("d1", *INPUTS[config], config=config)
    assert rebuild(network.description).description == network.description


@pytest.mark.parametrize("group", ["c1", "d1", "c4", "c8", "c12", "c16", "d4"])
def test_the_convolution_network_is_as_large_as_it_may_be(group):
    network = group_cnn(group, 1, 10, 28)
    assert count_parameters(network) <= 44_668
    wider = group_cnn(group, 1, 10, 28, width=network.description["width"] + 1)
    assert count_parameters(wider) > 44_668


def test_swivel_net_has_less_than_two_million_parameters():
    for group in ("c4", "c8", "c16", "d4"):
        assert count_parameters(swivel_net(group, 1, 10, 28)) < 2_000_000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gsa_net("c4", 1, 10, 28, config="mnist"), "rotated-mnist"),
        (lambda: gsa_net("se2", 1, 10, 28), "finite group"),
        (lambda: gsa_net("dilations(3, 3)", 1, 10, 28), "larger than an image"),
        (lambda: gsa_net("c4", 1, 10, 4), "larger than an image of 2 x 2"),
        (lambda: gsa_net("c4", 1, 10, (28, 28, 3)), "image_size"),
        (lambda: gsa_net("c4", 1, 10, 28, config=GSANetConfig(2, ((6,),))), "at least 4 channels"),
        (lambda: group_cnn("c4", 1, 10, 28, parameters=20), "too few"),
        (lambda: group_cnn("c4", 1, 10, 28, stages=(2, 0)), "at least one convolution"),
        (lambda: swivel_net("c4", 1, 10, 28, widths=(8,), depths=()), "at least one stage"),
        (lambda: swivel_net("c4", 1, 10, 4, window=5), "larger than an image"),
        (lambda: rebuild({"network": "resnet"}), "gsa_net"),
        (lambda: create_network("resnet", group="c4"), "unknown network 'resnet'; known: gsa_net"),
        (lambda: rebuild({"network": "group_cnn", "group": "c4", "colour": 1}), "does not fit"),
    ],
)
def test_wrong_arguments_raise_errors_that_say_what_is_needed(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_fails_inside_a_network_is_not_called_a_wrong_description():
    description = group_cnn("c4", 1, 10, 28).description
    with pytest.raises(TypeError, match="not iterable"):
        rebuild(description | {"stages": 3})
    with pytest.raises(ValueError, match="at least 1, got 'wide'"):
        rebuild(description | {"width": "wide"})


def test_global_attention_as_a_network(generator):
    network = gsa_net("c4", 1, 3, (7, 9), config=GSANetConfig(6, ((6,), (6,)), window=None, heads=1))
    assert network(torch.rand(2, 1, 7, 9, generator=generator)).shape == (2, 3)
    assert GSANetConfig(6, ((6,),), window=0) == GSANetConfig(6, ((6,),), window=None)  # for TOML, which has no null


@pytest.mark.slow
def test_swivel_net_learns_digits(real_data):
    digits = real_data("mnist.npz")
    names = {name: digits[name] for name in digits.files}
    images = next(array for array in names.values() if array.ndim == 3)[:96]
    labels = next(array for array in names.values() if array.ndim == 1)[:96]
    pixels = torch.from_numpy(images.astype("float32"))[:, None, ::2, ::2]
    pixels = (pixels - pixels.mean()) / pixels.std()
    wanted = torch.from_numpy(labels.astype("int64"))
    torch.manual_seed(0)
    network = swivel_net("c4", 1, 10, 14, widths=(6, 8), depths=(1,), heads=2, window=3, dropout=0.0)
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(pixels), wanted)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0], losses


def test_the_example_of_a_lightning_module_runs():
    if find_spec("lightning") is None and find_spec("pytorch_lightning") is None:
        pytest.skip("lightning is not installed")
    example = Path(__file__).parents[2] / "examples" / "learn" / "lightning_module.py"
    done = subprocess.run([sys.executable, example, "3"], capture_output=True, text=True, check=True)
    assert "the same answer after a quarter turn: 100%" in done.stdout


def test_numpy_numbers_give_the_same_description():
    found = group_cnn("c4", np.int64(2), np.arange(3).max() + 1, np.int64(8), parameters=3000)
    assert json.dumps(found.description) == json.dumps(group_cnn("c4", 2, 3, 8, parameters=3000).description)


def test_scores_of_a_network_for_dilations_do_not_depend_on_the_canvas(generator):
    # An object on a larger empty canvas covers a smaller share of it: a mean over the image would change.
    config = GSANetConfig(6, ((6,), (6,)), window=3, heads=2)
    small = torch.zeros(2, 1, 32, 32)
    small[..., 12:20, 12:20] = torch.rand(2, 1, 8, 8, generator=generator)
    large = torch.nn.functional.pad(small, (8, 8, 8, 8))
    changes = {}
    torch.manual_seed(0)
    for group in ("dilations(2, 1.5)", "dilations(1)", "c1"):
        network = gsa_net(group, 1, 3, 32, config=config).eval()
        with torch.no_grad():
            changes[group] = float((network(large) - network(small)).abs().max())
    assert changes["dilations(2, 1.5)"] < 1e-5
    assert changes["dilations(1)"] < 1e-5
    assert changes["c1"] > 1e-3


def test_a_network_for_dilations_has_gradients_everywhere_and_a_baseline_of_one_scale(generator):
    config = GSANetConfig(6, ((6,),), window=3, heads=2, attention_dropout=0.0, value_dropout=0.0)
    torch.manual_seed(0)
    network = gsa_net("dilations(3, 1.5)", 1, 3, 9, config=config)
    images = torch.rand(3, 1, 9, 9, generator=generator)
    torch.nn.functional.cross_entropy(network(images), torch.tensor([0, 1, 2])).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name
    assert baseline_description(network.description)["group"] == "dilations(1)"
    assert rebuild(network.description).description == network.description
