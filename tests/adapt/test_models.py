"""Any model is called in one way, wrong answers are refused, and nothing of the model is changed."""

import sys

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from torch import nn

from unpose.adapt import (
    as_model,
    canonicalize,
    check_model,
    fit_canonicalizer,
    gate_threshold,
    learned,
    moments,
    symmetrize,
    try_adaptations,
)


def network(channels=1, side=7):
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(channels, 5, 3), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(5 * (side - 2) ** 2, 3))


@pytest.fixture
def images(generator):
    return torch.rand(4, 1, 7, 7, generator=generator)


def test_a_function_gets_what_the_wrapped_model_gets(images):
    seen = []

    def model(given):
        seen.append((type(given), given.shape))
        return given.reshape(len(given), -1)[:, :2]

    array = images[:, 0].numpy()
    for given in (images, array, array[..., None]):
        as_model(model).on(given)[1](as_model(model).on(given)[0])
    assert seen == [
        (torch.Tensor, (4, 1, 7, 7)), (np.ndarray, (4, 7, 7)), (np.ndarray, (4, 7, 7, 1)),
    ]  # fmt: skip


def test_an_estimator_gets_rows_and_gives_probabilities(images):
    rows = images.flatten(1).numpy()
    classes = [0, 1, 0, 1]
    fitted = LogisticRegression().fit(rows, classes)
    model = as_model(fitted)
    assert torch.allclose(model(images), torch.from_numpy(fitted.predict_proba(rows)).float(), atol=1e-6)
    assert model.gives == "probabilities"
    averaged = symmetrize(fitted, "c4")(images[:, 0].numpy())
    assert isinstance(averaged, np.ndarray)
    assert np.allclose(averaged.sum(1), 1, atol=1e-6)
    decisions = as_model(RidgeClassifier().fit(rows, classes))
    assert decisions.gives == "logits"
    assert decisions(images).shape == (4, 1)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x: (x, x), "a tuple of 2; say which entry"),
        (lambda x: {"a": x, "b": x}, "entries 'a', 'b'; say which entry"),
        (lambda x: x[:2], "one output per input"),
        (lambda x: x / 0 * 0, "NaN or infinite"),
        (lambda x: x.argmax(1), "return scores"),
        (lambda x: "cat", "must return a tensor or an array, got str"),
    ],
)
def test_wrong_answers_are_refused(images, answer, message):
    with pytest.raises(ValueError, match=message):
        symmetrize(answer, "c4", over="logits")(images)


def test_the_entry_that_is_the_answer_can_be_named(images):
    for model, output in (
        (lambda x: (x, x[:, :, 0, 0]), 1),
        (lambda x: {"out": x[:, :, 0, 0]}, "out"),
        (lambda x: {"out": x}, lambda answer: answer["out"][:, :, 0, 0]),
    ):
        assert torch.equal(as_model(model, output=output)(images), images[:, :, 0, 0])
    with pytest.raises(ValueError, match="has no entry 'logits'"):
        as_model(lambda x: {"out": x}, output="logits")(images)


def test_the_image_on_which_a_model_fails_is_named(images):
    bright = images.clone()
    bright[2] += 5

    def picky(x):
        if x.max() > 2:
            raise RuntimeError("too bright")
        return x.flatten(1)

    with pytest.raises(ValueError, match=r"fails on image 2 of 4 \(1 such images in all\): too bright"):
        as_model(picky)(bright)

    def single(x):
        if len(x) > 1:
            raise RuntimeError("one at a time")
        return x.flatten(1)

    with pytest.raises(ValueError, match="set batch_size=1"):
        as_model(single)(images)
    assert torch.equal(as_model(single, batch_size=1)(images), images.flatten(1))


def test_a_random_model_is_refused(images):
    with pytest.raises(ValueError, match=r"differ by .* from call to call"):
        check_model(lambda x: torch.randn(len(x), 3), images)
    with_dropout = nn.Sequential(nn.Flatten(), nn.Dropout())  # is in training mode, and measured in evaluation mode
    assert torch.equal(check_model(with_dropout, images), images.flatten(1))
    assert with_dropout.training


def test_a_function_that_writes_into_its_input_does_no_harm(images):
    before = images.clone()
    symmetrize(lambda x: x.mul_(0).flatten(1), "c4", over="logits")(images)
    assert torch.equal(images, before)


def test_nothing_of_the_model_is_changed(images):
    model = network().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    symmetrize(model, "d4")(images)
    canonicalize(model, moments("se2"), gate=images)(images)
    after = model.state_dict()
    assert not model.training
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_gradients_reach_the_image_and_the_model(images):
    model = network().eval()
    given = images.clone().requires_grad_()
    symmetrize(model, "c8")(given)[:, 0].sum().backward()
    assert given.grad.abs().sum() > 0
    assert model[0].weight.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.rand(4, 7, 7), r"must be \(n, c, h, w\)"),
        (torch.ones(4, 1, 7, 7, dtype=torch.uint8), "floating point"),
        (np.full((2, 7, 7), np.nan), "NaN"),
        (np.zeros((0, 7, 7)), "no images"),
    ],
)
def test_wrong_images_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        symmetrize(network().eval(), "c4")(given)


def test_wrong_models_and_options_are_refused(tmp_path):
    with pytest.raises(ValueError, match="a model must be a torch module"):
        as_model(3)
    with pytest.raises(ValueError, match="layout must be one of"):
        as_model(network(), layout="chw")
    with pytest.raises(ValueError, match="gives must be one of"):
        as_model(network(), gives="scores")
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        as_model(network(), batch_size=0)


@pytest.mark.extra("onnx")
def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "damaged.onnx").write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"damaged\.onnx cannot be read as an ONNX model"):
        as_model(tmp_path / "damaged.onnx")


def test_a_missing_package_is_named(tmp_path, monkeypatch):
    (tmp_path / "any.onnx").write_bytes(b"no model")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ValueError, match=r"pip install 'unpose\[onnx\]'"):
        as_model(tmp_path / "any.onnx")


def tiny_onnx(path, batch, layout="nchw"):
    """A file whose answer is the sum over the pixels of each channel."""
    import onnx

    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    shape = [batch, 1, 7, 7] if layout == "nchw" else [batch, 7, 7, 1]
    axes = helper.make_tensor("axes", onnx.TensorProto.INT64, [2], [2, 3] if layout == "nchw" else [1, 2])
    node = helper.make_node("ReduceSum", ["images", "axes"], ["sums"], keepdims=0)
    inputs = [helper.make_tensor_value_info("images", kind, shape)]
    outputs = [helper.make_tensor_value_info("sums", kind, [batch, 1])]
    graph = helper.make_graph([node], "sums", inputs, outputs, [axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)
    return path


@pytest.mark.extra("onnx")
@pytest.mark.parametrize(("batch", "layout"), [("n", "nchw"), (3, "nchw"), ("n", "nhwc")])
def test_an_onnx_file_is_a_model(tmp_path, images, batch, layout):
    model = as_model(tiny_onnx(tmp_path / "sums.onnx", batch, layout))
    assert model.layout == layout
    assert torch.allclose(model(images), images.sum((2, 3)), atol=1e-5)
    turned = symmetrize(model, "c4", over="logits")(images)
    assert torch.allclose(turned, images.sum((2, 3)), atol=1e-5)


def upper_half(x):
    return torch.stack([x[:, 0, :4].mean((1, 2)), x[:, 0, 5:].mean((1, 2))], 1)


def test_a_gate_is_set_on_images_that_train_nothing_and_the_callers_generator_is_left_alone(generator):
    images, held = torch.rand(64, 1, 9, 9, generator=generator), slice(6, None, 8)
    others = images.clone()
    others[held] = others[held].flip(0, 3)
    before, found = torch.get_rng_state(), []
    for given in (images, others):
        trials = {trial.name: trial.model for trial in try_adaptations(upper_half, given, group="c4", steps=2)}
        found.append(trials["learned, gate"])
        assert found[-1].gate == gate_threshold(found[-1].canonicalizer, given[held])
    assert torch.equal(torch.get_rng_state(), before)
    one, other = (gated.canonicalizer.state_dict() for gated in found)
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert found[0].gate != found[1].gate


@pytest.mark.parametrize(
    "use",
    [
        lambda images, labels: try_adaptations(upper_half, images, labels, "c4", steps=0),
        lambda images, labels: fit_canonicalizer(
            upper_half, images, labels, canonicalizer=learned("c4", 1, width=2, stages=(1,)), steps=1
        ),
    ],
    ids=["try_adaptations", "fit_canonicalizer"],
)
def test_labels_number_the_scores_of_the_model_from_zero(use, generator):
    images = torch.rand(6, 1, 9, 9, generator=generator)
    with pytest.raises(ValueError, match="from 0 to 1, got 1 to 2; subtract 1 from labels that are counted from 1"):
        use(images, [1, 2, 1, 2, 1, 1])
    with pytest.raises(ValueError, match=r"from 0 to 1, got -1 to 1$"):
        use(images, [0, 1, -1, 0, 1, 1])


def test_nothing_is_trained_for_a_model_that_is_as_good_on_turned_images(generator):
    images = torch.rand(60, 1, 9, 9, generator=generator)

    def tried(model):
        return [trial.name for trial in try_adaptations(model, images, group="c4", steps=1)]

    assert tried(lambda x: torch.stack([x.mean((1, 2, 3)), x.amax((1, 2, 3)) - 0.48], 1)) == ["plain", "mean over c4"]
    assert tried(upper_half) == ["plain", "mean over c4", "learned", "learned, gate", "learned, 2 views"]
