"""Crafted files of models through every door that takes one: nothing of them runs, and one sentence says no.

Each file would create a marker if a pickle in it was read.
"""

import contextlib
import hashlib
import io
import json
import os
import pickle
import shutil
import zipfile

import numpy as np
import pytest
import safetensors.torch
import torch

from kit.commands import unpose
from unpose.adapt import as_model
from unpose.cluster import InvariantClustering
from unpose.data import posed
from unpose.nn import group_resnet
from unpose.train import load_network, save_network

SECRET = np.arange(54, dtype=np.float32).tobytes()


class Payload:
    """Pickled, a call that creates a folder."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def saved(payload, *, legacy=False):
    content = io.BytesIO()
    torch.save(payload, content, _use_new_zipfile_serialization=not legacy)
    return content.getvalue()


def exported(payload, place):
    """The layout of a file of torch.export, with a pickle in one of its entries."""
    entries = {
        "archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little", "models/model.json": b"{}",
        "data/weights/model_weights_config.json": b'{"config": {}}', "data/sample_inputs/model.pt": b"",
        "data/constants/model_constants_config.json": b'{"config": {}}', "data/weights/w.pt": b"",
    }  # fmt: skip
    entries[place] = saved(payload, legacy=True)
    if place.endswith("w.pt"):
        about = {"w": {"path_name": "w.pt", "is_param": True, "use_pickle": True, "tensor_meta": None}}
        entries["data/weights/model_weights_config.json"] = json.dumps(
            {"config": about}, separators=(",", ":")
        ).encode()
    return zipped({f"archive/{name}": content for name, content in entries.items()})


def zipped(entries):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, each in entries.items():
            archive.writestr(name, each)
    return content.getvalue()


def array(payload, *, archive=False):
    """A .npy or .npz file with an array of objects."""
    content, objects = io.BytesIO(), np.array([payload, 1], dtype=object)
    np.savez(content, images=objects) if archive else np.save(content, objects, allow_pickle=True)
    return content.getvalue()


def safetensors_file(header):
    return len(header).to_bytes(8, "little") + header + bytes(64)


def field(number, value):
    """One field of a protobuf message."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    value = value.encode() if isinstance(value, str) else value
    assert len(value) < 1 << 14
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value):
    return bytes([value]) if value < 128 else bytes([value & 127 | 128, value >> 7])


def onnx_file(location, *, in_attribute=False):
    """An ONNX model whose weights are in another file."""
    entries = (("location", location), ("offset", "0"), ("length", str(len(SECRET))))
    tensor = b"".join(field(1, size) for size in (2, 3, 3, 3)) + field(2, 1) + field(8, "w")
    tensor += b"".join(field(13, field(1, key) + field(2, value)) for key, value in entries) + field(14, 1)

    def value_info(name, sizes):
        dims = b"".join(field(1, field(1, size)) for size in sizes)
        return field(1, name) + field(2, field(1, field(1, 1) + field(2, dims)))

    convolution = field(1, field(1, "x") + field(1, "w") + field(2, "y") + field(4, "Conv"))
    constant = field(
        1, field(2, "w") + field(4, "Constant") + field(5, field(1, "value") + field(20, 4) + field(5, tensor))
    )
    graph = (
        (constant if in_attribute else b"") + convolution + field(2, "g") + (b"" if in_attribute else field(5, tensor))
    )
    graph += field(11, value_info("x", (1, 3, 8, 8))) + field(12, value_info("y", (1, 2, 6, 6)))
    return field(1, 9) + field(8, field(1, "") + field(2, 18)) + field(7, graph)


EVERYWHERE, TENSOR = ("pt2", "pt", "onnx", "safetensors"), '"a":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}'
CRAFTED = {  # kind: its content, from a payload and the path of a file outside; endings that it is given
    "export, sample inputs": (lambda payload, _: exported(payload, "data/sample_inputs/model.pt"), EVERYWHERE),
    "export, weights": (lambda payload, _: exported(payload, "data/weights/w.pt"), ("pt2", "PT2", "onnx")),
    "torch.save": (lambda payload, _: saved(payload), (*EVERYWHERE, "pth", "ckpt")),
    "torch.save, legacy": (lambda payload, _: saved(payload, legacy=True), (*EVERYWHERE, "npz", "npy")),
    "pickle": (lambda payload, _: pickle.dumps(payload), ("pkl", "joblib", "onnx", "safetensors")),
    "objects": (lambda payload, _: array(payload), ("npy",)),
    "objects in an archive": (lambda payload, _: array(payload, archive=True), ("npz",)),
    "duplicate keys": (lambda *_: safetensors_file(f"{{{TENSOR},{TENSOR}}}".encode()), ("safetensors",)),
    "huge header": (lambda *_: (2**62).to_bytes(8, "little") + b"{}", ("safetensors",)),
    "nested header": (lambda *_: safetensors_file(b"[" * 100_000), ("safetensors",)),
    "weights at a path": (lambda _, outside: onnx_file(str(outside)), ("onnx",)),
    "weights above": (lambda _, outside: onnx_file(f"../{outside.name}"), ("onnx",)),
    "weights behind a link": (lambda *_: onnx_file("link.bin"), ("onnx",)),
    "weights beside": (lambda *_: onnx_file("beside.bin"), ("onnx",)),
    "weights of a node": (lambda _, outside: onnx_file(str(outside), in_attribute=True), ("onnx",)),
}
COMMANDS = (
    "cluster PHOTOS -o OUT --features FILE",
    "plan PHOTOS --features FILE",
    "predict RUN PHOTOS --features FILE",
    "update RUN NEW --features FILE",
    "predict --model FILE PHOTOS",
    "evaluate FILE PHOTOS",
    "audit FILE --images PHOTOS",
    "adapt FILE --images PHOTOS -o OUT",
)
FUNCTIONS = (
    as_model, load_network,
    lambda path: InvariantClustering(2, features=path).fit(np.random.default_rng(0).random((26, 9, 9))),
)  # fmt: skip


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Photographs, a network, and the run that compared them by it."""
    folder = tmp_path_factory.mktemp("places")
    plain = np.zeros((2, 15, 15), np.float32)
    plain[0, 3:12, 6:8] = plain[0, 10:12, 6:11] = plain[1, 4:11, 4:11] = 1
    turned = posed(plain, "se2", copies=14, max_shift=1.0, random_state=2).images
    np.save(folder / "photos.npy", turned[:26])
    np.save(folder / "new.npy", turned[26:])
    torch.manual_seed(0)
    network = group_resnet("c4", 1, 0, (15, 15), widths=(2, 3), depths=(1, 1), head=None)
    (folder / "network").mkdir()
    save_network(folder / "network" / "model.safetensors", network)
    done = unpose(
        "cluster", folder / "photos.npy", "-k", 2, "-o", folder / "run", "--features", folder / "network",
        "--device", "cpu",
    )  # fmt: skip
    assert done.status == 0, done.output
    return {"PHOTOS": folder / "photos.npy", "NEW": folder / "new.npy", "RUN": folder / "run", "network": folder}


@pytest.fixture
def craft(tmp_path):
    """Write a crafted file; returns its path, and fails in the end if anything of it has run."""
    marker, inside = tmp_path / "marker", tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "outside.bin").write_bytes(SECRET)
    (inside / "beside.bin").write_bytes(SECRET)
    (inside / "link.bin").symlink_to(tmp_path / "outside.bin")

    def write(kind, ending):
        path = inside / f"model.{ending}"
        path.write_bytes(CRAFTED[kind][0](Payload(marker), tmp_path / "outside.bin"))
        return path

    yield write
    assert not marker.exists()


@pytest.mark.parametrize("kind", CRAFTED)
def test_nothing_of_a_crafted_file_runs(kind, craft, places, tmp_path):
    before = {file: file.read_bytes() for file in places["RUN"].rglob("*") if file.is_file()}
    for ending in CRAFTED[kind][1]:
        path = craft(kind, ending)
        for line in COMMANDS:
            done = unpose(*({**places, "FILE": path, "OUT": tmp_path / "out"}.get(word, word) for word in line.split()))
            assert done.status == 2, (line, done.output)
            assert "Traceback" not in done.err
            assert "Logging error" not in done.err
            shown = [row for row in done.err.splitlines() if row.startswith("Error: ")]
            assert len(shown) == 1, (line, done.err)
            assert not (tmp_path / "out" / "model.json").exists()
        for function in FUNCTIONS:
            with pytest.raises((ValueError, OSError)) as refusal:
                function(str(path))
            if ending.lower() in ("pt2", "pt", "pth", "ckpt", "pkl", "joblib"):
                assert "can run code" in str(refusal.value)
                assert "torch.onnx.export" in str(refusal.value)
    assert before == {file: file.read_bytes() for file in places["RUN"].rglob("*") if file.is_file()}


def test_the_payload_is_live(tmp_path):
    """The control: read as a pickle, each of the files that hold one creates the marker."""
    marker = tmp_path / "marker"
    for content in (pickle.dumps(Payload(marker)), array(Payload(marker)).partition(b"\n")[2]):
        pickle.loads(content)
        marker.rmdir()


@pytest.mark.slow
def test_the_layout_of_an_export_is_live(tmp_path):
    """The control: torch itself runs what the sample inputs of a torch.export file say."""
    original, marker = io.BytesIO(), tmp_path / "marker"
    torch.export.save(torch.export.export(torch.nn.ReLU(), (torch.rand(1, 2),)), original)
    with zipfile.ZipFile(original) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    entries["archive/data/sample_inputs/model.pt"] = saved(Payload(marker), legacy=True)
    with contextlib.suppress(Exception):  # what the call returns is no sample input
        torch.export.load(io.BytesIO(zipped(entries)))
    if not marker.exists():
        pytest.skip("this version of torch no longer unpickles sample inputs")


# Run folders ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def stolen(places, tmp_path):
    """A copy of the run in another place, and a function that changes its model.json."""
    run = shutil.copytree(places["RUN"], tmp_path / "stolen")

    def change(parameter=None, **features):
        about = json.loads((run / "model.json").read_text())
        about["parameters"]["features"] = parameter
        about["features"] |= features
        (run / "model.json").write_text(json.dumps(about))

    return run, change


def test_a_run_names_no_path_and_its_network_is_named_again(places, tmp_path):
    text = (places["RUN"] / "model.json").read_text()
    assert str(places["network"]) not in text
    content = (places["network"] / "network" / "model.safetensors").read_bytes()
    assert json.loads(text)["features"]["sha256"] == hashlib.sha256(content).hexdigest()
    refused = unpose("predict", places["RUN"], places["NEW"])
    assert refused.status == 2
    assert "--features FILE" in refused.err
    given = tmp_path / "renamed.safetensors"
    given.write_bytes(content)
    for network in (places["network"] / "network", given):
        done = unpose("predict", places["RUN"], places["NEW"], "--features", network, "--json")
        assert done.status == 0, done.output
        assert len(done.json["images"]) == 2


def test_another_network_or_a_name_is_refused_where_a_checksum_is_known(places, tmp_path):
    other = tmp_path / "other.safetensors"
    save_network(other, group_resnet("c4", 1, 0, (15, 15), widths=(2, 3), depths=(1, 1), head=None))
    for features in (other, "statistics", "contour"):
        done = unpose("predict", places["RUN"], places["NEW"], "--features", features)
        assert done.status == 2
        assert "compared by" in done.err


@pytest.mark.parametrize(
    "place",
    ["outside.onnx", "/outside.onnx", "../outside.onnx", "run/../../outside.onnx", "..", "images.json", "\0", ""],
)
def test_a_run_of_a_stranger_names_no_file(place, stolen, tmp_path):
    run, change = stolen
    (tmp_path / "outside.onnx").write_bytes(SECRET)
    (tmp_path / "model.safetensors").write_bytes(SECRET)
    (run / "outside.onnx").symlink_to(tmp_path / "outside.onnx")
    place = str(tmp_path / place[1:]) if place.startswith("/") else place
    for parameter in (place, None):
        change(parameter, network=place, sha256=hashlib.sha256(SECRET).hexdigest())
        assert InvariantClustering.load(run).features is None
    change("auto", network=place)
    with pytest.raises(ValueError, match="no network that is chosen automatically"):
        InvariantClustering.load(run)


def test_a_network_inside_the_run_is_found_by_its_checksum(stolen, places):
    run, _ = stolen
    shutil.copytree(places["network"] / "network", run / "network")
    assert unpose("predict", run, places["NEW"]).status == 0
    tensors = safetensors.torch.load_file(run / "network" / "model.safetensors")
    safetensors.torch.save_file(tensors, run / "network" / "model.safetensors")
    assert InvariantClustering.load(run).features is None


def test_settings_do_not_name_the_file_of_a_network(places, tmp_path):
    """Also those of the run itself: with the flag, the file that the user names is taken."""
    network, config = places["network"] / "network", tmp_path / "config.toml"
    config.write_text(f"features = {str(network)!r}\nclusters = 2\ndevice = 'cpu'")
    call = ("cluster", places["PHOTOS"], "-o", tmp_path / "out", "--config", config)
    refused = unpose(*call)
    assert refused.status == 2
    assert "--features FILE" in refused.err
    assert unpose(*call, "--features", network).status == 0


def test_a_command_says_that_it_runs_a_module(tmp_path, monkeypatch, places):
    (tmp_path / "my_own_model.py").write_text("def mean(images):\n    return images.mean((1, 2))\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    done = unpose("audit", "my_own_model:mean", "--images", places["PHOTOS"], "--no-repair", "--count", 4)
    assert done.status == 0, done.output
    assert "importing my_own_model and running it" in done.err
    help_text = " ".join(unpose("audit", "--help").out.split())
    assert "A MODULE is imported and run" in help_text
