"""``unpose adapt`` as users run it: a table, a card, a model file, and errors that say what to change."""

import json
import runpy
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from kit.commands import unpose, unpose_process
from kit.networks import contrasted
from unpose.adapt import symmetrize
from unpose.nn import group_cnn
from unpose.train import load_network, save_network


def sums_file(path, classes):
    """An ONNX model whose scores are the sums over parts of each row of pixels: it ignores mirrors."""
    import onnx

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    axes = helper.make_tensor("axes", onnx.TensorProto.INT64, [2], [1, 3])
    node = helper.make_node("ReduceSum", ["images", "axes"], ["sums"], keepdims=0)
    inputs = [helper.make_tensor_value_info("images", kind, ["n", 1, classes, classes])]
    outputs = [helper.make_tensor_value_info("sums", kind, ["n", classes])]
    graph = helper.make_graph([node], "sums", inputs, outputs, [axes])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)


@pytest.mark.extra("onnx")
def test_a_model_that_needs_no_adapting_is_left_alone(tmp_path, rng):
    sums_file(tmp_path / "rows.onnx", 9)
    np.save(tmp_path / "images.npy", rng.random((5, 9, 9), dtype=np.float32))
    done = unpose(
        "adapt", tmp_path / "rows.onnx", "--images", tmp_path / "images.npy", "--group", "d1", "-o", tmp_path / "out"
    )
    assert done.status == 0, done.output
    assert "The model needs no adapting" in done.output
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["recommended"] == "plain"
    assert card["measures"] == "agreement"
    assert [row["method"] for row in card["trials"]] == ["plain", "mean over d1"]
    assert card["trials"][1]["turned"] == 100
    assert card["files"] == []


def test_where_no_onnx_file_can_be_written_a_recipe_builds_the_model(tmp_path, rng, monkeypatch):
    """The labels are the answers of the mean over the group, so that it is recommended."""
    monkeypatch.setitem(sys.modules, "onnx", None)  # as if it was not installed
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    network = contrasted(group_cnn("c1", 1, 3, 9, width=3, stages=(1,)))
    images = rng.random((40, 9, 9), dtype=np.float32)
    np.save("images.npy", images)
    batch = (torch.from_numpy(images)[:, None] - 0.5) / 0.25
    with torch.no_grad():
        list(network.parameters())[-1].sub_(network(batch).mean(0))  # no class is that of all images
        classes = symmetrize(network, "c4")(batch).argmax(1)
    save_network("net.safetensors", network)
    Path("classes.csv").write_text("".join(f"images.npy[{i}],{label}\n" for i, label in enumerate(classes.tolist())))
    done = unpose(
        "adapt", "net.safetensors", "--images", "images.npy", "--labels", "classes.csv", "--group", "c4",
        "--mean", 0.5, "--std", 0.25, "-o", "out",
    )  # fmt: skip
    assert done.status == 0, done.output
    assert "No adapted.onnx: ONNX files need the packages onnx" in done.err
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["files"] == ["recipe.py"]
    assert card["input"] == {"channels": 1, "height": 9, "width": 9, "mean": [0.5], "std": [0.25]}
    written = (tmp_path / "out" / "card.md").read_text()
    assert "1 channel of 9 x 9 pixels in [0, 1], minus 0.5, divided by 0.25" in written
    assert str(tmp_path) not in (tmp_path / "out" / "recipe.py").read_text()  # also after both were moved:
    (tmp_path / "elsewhere").mkdir()
    shutil.move(tmp_path / "out", tmp_path / "elsewhere")
    shutil.move(tmp_path / "net.safetensors", tmp_path / "elsewhere")
    tmp_path = tmp_path / "elsewhere"
    monkeypatch.chdir(tmp_path / "out")  # the recipe finds the network from any folder
    recipe = runpy.run_path("recipe.py")
    batch = recipe["prepare"](torch.from_numpy(images)[:, None])
    wanted = symmetrize(load_network(tmp_path / "net.safetensors").eval(), "c4")
    with torch.no_grad():
        torch.testing.assert_close(recipe["adapted"](batch), wanted((torch.from_numpy(images)[:, None] - 0.5) / 0.25))
        torch.testing.assert_close(recipe["adapted"](batch.rot90(1, (2, 3))), recipe["adapted"](batch))


def test_where_no_symmetry_is_found_a_group_is_asked_for(tmp_path, rng, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_network("net.safetensors", group_cnn("c1", 1, 3, 16, width=3, stages=(1,)))
    letters = 0.1 * rng.random((80, 16, 16), dtype=np.float32)
    letters[:, 3:13, 5] = letters[:, 12, 5:11] = 1  # the letter L, always upright
    np.save("letters.npy", letters)
    done = unpose("adapt", "net.safetensors", "--images", "letters.npy", "--group", "auto", "-o", "out")
    assert done.status == 2
    assert "no turn or mirror was found" in done.output
    assert not (tmp_path / "out" / "card.json").exists()


def test_wrong_calls_are_explained():
    for arguments, message in (
        (["nothing.onnx", "--images", ".", "-o", "../out"], "there is no file 'nothing.onnx'"),
        (["m.onnx", "--images", ".", "-o", "../out", "--group", "se2"], "a finite group such as c4"),
    ):
        done = unpose("adapt", *arguments)
        assert done.status == 2
        assert message in done.output


@pytest.mark.extra("onnx")
@pytest.mark.filterwarnings("ignore")
def test_a_digit_classifier_becomes_one_file_that_ignores_quarter_turns(tmp_path):
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = nn.functional.interpolate(torch.from_numpy(digits.images / 16).float()[:, None], 16)
    classes = torch.from_numpy(digits.target)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(128, 10))
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(100):
        loss = nn.functional.cross_entropy(network(images[:1500]), classes[:1500])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    number = torch.export.Dim("n", min=1, max=256)
    torch.onnx.export(
        network.eval(), (images[:2],), dynamo=True, verbose=False, dynamic_shapes=({0: number},)
    ).save(tmp_path / "digits.onnx")  # fmt: skip
    np.save(tmp_path / "images.npy", images[1500:1620, 0].numpy())
    rows = [f"images.npy[{i}],{int(classes[1500 + i])}" for i in range(120)]
    (tmp_path / "classes.csv").write_text("\n".join(rows))
    done = unpose_process(
        "adapt", tmp_path / "digits.onnx", "--images", tmp_path / "images.npy", "--labels", tmp_path / "classes.csv",
        "--group", "c4", "--steps", "60", "-o", tmp_path / "out", "--json",
    )  # fmt: skip
    assert done.status == 0, done.err
    card = done.json
    chosen = next(row for row in card["trials"] if row["method"] == card["recommended"])
    plain = card["trials"][0]
    assert card["measures"] == "accuracy"
    assert chosen["turned"] - plain["turned"] > 20 + max(0, plain["upright"] - chosen["upright"])
    assert card["files"] == ["adapted.onnx"]
    from unpose.adapt import as_model

    adapted = as_model(tmp_path / "out" / "adapted.onnx")
    turned = [adapted(images[1500:1620].rot90(k, (2, 3))) for k in range(4)]
    for other in turned[1:]:
        assert torch.allclose(other, turned[0], atol=1e-4)
