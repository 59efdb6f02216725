"""What every network in the registry keeps; a network that is declared there is under this contract.

The registry declares a tiny instance of each network. Run by ``torch.distributed.run``, this file is the program of two
processes that train them together.
"""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from kit.networks import contrasted
from unpose.audit import equivariance_error
from unpose.groups import FiniteGroup
from unpose.nn import NETWORKS, Network, count_parameters, example_network, rebuild
from unpose.train import baseline_description, load_network, save_network

SIDES = (10, 15)
POINT_GROUPS = ("c1", "c2", "d1", "d2", "c4", "d4", "c8")
every_network = pytest.mark.parametrize("name", NETWORKS)


def tiny(name: str, **options) -> Network:
    torch.manual_seed(1)
    return example_network(name, **options).eval()


def images_like(*shape, dtype=torch.float32):
    """Noise (n, 2, height, width)."""
    noise = torch.randn(shape or (2, 2, *SIDES), generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    return (2 * noise).to(dtype)


def predict(network, images):
    with torch.no_grad():
        return network(images)


def groups_of(name):
    """The group of the tiny network, and others if that is a point group."""
    group = tiny(name).group
    return POINT_GROUPS if isinstance(group, FiniteGroup) and group.is_group else (group.name,)


@every_network
def test_a_description_rebuilds_a_network_to_the_bit(name):
    network = tiny(name)
    torch.manual_seed(1)
    again = rebuild(json.loads(json.dumps(network.description))).eval()
    assert again.description == network.description
    assert again.description["network"] == name
    assert torch.equal(predict(again, images_like()), predict(network, images_like()))


@every_network
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_and_files_bring_a_network_back(name, dtype, tmp_path):
    network, images = contrasted(tiny(name)).to(dtype), images_like(dtype=dtype)
    wanted = predict(network, images)
    other = rebuild(network.description).to(dtype).eval()
    other.load_state_dict(network.state_dict())
    assert torch.equal(predict(other, images), wanted)
    again = load_network(save_network(tmp_path / "network.safetensors", network))
    assert not again.training
    assert (again.description, again.group) == (network.description, network.group)
    assert {parameter.dtype for parameter in again.parameters()} == {dtype}
    assert torch.equal(predict(again, images), wanted)
    again(images).sum().backward()  # and can be trained further


@every_network
def test_a_network_for_comparison_has_no_group(name):
    network = tiny(name)
    twin = rebuild(baseline_description(network.description))
    assert twin.group.name in ("c1", "translation") or twin.group.order == 1
    assert twin(images_like()).shape == network(images_like()).shape
    if "parameters" in network.description or "dilations" in network.group.name:
        assert count_parameters(twin) == count_parameters(network)


def audited(function, images, group):
    """The report of a function of images whose result has no group axis, keeps the pixels, or has both."""
    gives = {2: "invariant", 4: "image", 5: "regular image"}[function(images[:1]).ndim]
    moves_no_pixels = "dilations" in str(group)
    return equivariance_error(function, images, "c1" if moves_no_pixels else group, gives, n_elements=1)


@pytest.mark.equivariance
@every_network
@pytest.mark.parametrize(
    ("sides", "dtype"),
    [
        ((15, 15), torch.float32),
        (SIDES, torch.float64),
        pytest.param(SIDES, torch.float32, marks=pytest.mark.slow),
        pytest.param((15, 15), torch.float64, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_networks_are_exact_under_their_group_and_no_more(name, sides, dtype):
    # Of dilations, only the identity moves pixels onto pixels: test_scale_net.py and test_scale_fourier.py have others.
    network = contrasted(tiny(name), gain=3.0).to(dtype)
    images = images_like(3, 2, *sides, dtype=dtype)
    maps = [getattr(network, each, None) for each in ("features", "token_field")]
    maps = [each for each in maps if each and isinstance(network.group, FiniteGroup)]
    for function in (network, *(each for each in maps if isinstance(each(images[:1]), torch.Tensor))):
        report = audited(function, images, network.group)
        assert report.worst_exact < (1e-4 if dtype == torch.float32 else 1e-10), report
        assert report.control_error > 1e-2, report
        assert report.discrimination > 1e-2, report


@pytest.mark.slow
@pytest.mark.equivariance
@every_network
def test_networks_of_other_groups_are_exact_too(name):
    for group in groups_of(name):
        network = contrasted(tiny(name, group=group, **other_heads(name)), gain=3.0)
        report = audited(network, images_like(3, 2, *SIDES), group)
        assert report.worst_exact < 1e-4, (group, report)
        assert report.control_error > 1e-3, (group, report)


def other_heads(name):
    return {"heads": None} if name == "equivariant_vit" else {}


@every_network
def test_gradients_reach_every_parameter(name):
    network = tiny(name).train()
    network(images_like(3, 2, *SIDES)).square().sum().backward()
    for where, parameter in network.named_parameters():
        assert parameter.grad is not None, where
        assert parameter.grad.isfinite().all(), where
        # A softmax does not see what is the same for all keys, as the last bias of an encoding of positions.
        assert parameter.grad.any() or re.search(r"encoding\.along_[xy]\.3\.bias", where), where


@every_network
def test_no_parameter_is_empty(name):
    """``DistributedDataParallel`` fails with a parameter of size zero."""
    for group in groups_of(name):
        network = tiny(name, group=group, **other_heads(name))
        assert all(parameter.numel() for parameter in network.parameters()), group


@pytest.mark.filterwarnings("ignore:var_mean")  # of no pixels
@every_network
def test_no_images_give_no_answers(name):
    network = tiny(name)
    assert network(images_like(0, 2, *SIDES)).shape == (0, *network(images_like()).shape[1:])


@every_network
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"in_channels": 0}, "channels must be at least 1, got 0"),
        ({"in_channels": "two"}, "channels must be at least 1, got 'two'"),
        ({"n_classes": -1}, r"n_classes must be at least [01], got -1"),
        ({"image_size": 0}, r"image_size must be a side or \(height, width\) in pixels, got 0"),
        ({"image_size": (10, 15, 3)}, "image_size must be a side or"),
        ({"group": "se3"}, "group"),
        ({"group": "p5"}, "unknown group 'p5'; known: "),
    ],
    ids=str,
)
def test_wrong_arguments_are_explained(name, options, message):
    with pytest.raises(ValueError, match=message):
        tiny(name, **options)


@every_network
def test_a_description_of_another_version_is_explained(name):
    with pytest.raises(ValueError, match=f"the description of a {name} does not fit: .*colour"):
        rebuild(tiny(name).description | {"colour": 1})


@every_network
def test_wrong_images_are_explained(name):
    network = tiny(name)
    for shape, dtype, message in (
        ((2, 5, *SIDES), torch.float32, "2 channels, got 5"),
        ((2, *SIDES), torch.float32, r"\(batch, 2, height, width\), got shape \(2, 10, 15\)"),
        ((2, 2, *SIDES), torch.uint8, "divide integer images by their full scale"),
    ):
        with pytest.raises(ValueError, match=message):
            network(torch.zeros(shape, dtype=dtype))
    array = np.zeros((2, *SIDES, 2), np.float32)
    for given in (array, array.tolist()):
        with pytest.raises(TypeError, match=r"must be a tensor .* torch\.from_numpy\(images\)\.movedim\(-1, 1\)"):
            network(given)
    assert network(torch.from_numpy(array).movedim(-1, 1)).shape[:2] == (2, 3)


@every_network
def test_constant_tables_are_computed_again_when_weights_are_loaded_into_empty_memory(name):
    network, images = tiny(name), images_like()
    wanted = predict(network, images)
    empty = tiny(name).to_empty(device="cpu")
    empty.load_state_dict(network.state_dict())
    assert torch.equal(predict(empty, images), wanted)
    with torch.device("meta"):
        outline = tiny(name)
    shapes = {key: tensor.shape for key, tensor in outline.state_dict().items()}
    assert shapes == {key: tensor.shape for key, tensor in network.state_dict().items()}
    outline.load_state_dict(network.state_dict(), assign=True)
    assert torch.equal(predict(outline, images), wanted)
    outline.to_empty(device="meta").to_empty(device="cpu").load_state_dict(network.state_dict())
    assert torch.equal(predict(outline, images), wanted)


@every_network
def test_constant_tables_are_exact_after_a_cast_and_back(name):
    network, images = tiny(name), images_like()
    weights = {key: value.clone() for key, value in network.state_dict().items()}
    wanted = predict(network, images)
    cast = network.bfloat16().float()
    cast.load_state_dict(weights)
    assert torch.equal(predict(cast, images), wanted)
    doubled = {key: buffer for key, buffer in network.double().named_buffers() if key not in weights}
    fresh = dict(tiny(name).double().named_buffers())
    assert all(torch.equal(buffer, fresh[key]) for key, buffer in doubled.items())


@every_network
def test_networks_are_built_and_run_on_the_default_device(name):
    for device in ("meta", "cpu"):
        torch.set_default_device(device)
        try:
            network = tiny(name).train()
            assert {tensor.device.type for tensor in (*network.parameters(), *network.buffers())} == {device}
            assert network(torch.rand(2, 2, *SIDES)).shape[:2] == (2, 3)
        finally:
            torch.set_default_device(None)
    assert tiny(name).to("meta")(torch.rand(2, 2, *SIDES, device="meta")).shape[:2] == (2, 3)


@every_network
def test_networks_are_built_and_run_in_the_default_precision(name):
    torch.set_default_dtype(torch.float64)
    try:
        assert tiny(name)(images_like(dtype=torch.float64)).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


@every_network
def test_a_network_built_in_inference_mode_can_be_trained_after_its_weights_are_loaded(name):
    with torch.inference_mode():
        network = tiny(name)
    network.load_state_dict(tiny(name).state_dict(), assign=True)
    network(images_like()).sum().backward()


@every_network
def test_predictions_do_not_depend_on_gradients_inference_mode_or_threads(name):
    network, images = tiny(name), images_like()
    wanted = network(images).detach()  # records gradients
    assert torch.equal(predict(network, images), wanted)
    with torch.inference_mode():
        assert torch.equal(network(images), wanted)
    found = []
    thread = threading.Thread(target=lambda: found.append(network(images).detach()))
    thread.start()
    thread.join()
    before = torch.get_num_threads()
    for count in (1, 2):
        torch.set_num_threads(count)
        found.append(predict(network, images))
    torch.set_num_threads(before)
    assert all(torch.equal(each, wanted) for each in found)


@pytest.mark.slow
@every_network
def test_an_exported_network_gives_the_same(name):  # to the last digit: the exporter computes constants itself
    network = tiny(name)
    program = torch.export.export(
        network, (images_like(),), dynamic_shapes=({0: torch.export.Dim("batch", min=2, max=64)},)
    ).module()
    for count in (2, 5):
        images = images_like(count, 2, *SIDES)
        torch.testing.assert_close(predict(program, images), predict(network, images), rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*Dynamo detected a call to a `functools.lru_cache`")
@every_network
def test_a_network_is_compiled_to_one_graph(name):
    # The backend aot_eager needs no compiler on the machine.
    network, images = tiny(name), images_like()
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(predict(compiled, images), predict(network, images))


@pytest.mark.extra("onnx")
@pytest.mark.filterwarnings("ignore")  # the exporter's own warnings
@every_network
def test_onnx_gives_the_same(name, tmp_path, request):
    import onnxruntime

    if name in ("lie_cnn", "lie_transformer"):
        request.applymarker(pytest.mark.xfail(strict=True, reason="the exporter of torch 2.13 knows no hypot"))
    network, images = tiny(name), images_like()
    torch.onnx.export(network, (images,), tmp_path / "network.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "network.onnx", providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), predict(network, images), rtol=1e-4, atol=1e-4)


@pytest.mark.slow  # three more processes import torch
def test_two_processes_train_every_network_as_one(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", __file__],
        capture_output=True, text=True, cwd=tmp_path, check=False,
        env={
            **os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"process [01]: \w+", done.stdout)) == sorted(
        f"process {rank}: {name}" for rank in (0, 1) for name in NETWORKS
    )


def train_in_parallel():
    """Compare gradients of halves of the images with those of all, and take a step of training, of every network."""
    distributed.init_process_group("gloo")
    rank, images = distributed.get_rank(), images_like(4, 2, *SIDES)
    half = images[2 * rank : 2 * rank + 2]
    for name in NETWORKS:
        network = tiny(name)
        network(images).square().mean().backward()
        whole = [parameter.grad.clone() for parameter in network.parameters()]
        network.zero_grad()
        parallel = DistributedDataParallel(network)
        parallel(half).square().mean().backward()
        for parameter, gradient in zip(network.parameters(), whole, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
        optimizer = torch.optim.SGD(network.train().parameters(), 0.01)
        parallel(half).square().mean().backward()
        optimizer.step()
        for parameter in network.parameters():
            first = parameter.detach().clone()
            distributed.broadcast(first, 0)
            assert torch.equal(first, parameter), name
        sys.stdout.write(f"process {rank}: {name}\n")
        sys.stdout.flush()
    distributed.destroy_process_group()


if __name__ == "__main__":
    train_in_parallel()
