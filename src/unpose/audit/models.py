"""One way to call any model: a torch module, an ONNX file, a scikit-learn estimator or a function on images.

``unpose.audit`` and ``unpose.adapt`` call models through :class:`ImageModel`, a torch module on ``(n, c, h, w)``
tensors. The given model is held as it is; nothing of it is modified.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from unpose.audit.calls import checked_output, evaluation, first_line
from unpose.audit.outputs import outputs_of
from unpose.compiled import is_traced_or_transformed
from unpose.files import read_file, refuse_code
from unpose.images import as_batch, from_batch

LAYOUTS = ("nchw", "nhwc", "nhw", "flat")
GIVES = ("logits", "probabilities")
_MAX_BYTES = 2**31 - 1  # what the format allows
_FATAL = 4  # the least that onnxruntime logs
ModelCall = Callable[[Tensor], Tensor]
"""A function of a batch of images, as :func:`as_model` makes it from any model."""


class ImageModel(nn.Module):
    """A model as a torch module on (n, c, h, w) tensors, with checks of its answers; made by :func:`as_model`.

    Parameters
    ----------
    model : torch.nn.Module or callable
        A torch module is called with tensors. Anything else is called with arrays in the given layout.
    layout : {"nchw", "nhwc", "nhw", "flat"}, optional
        What the model takes. By default torch modules take "nchw", and functions what the wrapped model is called
        with: tensors, or arrays of the same layout.
    output : str, int or callable, optional
        Which entry of a dictionary or tuple is the answer, or a function that returns it.
    gives : {"logits", "probabilities"}, default "logits"
        Whether the answers are unnormalised scores or already probabilities.
    batch_size : int, optional
        Largest number of images per call; all of them by default.

    Examples
    --------
    >>> model = ImageModel(lambda images: {"mean": images.mean((1, 2, 3))[:, None]}, output="mean")
    >>> model(torch.ones(2, 3, 8, 8)).tolist()
    [[1.0], [1.0]]
    """

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        layout: str | None = None,
        output: str | int | Callable[[Any], Any] | None = None,
        gives: str = "logits",
        batch_size: int | None = None,
    ) -> None:
        super().__init__()
        _check_choice("layout", layout, (None, *LAYOUTS))
        _check_choice("gives", gives, GIVES)
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.model = model
        self.layout, self.output, self.gives, self.batch_size = layout, output, gives, batch_size
        self.label_maps = False  # whether whole numbers (n, ..., h, w) are allowed; wrappers cannot average them
        self.expects: tuple[int | None, ...] = (None, None, None)  # channels, height and width that an ONNX file names
        self.training = model.training if isinstance(model, nn.Module) else False

    def extra_repr(self) -> str:
        parts = {"layout": self.layout, "output": self.output, "gives": self.gives, "batch_size": self.batch_size}
        return ", ".join(f"{name}={value!r}" for name, value in parts.items() if value is not None)

    def forward(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, ...)"""
        return self._batches(images, self.layout)

    def on(self, images: ArrayLike | Tensor) -> tuple[Tensor, ModelCall]:
        """Convert what a caller gives to a tensor (n, c, h, w), and return it with a function that calls the model."""
        if isinstance(images, Tensor):
            if images.ndim != 4 or not images.is_floating_point():
                raise ValueError(
                    "tensors of images must be (n, c, h, w) and floating point, got shape "
                    f"{tuple(images.shape)} of {images.dtype}; arrays are (n, h, w) or (n, h, w, c)"
                )
            return images, self
        batch = as_batch(images)
        if isinstance(self.model, nn.Module) or self.layout is not None:
            return batch, self
        layout = "nhwc" if np.ndim(cast(Any, images)) == 4 else "nhw"
        return batch, lambda views: self._batches(views, layout)

    def raw(self, images: Tensor) -> dict[str, Tensor]:
        """All that the model returns for images (n, c, h, w) as tensors; names of nested entries are joined by dots."""
        parts = []
        for part in images.split(self.batch_size or max(len(images), 1)):
            try:
                parts.append(outputs_of(self._answer(part, self.layout), len(part)))
            except Exception as error:
                raise ValueError(self._failure(part, self.layout, error)) from error
        return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}

    def _batches(self, images: Tensor, layout: str | None) -> Tensor:
        size = self.batch_size
        if size is None or size >= images.shape[0]:
            return self._checked(images, layout)
        return torch.cat([self._checked(part, layout) for part in images.split(size)])

    def _checked(self, images: Tensor, layout: str | None) -> Tensor:
        n = images.shape[0]
        if is_traced_or_transformed():
            return self._call(images, layout)
        try:
            answer = self._call(images, layout)
        except Exception as error:
            raise ValueError(self._failure(images, layout, error)) from error
        return checked_output(answer, n, "the model", label_maps=self.label_maps).to(images.device)

    def _call(self, images: Tensor, layout: str | None) -> Any:
        answer = self._pick(self._answer(images, layout))
        from_function = not isinstance(self.model, nn.Module) and isinstance(answer, np.ndarray)
        if from_function and answer.dtype == np.float64 and images.dtype == torch.float32:
            answer = answer.astype(np.float32)  # scikit-learn computes in float64
        return answer

    def _answer(self, images: Tensor, layout: str | None) -> Any:
        """What the model itself returns; a function gets an array of the layout, or a tensor if that is None."""
        if isinstance(self.model, nn.Module):
            return self.model(images if layout in (None, "nchw") else _arranged(images, layout))
        # A function may change its input.
        return self.model(images.clone() if layout is None else from_arranged(images, layout))

    def _pick(self, answer: Any) -> Any:
        if callable(self.output):
            return self.output(answer)
        if self.output is not None:
            try:
                return answer[self.output]
            except (KeyError, IndexError, TypeError) as error:
                raise ValueError(f"the model's answer has no entry {self.output!r}: {_describe(answer)}") from error
        if isinstance(answer, dict | tuple | list):
            raise ValueError(
                f"the model returns {_describe(answer)}; say which entry is the answer: as_model(model, output=...)"
            )
        return answer

    def _failure(self, images: Tensor, layout: str | None, error: Exception) -> str:
        """Describe a failed call: which images fail on their own, if there are several."""
        n = images.shape[0]
        message = first_line(error)
        if n == 1:
            return f"the model fails on an image of shape {tuple(images.shape[1:])}: {message}"
        failing = []
        for i in range(n):
            try:
                self._call(images[i : i + 1], layout)
            except Exception:
                failing.append(i)
        if not failing:
            return f"the model fails on {n} images at once but on none of them alone: {message}; set batch_size=1"
        if len(failing) == n:
            return f"the model fails on images of shape {tuple(images.shape[1:])}: {message}"
        return f"the model fails on image {failing[0]} of {n} ({len(failing)} such images in all): {message}"


def as_model(
    model: Any,
    *,
    layout: str | None = None,
    output: str | int | Callable[[Any], Any] | None = None,
    gives: str | None = None,
    batch_size: int | None = None,
) -> ImageModel:
    """Make any model callable on images in one way.

    Parameters
    ----------
    model : torch.nn.Module, path of an ONNX file, scikit-learn estimator, Command or callable
        An estimator is called with flattened images; ``predict_proba`` is preferred to ``decision_function`` and
        ``predict``. An ONNX file needs the extra ``unpose[onnx]``.
    layout : {"nchw", "nhwc", "nhw", "flat"}, optional
        What the model takes. Default: "nchw" tensors for torch modules, "flat" arrays for estimators, what the file
        says for ONNX. Other functions are called with what the wrapped model is called with: a tensor (n, c, h, w),
        or an array (n, h, w) or (n, h, w, c).
    output : str, int or callable, optional
        Which entry of a dictionary or tuple is the answer, or a function that returns it.
    gives : {"logits", "probabilities"}, optional
        Whether answers are unnormalised scores (default) or already probabilities (default for ``predict_proba``).
    batch_size : int, optional
        Largest number of images per call. Default: all of them, or the fixed batch size of an ONNX file.

    Returns
    -------
    ImageModel
        An ImageModel is returned as it is, unless options are given.

    Examples
    --------
    >>> from sklearn.linear_model import LogisticRegression
    >>> images = np.random.default_rng(0).random((12, 5, 5), dtype=np.float32)
    >>> classifier = LogisticRegression().fit(images.reshape(12, 25), np.arange(12) % 2)
    >>> model = as_model(classifier)
    >>> model(torch.from_numpy(images)[:, None]).shape, model.gives
    (torch.Size([12, 2]), 'probabilities')
    """
    if isinstance(model, ImageModel):
        if layout is output is gives is batch_size is None:
            return model
        return ImageModel(
            model.model, layout=layout or model.layout, output=model.output if output is None else output,
            gives=gives or model.gives, batch_size=batch_size or model.batch_size,
        )  # fmt: skip
    if isinstance(model, str | os.PathLike):
        session, file_layout, shape = _onnx_session(os.fspath(model))
        wrapped = as_model(
            session, layout=layout or file_layout, output=output, gives=gives, batch_size=batch_size or shape[0]
        )
        wrapped.expects = shape[1:]
        return wrapped
    if not isinstance(model, nn.Module) and hasattr(model, "fit") and hasattr(model, "predict"):
        method = next(name for name in ("predict_proba", "decision_function", "predict") if hasattr(model, name))
        gives = gives or ("probabilities" if method == "predict_proba" else "logits")
        model, layout = _Estimator(model, method), layout or "flat"
    layout = layout or getattr(model, "layout", None)  # a Command says what it takes
    if not callable(model):
        raise ValueError(
            "a model must be a torch module, the path of an ONNX file, a scikit-learn estimator or a function, got "
            f"{type(model).__name__}"
        )
    return ImageModel(model, layout=layout, output=output, gives=gives or "logits", batch_size=batch_size)


def check_model(model: Any, images: ArrayLike | Tensor) -> Tensor:
    """Call a model twice on the same images, and refuse one whose answers differ.

    Parameters
    ----------
    model : object
        What :func:`as_model` takes.
    images : (n, h, w) or (n, h, w, c) array, or (n, c, h, w) tensor
        Images to call it with.

    Returns
    -------
    Tensor, shape (n, ...)
        The answers.

    Raises
    ------
    ValueError
        If answers are not finite numbers with one entry per image, or change from call to call.

    Examples
    --------
    >>> check_model(lambda images: images.mean((1, 2)), np.ones((2, 5, 5), np.float32))
    tensor([1., 1.])
    """
    batch, call = as_model(model).on(images)
    with evaluation(model):
        first, second = call(batch), call(batch)
    difference = float((first - second).abs().max() / first.abs().max().clamp(min=1e-12))
    if difference > 1e-4:
        raise ValueError(
            f"the model's answers to the same images differ by {difference:.2g} of their size from call to call; "
            "switch off dropout and random augmentation inside it, or average several calls in a function"
        )
    return first


def from_arranged(images: Tensor, layout: str) -> NDArray:
    """(n, c, h, w) tensor to an array of a layout."""
    if layout == "nchw":
        return images.detach().cpu().numpy()
    if layout == "flat":
        array = from_batch(images, channels=True)
        return array.reshape(len(array), -1)
    return from_batch(images, channels=layout == "nhwc")


def _arranged(images: Tensor, layout: str | None) -> Tensor:
    """The tensor of a layout that a torch module takes."""
    channels_last = images.movedim(1, -1)
    if layout == "nhw":
        return channels_last[..., 0]
    return channels_last.flatten(1) if layout == "flat" else channels_last


class _Estimator:
    """One method of a scikit-learn estimator."""

    def __init__(self, estimator: Any, method: str) -> None:
        self._estimator, self._method = estimator, method

    def __call__(self, rows: NDArray) -> NDArray:
        answer = np.asarray(getattr(self._estimator, self._method)(rows))
        return answer[:, None] if answer.ndim == 1 else answer


def _onnx_session(path: str) -> tuple[Callable[[NDArray], Any], str, tuple[int | None, ...]]:
    """A function that runs an ONNX file, the layout of its input, and its (n, c, h, w) as far as they are fixed."""
    refuse_code(path)
    if any(find_spec(name) is None for name in ("onnx", "onnxruntime")):
        raise ValueError(f"{path} needs the packages onnx and onnxruntime: pip install 'unpose[onnx]'")
    onnx, runtime = import_module("onnx"), import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = _FATAL  # what is wrong is in the error
    try:
        content = read_file(path, _MAX_BYTES)
        # Weights in other files are followed to any place by some versions of onnxruntime.
        if any(each.external_data or each.data_location for each in _tensors(onnx.load_from_string(content), onnx)):
            raise ValueError(
                "its weights are in other files, which are not read; write one file, with external_data=False of "
                "torch.onnx.export"
            )
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no common class
        raise ValueError(f"{path} cannot be read as an ONNX model: {first_line(error)}") from error
    inputs, outputs = session.get_inputs(), session.get_outputs()
    if len(inputs) != 1 or len(inputs[0].shape) not in (2, 4):
        shapes = ", ".join(f"{one.name} {one.shape}" for one in inputs)
        raise ValueError(f"{path} must have one input, (n, c, h, w), (n, h, w, c) or (n, pixels), got {shapes}")
    shape = inputs[0].shape
    layout = "flat" if len(shape) == 2 else "nhwc" if shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4) else "nchw"
    kind = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}.get(
        inputs[0].type
    )
    if kind is None:
        raise ValueError(f"{path} must take floating-point images, its input is {inputs[0].type}")

    batch_size = shape[0] if isinstance(shape[0], int) else None

    def run(images: NDArray) -> Any:
        n = len(images)
        if batch_size is not None and n < batch_size:  # the last batch is filled up with copies of its last image
            images = np.concatenate([images, np.repeat(images[-1:], batch_size - n, axis=0)])
        answers = [answer[:n] for answer in session.run(None, {inputs[0].name: images.astype(kind)})]
        return answers[0] if len(answers) == 1 else dict(zip([one.name for one in outputs], answers, strict=True))

    sizes = [size if isinstance(size, int) else None for size in shape]
    order = {"nchw": (0, 1, 2, 3), "nhwc": (0, 3, 1, 2)}.get(layout)
    return run, layout, tuple(sizes[i] for i in order) if order else (batch_size, None, None, None)


def _tensors(message: Any, onnx: Any) -> Iterator[Any]:
    """All tensors of an ONNX model, wherever they are: in graphs, functions and attributes."""
    if isinstance(message, onnx.TensorProto):
        yield message
    for _, value in message.ListFields():
        parts = [value] if hasattr(value, "ListFields") else value if isinstance(value, Sequence) else ()
        for part in parts:
            if hasattr(part, "ListFields"):
                yield from _tensors(part, onnx)
            else:
                break


def _describe(answer: Any) -> str:
    if isinstance(answer, dict):
        return f"a dictionary with the entries {', '.join(map(repr, answer))}"
    return f"a {type(answer).__name__} of {len(answer)}" if hasattr(answer, "__len__") else type(answer).__name__


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
