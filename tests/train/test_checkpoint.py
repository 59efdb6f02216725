"""Networks to and from the disk: what comes back, and what a broken or hostile file gets to do."""

import json
import os
from contextlib import contextmanager

import pytest
import safetensors.torch
import torch

from unpose.groups import FiniteGroup
from unpose.nn import GSANetConfig, group_cnn, gsa_net, patch_net, scale_net, swivel_net
from unpose.train import load_network, read_classes, save_network


def networks():
    torch.manual_seed(3)
    return [
        gsa_net("c8", 1, 3, 8, config=GSANetConfig(6, ((6,), (8,)), window=3, heads=2)),
        group_cnn("d4", 2, 3, (8, 9), width=2),
        swivel_net("c12", 1, 3, (9, 8), widths=(3, 4), depths=(1,), heads=2, window=3),
    ]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_constant_tables_come_back_in_the_type_of_the_weights(dtype, tmp_path, generator):
    torch.manual_seed(3)
    made = [
        scale_net("dilations(3, 1.5)", 1, 3, (12, 14), widths=(3, 4)),
        patch_net("c4", 1, 3, (12, 12), patch_size=6, width=4, heads=2),
    ]
    for network in made:
        network = network.to(dtype).eval()
        images = torch.rand(2, 1, *network.description["image_size"], generator=generator).to(dtype)
        again = load_network(save_network(tmp_path / "network.safetensors", network))
        assert torch.equal(again(images), network(images))


@pytest.fixture
def saved(tmp_path):
    torch.manual_seed(3)
    return save_network(tmp_path / "network.safetensors", group_cnn("d4", 2, 3, (8, 9), width=2))


def rewritten(path, about=None, weights=None, **changes):
    """The file again with another description or other weights."""
    with safetensors.safe_open(path, "pt") as file:
        old = json.loads(file.metadata()["unpose"])
    new = old | (about or {})
    new["description"] = {name: value for name, value in (new["description"] | changes).items() if value is not ...}
    tensors = safetensors.torch.load_file(path) if weights is None else weights
    path.write_bytes(safetensors.torch.save(tensors, metadata={"unpose": json.dumps(new)}))
    return path


def test_the_file_is_ordinary_safetensors_and_nothing_else_is_left(saved):
    tensors = safetensors.torch.load_file(saved)
    assert tensors.keys() == networks()[1].state_dict().keys()
    assert os.listdir(saved.parent) == [saved.name]


def test_saving_over_a_file_replaces_it(saved):
    save_network(saved, networks()[0])
    assert load_network(saved).description["network"] == "gsa_net"


@pytest.fixture
def full_disk():
    """A context in which no file can grow beyond a hundred bytes, which ends a save as a full disk does."""
    resource = pytest.importorskip("resource", reason="this system has no limits of processes")

    @contextmanager
    def limited():
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


def test_a_failed_save_leaves_the_old_file(saved, full_disk):
    before, network = saved.read_bytes(), networks()[0]
    with pytest.raises(OSError, match="too large"), full_disk():
        save_network(saved, network)
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == [saved.name]


def test_what_cannot_come_back_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match="Linear"):
        save_network(tmp_path / "x", torch.nn.Linear(2, 2))
    one = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))
    flip = ((1.0, 0.0, 0.0), (0.0, -1.0, 0.0), (0.0, 0.0, 1.0))
    with pytest.raises(ValueError, match=r"unknown group|no name that"):
        save_network(tmp_path / "x", group_cnn(FiniteGroup("top-bottom", (one, flip)), 1, 2, 8, width=2))
    with pytest.raises(ValueError, match="no name that"):
        save_network(tmp_path / "x", group_cnn(FiniteGroup("d1", (one, flip)), 1, 2, 8, width=2))
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("fraction", [0.0, 0.001, 0.2, 0.9, 0.9999])
def test_cut_off_files(saved, fraction):
    content = saved.read_bytes()
    saved.write_bytes(content[: int(fraction * len(content))])
    with pytest.raises(ValueError, match=r"network\.safetensors is not a network that unpose can read"):
        load_network(saved)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04" + bytes(100),
        b"\x80\x04\x95" + bytes(100),  # a pickle
        (2**62).to_bytes(8, "little") + b"{}",
        (2**23).to_bytes(8, "little") + b" " * 2**23,
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"{}{}",
        (17).to_bytes(8, "little") + b'{"a": 1, "a": 2} ',
        (2).to_bytes(8, "little") + b"\xff\xfe",
        (100_000).to_bytes(8, "little") + b'{"a":' * 20_000,
        (20).to_bytes(8, "little") + b'{"__metadata__": 3} ',
        (10).to_bytes(8, "little") + b'{"a": 3}  ',
    ],
)
def test_files_that_are_something_else(content, tmp_path):
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"hostile\.safetensors is not a network"):
        load_network(path)


def test_tensors_of_another_program(tmp_path):
    path = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"weight": torch.zeros(3)}, path)
    with pytest.raises(ValueError, match="does not say which network"):
        load_network(path)


@pytest.mark.parametrize("layout", [2, 0, "1", None])
def test_another_layout(saved, layout):
    with pytest.raises(ValueError, match=f"layout {layout!r}, and this version"):
        load_network(rewritten(saved, {"format": layout}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network": "system"}, "unknown network"),
        ({"network": ["x"]}, "not a network"),
        ({"group": "c99999"}, "unknown, or has more elements"),
        ({"group": "dilations(30000, 1.01)"}, "more elements"),  # its product table would be 65 GB
        ({"group": "dilations(300, 1e300)"}, "not a network"),
        ({"group": 7}, "name"),
        ({"group": "se2"}, "finite group"),
        ({"group": ...}, "group"),
        ({"width": 3}, "has shape"),
        ({"width": 4096}, "has shape"),  # petabytes, if it were built
        ({"width": 10**12}, "out of bounds"),
        ({"width": "wide"}, "not a network"),
        ({"kernel_size": 4095}, "out of bounds"),
        ({"kernel_size": float("nan")}, "out of bounds"),
        ({"stages": [4000] * 60}, "more layers"),
        ({"stages": [1] * 100}, "at most 64"),
        ({"stages": [-1, 2]}, "at least one"),
        ({"colour": "red"}, "does not fit"),
        ({"in_channels": ...}, "does not fit"),
    ],
)
def test_descriptions_that_lie(saved, changes, message):
    with pytest.raises(ValueError, match=message):
        load_network(rewritten(saved, **changes))


def test_weights_that_do_not_belong(saved):
    weights = safetensors.torch.load_file(saved)
    name = next(iter(weights))
    for other in (
        {key: tensor for key, tensor in weights.items() if key != name},
        weights | {"extra": torch.zeros(2)},
        weights | {name: torch.zeros(1)},
    ):
        with pytest.raises(ValueError, match="has shape"):
            load_network(rewritten(saved, weights=other))


def test_every_flipped_byte_of_the_header_is_an_error_or_harmless(saved, generator):
    content = saved.read_bytes()
    length = 8 + int.from_bytes(content[:8], "little")
    for at in torch.randint(length, (60,), generator=generator).tolist():
        broken = bytearray(content)
        broken[at] ^= 1 << (at % 8)
        saved.write_bytes(broken)
        try:
            load_network(saved)
        except ValueError as error:
            assert "network.safetensors" in str(error)  # noqa: PT017


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        load_network(tmp_path / "none.safetensors")


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    target = tmp_path / "a.safetensors"
    for network, classes, why in (
        (group_cnn("c4", 1, 3, 28, kernel_size=33, width=1, stages=(1,)), (), "kernel_size = 33 is out of bounds"),
        (group_cnn("c4", 1, 3, 28), (0, 1, 2), "must be texts"),
        (group_cnn("c4", 1, 3, 28), ("a", "b"), "2 names of classes for 3 outputs"),
    ):
        with pytest.raises(ValueError, match=why):
            save_network(target, network, classes=classes)
        assert not target.exists()


def test_thousands_of_classes_and_large_images_come_back(tmp_path):
    network = group_cnn("c4", 1, 5000, 5000, width=2)
    save_network(tmp_path / "a.safetensors", network)
    assert load_network(tmp_path / "a.safetensors").description == network.description
    assert read_classes(tmp_path / "a.safetensors")[-1] == "4999"


@pytest.mark.parametrize(
    ("head", "recipe", "count"),
    [
        ("classes", None, 3),
        ("classes", {"epochs": 2}, 3),
        ("classes", "in words", 3),
        ("classes", {"unlabelled": {"loss": "none"}}, 3),
        ("classes", {"unlabelled": {"loss": "vicreg"}}, 0),
        ("mask", None, 0),
    ],
)
def test_only_a_classifier_has_names_of_classes(head, recipe, count, tmp_path):
    network = group_cnn("c4", 1, 3, 16, width=2, stages=(1,), head=head)
    path = save_network(tmp_path / "a.safetensors", network, notes=None if recipe is None else {"recipe": recipe})
    assert read_classes(path) == tuple("012")[:count]
