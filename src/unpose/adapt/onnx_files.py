"""Wrapped models as one ONNX file that needs nothing of this package."""

import logging
import warnings
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from unpose.adapt.canonicalize import Canonicalized
from unpose.adapt.symmetrize import Symmetrized
from unpose.audit import evaluation

_OPSET = 18


class _Before(nn.Module):
    """What a wrapper does to images before the model sees them: (n, c, h, w) -> (views * n, c, h, w)."""

    def __init__(self, adapted: Symmetrized | Canonicalized) -> None:
        super().__init__()
        self.adapted = adapted

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat(self.adapted.views_of(images))


class _After(nn.Module):
    """What a wrapper does with the answers to all views: (views * n, ...) -> (n, ...)."""

    def __init__(self, adapted: Symmetrized | Canonicalized, views: int) -> None:
        super().__init__()
        self.adapted, self.views = adapted, views

    def forward(self, answers: Tensor) -> Tensor:
        return self.adapted.combine(answers.unflatten(0, (self.views, -1)))


def to_onnx(adapted: Symmetrized | Canonicalized, example: Tensor, model_file: bytes | None = None) -> bytes:
    """Write a wrapped model as the content of one ONNX file.

    Parameters
    ----------
    adapted : Symmetrized or Canonicalized
        A wrapped torch module; or a wrapped ONNX model, whose file is then given.
    example : (n, c, h, w) tensor
        An input. The number of images stays free.
    model_file : bytes, optional
        The ONNX file of the wrapped model, with one input (n, c, h, w), one output and a free number of images. Its
        graph is put between those of the wrapper.

    Returns
    -------
    bytes

    Raises
    ------
    ValueError
        If the extra ``unpose[onnx]`` is not installed, or the model cannot be written so.

    Examples
    --------
    >>> from unpose.adapt import symmetrize
    >>> model = symmetrize(nn.Sequential(nn.Flatten(), nn.Linear(64, 3)), "c2")
    >>> content = to_onnx(model, torch.rand(2, 1, 8, 8))  # doctest: +SKIP
    >>> to_onnx(symmetrize(nn.Identity(), "c4", "logits", restores="image"), torch.rand(2, 1, 8, 8))
    Traceback (most recent call last):
    ValueError: a wrapper that carries dense answers back is exported with torch.export, not to ONNX
    """
    if adapted.restores is not None:
        raise ValueError("a wrapper that carries dense answers back is exported with torch.export, not to ONNX")
    if any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")):
        raise ValueError("ONNX files need the packages onnx, onnxscript and onnxruntime: pip install 'unpose[onnx]'")
    example = example[:2] if len(example) > 1 else example.expand(2, *example.shape[1:])  # one image would stay fixed
    try:
        if model_file is None:
            return _exported(adapted, example, "images", "answers").SerializeToString()
        return _merged(adapted, example, model_file)
    except ValueError:
        raise
    except Exception as error:  # the exporters raise many kinds
        first_line = str(error).strip().partition("\n")[0]
        raise ValueError(f"the wrapped model cannot be written as ONNX: {first_line}") from error


def _exported(module: nn.Module, example: Tensor, before: str, after: str, views: int = 1) -> Any:
    """A torch module as an ONNX model with a free number of images, each in several views."""
    number = torch.export.Dim("n", min=1, max=2**16)
    log = logging.getLogger("torch.onnx")
    level = log.level
    with warnings.catch_warnings(), evaluation(module):
        warnings.simplefilter("ignore")  # torch warns about its own internals, and about packages it does not need
        log.setLevel(logging.ERROR)
        try:
            program = torch.onnx.export(
                module, (example,), dynamo=True, verbose=False, opset_version=_OPSET, input_names=[before],
                output_names=[after], dynamic_shapes=({0: number if views == 1 else views * number},),
            )  # fmt: skip
        finally:
            log.setLevel(level)
    if program is None:
        raise ValueError("torch returned no ONNX program")
    return program.model_proto


def _merged(adapted: Symmetrized | Canonicalized, example: Tensor, model_file: bytes) -> bytes:
    onnx = import_module("onnx")
    model = onnx.load_from_string(model_file)
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    if len(inputs) != 1 or len(model.graph.output) != 1:
        raise ValueError("only a model with one input and one output can be written as one ONNX file")
    first = inputs[0].type.tensor_type.shape.dim[0]
    if first.HasField("dim_value"):
        raise ValueError(f"the model's number of images is fixed at {first.dim_value}; export it with a free one")
    if next(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")) != _OPSET:
        model = onnx.version_converter.convert_version(model, _OPSET)
    before = _exported(_Before(adapted), example, "images", "views")
    views = adapted.passes
    answers = torch.zeros(2 * views, *[d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim[1:]])
    after = _exported(_After(adapted, views), answers, "all_answers", "answers", views)
    model.ir_version = before.ir_version = after.ir_version = max(before.ir_version, model.ir_version)
    compose = onnx.compose
    model = compose.add_prefix(model, "model_")
    after = compose.add_prefix(after, "after_", rename_outputs=False)
    joined = compose.merge_models(before, model, [("views", f"model_{inputs[0].name}")])
    joined = compose.merge_models(joined, after, [(model.graph.output[0].name, "after_all_answers")])
    onnx.checker.check_model(joined)
    return joined.SerializeToString()
