"""``unpose audit`` on saved networks: its table, exit status and plot, and the messages for wrong calls."""

import numpy as np
import pytest
import torch
from PIL import Image

from kit.commands import unpose
from unpose.data import drawings
from unpose.nn import group_cnn
from unpose.train import save_network


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(0)
    network = group_cnn("c4", 1, 5, (11, 11), width=4, stages=(1, 1))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(2 * torch.randn_like(parameter) / max(parameter[0].numel(), 1) ** 0.5)
    return save_network(tmp_path_factory.mktemp("network") / "model.safetensors", network)


@pytest.fixture(scope="module")
def constant(tmp_path_factory):
    network = group_cnn("c4", 1, 5, (11, 11), width=4, stages=(1, 1))
    with torch.no_grad():
        list(network.parameters())[-2].zero_()  # the last linear map: only its bias is left
    return save_network(tmp_path_factory.mktemp("network") / "constant.safetensors", network)


def test_the_audit_prints_a_table_and_writes_a_plot(checkpoint, tmp_path):
    picture = tmp_path / "new" / "audit.png"
    done = unpose("audit", checkpoint, "-o", picture)
    assert done.status == 0, done.output
    assert done.err == ""
    assert done.out.startswith("under c4")
    assert "turn 90" in done.out
    assert "control: mirror" in done.out
    assert "Invariant to every element of c4 that only permutes pixels" in done.out
    assert np.asarray(Image.open(picture)).std() > 5


def test_a_group_it_does_not_hold_ends_with_one_and_the_module(checkpoint):
    done = unpose("audit", checkpoint, "--group", "d4")
    assert done.status == 1
    assert "Not invariant to d4" in done.out
    assert "breaks d4: features.0\n" in done.out


@pytest.mark.slow
def test_json_holds_the_same_numbers_and_a_seed_repeats_them(checkpoint):
    first, again, other = (
        unpose("audit", checkpoint, "--json", "--group", "se2", "--count", 3, "--seed", seed) for seed in (1, 1, 2)
    )
    assert first.status == 0
    assert first.out == again.out != other.out
    numbers = first.json
    assert numbers["group"] == "se2"
    assert len(numbers["elements"]) == 4 + 16  # quarter turns, and drawn ones
    excesses = [row["error"] - row["floor"] for row in numbers["elements"]]
    assert numbers["worst"]["excess"] == max(excesses) < numbers["worst"]["error"]
    assert numbers["worst"]["element"] == numbers["elements"][np.argmax(excesses)]["element"]
    assert {"element", "exact", "error", "floor", "pixels"} == set(numbers["elements"][1])


def test_a_constant_network_is_not_invariant(constant):
    done = unpose("audit", constant)
    assert done.status == 1
    assert "No verdict" in done.out
    assert "nearly constant" in done.out


def test_a_wider_tolerance_lets_it_pass(checkpoint):
    assert unpose("audit", checkpoint, "--group", "d1", "--tolerance", 10).status == 0
    assert unpose("audit", checkpoint, "--group", "d1").status == 1


def test_ones_own_images_from_a_folder_or_an_array(checkpoint, tmp_path):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number, drawing in enumerate(drawings(22)):
        Image.fromarray((drawing * 255).astype(np.uint8)).save(pictures / f"{number}.png")
    np.save(tmp_path / "stack.npy", drawings(11).mean(-1))
    for path in (pictures, tmp_path / "stack.npy"):
        done = unpose("audit", checkpoint, "--images", path)
        assert done.status == 0, done.output
        assert "turn 270" in done.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--group", "so9"], "unknown group 'so9'"),
        (["--group", "so3"], "so3"),
        (["--images", "nowhere"], "nowhere does not exist"),
        (["--count", "1"], "--count"),
        (["--tolerance", "0"], "--tolerance"),
        (["--group", "dilations(4, 2)"], "cannot be audited"),
        (["-o", "/proc/none/audit.png"], "cannot write"),
    ],
)
def test_wrong_calls_say_what_is_wrong_and_end_with_two(checkpoint, arguments, message):
    done = unpose("audit", checkpoint, *arguments)
    assert done.status == 2, done.output
    assert message in done.words


def test_files_that_are_no_networks_end_with_two(tmp_path):
    (tmp_path / "notes.txt").write_text("not a network")
    for path in (tmp_path / "notes.txt", tmp_path / "missing", tmp_path):
        done = unpose("audit", path)
        assert done.status == 2
        assert "CHECKPOINT" in done.err
