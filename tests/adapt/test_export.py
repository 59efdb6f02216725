"""Wrapped models run under torch.compile and torch.export, and become one ONNX file that needs nothing of ours."""

import pytest
import torch
from torch import nn

from unpose.adapt import as_model, canonicalize, learned, moments, symmetrize, to_onnx


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(36, 5)
    ).eval()  # fmt: skip


def untrained_scorer(group="c4"):
    torch.manual_seed(1)
    return learned(group, 1, width=2, stages=(1, 1), size=12).eval()


WRAPPED = {
    "mean over d4": lambda model: symmetrize(model, "d4"),
    "gate": lambda model: canonicalize(model, untrained_scorer(), gate=0.3),
    "two views": lambda model: canonicalize(model, untrained_scorer("so2"), views=2, border="reflect"),
    "moments": lambda model: canonicalize(model, moments("se2")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRAPPED)
def test_torch_export_keeps_the_number_of_images_free(name, generator):
    model = WRAPPED[name](network())
    images, more = torch.rand(3, 1, 16, 16, generator=generator), torch.rand(5, 1, 16, 16, generator=generator)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("n", min=1, max=64)},))
    assert torch.allclose(program.module()(more), model(more), atol=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mean over d4", "gate"])
def test_torch_compile(name, generator):
    model = WRAPPED[name](network())
    images = torch.rand(3, 1, 16, 16, generator=generator)
    compiled = torch.compile(model, backend="aot_eager")
    with torch.no_grad():
        assert torch.allclose(compiled(images), model(images), atol=1e-5)


@pytest.mark.extra("onnx")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mean over d4", "gate", "two views"])
def test_a_torch_model_becomes_one_onnx_file(name, tmp_path, generator):
    model = WRAPPED[name](network())
    images, more = torch.rand(2, 1, 16, 16, generator=generator), torch.rand(5, 1, 16, 16, generator=generator)
    file = tmp_path / "adapted.onnx"
    file.write_bytes(to_onnx(model, images))
    with torch.no_grad():
        assert torch.allclose(as_model(file)(more), model(more), atol=1e-5)


@pytest.mark.extra("onnx")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["mean over d4", "gate", "two views"])
def test_an_onnx_model_is_put_between_the_parts_of_its_wrapper(name, tmp_path, generator):
    images, more = torch.rand(2, 1, 16, 16, generator=generator), torch.rand(5, 1, 16, 16, generator=generator)
    plain, file = tmp_path / "plain.onnx", tmp_path / "adapted.onnx"
    number = torch.export.Dim("n", min=1, max=64)
    torch.onnx.export(network(), (images,), dynamo=True, verbose=False, dynamic_shapes=({0: number},)).save(plain)
    model = WRAPPED[name](plain)
    file.write_bytes(to_onnx(model, images, plain.read_bytes()))
    with torch.no_grad():
        assert torch.allclose(as_model(file)(more), model(more), atol=1e-5)
        assert torch.allclose(model(more), WRAPPED[name](network())(more), atol=1e-5)


@pytest.mark.extra("onnx")
def test_what_cannot_be_written_is_said(generator):
    images = torch.rand(2, 1, 16, 16, generator=generator)
    dense = symmetrize(nn.Conv2d(1, 1, 3, padding=1), "c4", "logits", restores="image")
    with pytest.raises(ValueError, match=r"exported with torch\.export"):
        to_onnx(dense, images)
    with pytest.raises(ValueError, match="cannot be written as ONNX"):
        to_onnx(symmetrize(network(), "c4"), images, b"no model")
