"""audit_model and assert_equivariant: anything callable, every kind of output, and models that misbehave."""

import json
import sys

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from torch import nn

from kit.group_networks import GroupConvolution, Lifting
from kit.tensors import uniform
from unpose.audit import (
    Command,
    ModelCallError,
    as_model,
    assert_equivariant,
    audit_model,
    check_calls,
    equivariance_error,
    probe_images,
    smooth_noise,
)
from unpose.groups import rotation
from unpose.images import quarter_turn

IMAGES = smooth_noise(6, 1, (9, 9))
ARRAYS = IMAGES[:, 0].numpy()


def fast(model, images=IMAGES, group="d4", **options):
    return audit_model(model, images, group, measure=False, sizes=(), **options)


def squares_about_the_mean(x):
    return (x - x.mean((2, 3), keepdim=True)).square()


def centre_of_mass(x, origin=0.0):
    w, place = squares_about_the_mean(x).mean(1), torch.arange(x.shape[-1], dtype=x.dtype) - (x.shape[-1] - 1) / 2
    size = w.sum((-2, -1))
    return torch.stack([(w * place).sum((-2, -1)), (w * place[:, None]).sum((-2, -1))], -1) / size[:, None] + origin


def orientation(x):
    """The pose of an image, from its centre of mass: (n, 3, 3), image from canonical."""
    x0 = centre_of_mass(x)
    return rotation(-torch.atan2(x0[:, 1], x0[:, 0]))


OUTPUTS = {
    "scores": (lambda x: squares_about_the_mean(x).mean((2, 3)), "d4", "invariant"),
    "labels": (lambda x: (100 * squares_about_the_mean(x).mean((1, 2, 3))).long(), "d4", "invariant"),
    "mask": (lambda x: x > 0.5, "d4", "image"),
    "map": (lambda x: x.square(), "d4", "image"),
    "map, channels last": (lambda x: x.expand(-1, 5, -1, -1).movedim(1, -1), "d4", "image, channels last"),
    "tokens": (lambda x: x.expand(-1, 5, -1, -1).flatten(2).mT, "d4", "tokens"),
    "canonical image": (
        lambda x: torch.stack([quarter_turn(x, k) for k in range(4)]).flatten(2).sort(0)[0].mean(0), "c4", "invariant"
    ),
    "lifted": (lambda x: Lifting("c4", 1, 3)(x), "c4", "regular image, axis 2"),
    "lifted, by inverses": (
        lambda x: torch.stack([quarter_turn(x, k)[..., 0, 0] for k in range(4)], 2),
        "c4", "regular, axis 2, order 0 3 2 1",
    ),
    "vectors": (centre_of_mass, "d4", "vectors: xy"),
    "vectors, y first": (lambda x: centre_of_mass(x).flip(-1), "d4", "vectors: yx"),
    "keypoints": (lambda x: centre_of_mass(x, 4.0), "d4", "keypoints: xy pixel"),
    "boxes": (lambda x: torch.cat([centre_of_mass(x, 3.5), centre_of_mass(x, 5.5)], -1), "d4", "boxes: xyxy corner"),
    "poses": (orientation, "c4", "poses: image from canonical"),
    "gradient field": (lambda x: torch.cat(torch.gradient(x, dim=(3, 2)), 1), "d4", "vector image: xy"),
}  # fmt: skip


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_action_of_an_output_is_found(name):
    f, group, action = OUTPUTS[name]
    audit = fast(f, group=group)
    assert audit.outputs[""].action == action
    assert audit.holds, str(audit)


def test_each_entry_of_a_dictionary_has_its_own_action_and_verdict():
    audit = fast(lambda x: {"map": x, "pair": (x.mean((2, 3)), x.cumsum(-1))}, actions={"map": "image"})
    assert {name: (entry.action, entry.verdict) for name, entry in audit.outputs.items()} == {
        "map": ("image", "equivariant"), "pair.0": ("invariant", "equivariant"), "pair.1": ("image", "broken"),
    }  # fmt: skip
    assert audit.verdict == "broken"
    assert audit.worst.name == "pair.1"
    assert "output 'pair.1'" in audit.summary()


def test_an_audit_is_text_and_json():
    audit = audit_model(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), IMAGES, "c8", sizes=())
    assert "module 0 breaks it" in str(audit).splitlines()[0]
    parsed = json.loads(json.dumps(audit.to_dict()))
    assert parsed["verdict"] == "broken"
    assert parsed["modules"]["culprits"] == ["0"]
    assert len(parsed["reports"][""]["elements"]) == 8
    assert audit.n_calls == 2 + 4 + 2 * 4 + 1


def test_estimators_functions_on_arrays_and_programs():
    rows = ARRAYS.reshape(6, -1)
    classifier = LogisticRegression().fit(rows, [0, 1, 2] * 2)
    assert fast(classifier, ARRAYS).verdict == "broken"
    labels = fast(KMeans(3, n_init=1, random_state=0).fit(rows), ARRAYS)
    assert labels.verdict == "broken"
    assert fast(lambda images: np.sort(images.reshape(len(images), -1), 1), ARRAYS).holds
    code = (
        "import sys, pathlib, numpy as np; from PIL import Image\n"
        "files = sorted(pathlib.Path(sys.argv[1]).iterdir())\n"
        "rows = [f'{f.name},{np.square(np.asarray(Image.open(f), float)).mean():.6f}' for f in files]\n"
        "pathlib.Path(sys.argv[2]).write_text('file,power\\n' + '\\n'.join(rows))"
    )
    program = as_model(Command([sys.executable, "-c", code, "{images}", "{answers}"]))
    powers = program(IMAGES[:2])
    assert powers.shape == (2, 1)
    backwards = code.replace("for f in files]", "for f in files[::-1]]")
    assert as_model(Command([sys.executable, "-c", backwards, "{images}", "{answers}"]))(IMAGES[:2]).equal(powers)
    unnamed = code.replace("{f.name}", "other.png")
    with pytest.raises(ValueError, match=r"none for 000000\.png"):
        Command([sys.executable, "-c", unnamed, "{images}", "{answers}"])(ARRAYS[..., None])
    with pytest.raises(ValueError, match="status 1"):
        Command([sys.executable, "-c", "raise SystemExit('no')", "{images}", "{answers}"])(ARRAYS[..., None])
    with pytest.raises(ValueError, match=r"\{images\} and \{answers\}"):
        Command("program")


class Sometimes(nn.Module):
    """Does something else in one of its calls."""

    def __init__(self, how):
        super().__init__()
        self.how, self.inner = how, nn.Identity()

    def forward(self, x):
        upright = bool(x[0, 0, 0, 0] >= x[0, 0, 0, -1])
        if self.how == "raises" and not upright:
            raise RuntimeError("the picture is the wrong way round")
        return self.inner(x).mean((2, 3)) / (torch.nan if self.how == "nan" and not upright else 1)


def test_models_that_fail_on_some_elements_keep_their_other_results():
    images = IMAGES.clone()
    images[:, :, 0, 0] = 2.0
    for how, verdict in (("raises", "failed"), ("nan", "not finite")):
        audit = audit_model(Sometimes(how), images, "d4", sizes=())
        assert audit.verdict == verdict
        assert audit.failures
        report = audit.reports[""]
        assert np.isnan(report.errors).any()
        assert np.nanmax(report.errors) < 1e-6
        assert not report.holds()
    with pytest.raises(ModelCallError, match="by zero"):
        audit_model(lambda x: 1 // 0, IMAGES, "d4")
    with pytest.raises(ModelCallError, match="needs a GPU"):
        audit_model(lambda x: x.cuda(), IMAGES, "d4")
    assert fast(lambda x: x.mean((2, 3)) / 0).verdict == "not finite"


class RunningMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean()
        return x - self.mean


def test_random_stateful_and_batch_dependent_models_are_told_apart_and_their_module_is_named():
    dropout = nn.Sequential(nn.Identity(), nn.Sequential(nn.Dropout()))
    assert (check_calls(dropout, IMAGES).cause, check_calls(dropout, IMAGES).module) == ("random", "1.0")
    assert check_calls(dropout.eval(), IMAGES).cause == ""
    assert check_calls(lambda x: x + np.random.rand(), IMAGES).cause == "random"  # noqa: NPY002
    found = check_calls(nn.Sequential(nn.Identity(), RunningMean()), IMAGES)
    assert (found.cause, found.module) == ("stateful", "1")
    assert "mean" in found.notes[0]
    batch = check_calls(nn.Sequential(nn.BatchNorm2d(1)), IMAGES)
    assert (batch.cause, batch.module) == ("batch", "0")
    network = nn.Sequential(nn.Dropout(), nn.AdaptiveAvgPool2d(1))
    assert fast(network).holds
    assert fast(network, keep_mode=True).verdict == "random"
    assert network.training
    before = torch.get_rng_state()
    check_calls(dropout, IMAGES)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_network_of_nearly_equal_outputs_is_judged_by_rounding():
    # Weights for which different images give nearly the same output were once called nearly constant.
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1, 3))
    with torch.no_grad():
        network[2].weight.mul_(1e-4)
        network[2].bias.fill_(1.0)
    images = uniform(6, 1, 9, 9)
    measured = equivariance_error(network, images, "c4")
    assert 1e-7 < measured.discrimination < 1e-4
    assert fast(network, images, "c4").holds
    assert equivariance_error(network.double(), images.double(), "c4").holds()
    assert fast(lambda x: torch.ones(len(x), 2)).verdict == "constant"


def test_a_defect_at_some_sizes_only_is_found_by_trying_them():
    with pytest.raises(AssertionError, match="breaks at other sizes: 13, 15 pixels"):
        assert_equivariant(nn.MaxPool2d(2), "d4")
    assert_equivariant(nn.MaxPool2d(2), "d4", probe_images(1, (8, 8)))
    audit = audit_model(nn.MaxPool2d(2), probe_images(1, (8, 8)), "d4", measure=False)
    assert audit.holds
    assert audit.sizes == {9: False, 10: True, 11: False}


def test_one_line_infers_shapes():
    assert_equivariant(Lifting("d4", 2, 3), "d4", probe_images(2, (7, 7)))
    assert_equivariant(nn.Sequential(nn.Conv2d(5, 3, 1), nn.AdaptiveAvgPool2d(1)), "d4")
    assert_equivariant(GroupConvolution("c4", 3, 2), "c4", input="regular image")
    with pytest.raises(AssertionError, match="module 1 breaks it"):
        assert_equivariant(nn.Sequential(nn.Flatten(), nn.Linear(3 * 49, 2)), "d1")
    with pytest.raises(ValueError, match="give images of the right shape"):
        assert_equivariant(lambda x: 1 // 0, "c4")
    assert_equivariant(nn.AdaptiveAvgPool2d(1).bfloat16(), "c4", IMAGES.bfloat16())
    assert_equivariant(lambda x: x + 1e-3 * torch.linspace(0, 1, 9), "c4", IMAGES, tolerance=0.01)


def test_pieces_memory_seed_and_progress_do_not_change_the_numbers():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    whole, steps = audit_model(network, IMAGES, "se2", n_elements=2, sizes=()), []
    pieces = audit_model(
        network,
        IMAGES,
        "se2",
        n_elements=2,
        sizes=(),
        memory=3 * 9 * 9 * 4 * 8,
        progress=lambda *step: steps.append(step),
    )
    np.testing.assert_allclose(whole.reports[""].errors, pieces.reports[""].errors, rtol=1e-5, atol=1e-7)
    again = audit_model(network, IMAGES, "se2", n_elements=2, sizes=())
    assert str(again) == str(whole)
    assert steps[-1][0] == "modules"
    assert ("elements", 7, 7) in steps
    fixed = audit_model(lambda x: x.reshape(6, 81).sort(1)[0], IMAGES, "c4", sizes=())
    assert fixed.holds


def test_an_answer_without_a_row_for_each_image_is_refused_and_what_is_no_numbers_is_left_out():
    assert list(fast(lambda x: [x.mean((2, 3)), None, "x"]).outputs) == ["0"]
    with pytest.raises(ModelCallError, match=r"one row per input \(\d\), got output \(3,\)"):
        fast(lambda x: torch.ones(3))


class Threshold(nn.Module):
    """Doubles images with a bright corner."""

    def forward(self, x):
        return torch.where(x[..., :1, :1] > 1.5, 2 * x, x)


@pytest.mark.parametrize("as_labels", [False, True])
def test_a_mistake_that_shows_for_some_images_only(as_labels):
    images = smooth_noise(30, 1, (9, 9))
    images[20, :, 0, 0] = 2
    network = nn.Sequential(Threshold(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    middle = lambda x: x[..., 3:6, 3:6].mean((1, 2, 3)) > 0.5  # noqa: E731
    model = (lambda x: (network(x) > 0.7)[:, 0].long() + middle(x).long()) if as_labels else network
    audit = audit_model(model, images, "c4", sizes=())
    assert audit.verdict == "broken"
    assert "some of the images" in " ".join(audit.notes)
    assert audit.cause == ("" if as_labels else "0")
    assert audit_model(model, images[:20], "c4", sizes=()).holds


class Cross(nn.Module):
    """Ignores quarter turns only; the entries of its answer are as good or as bad as their names say."""

    def __init__(self):
        super().__init__()
        self.norm, self.rows = nn.BatchNorm2d(1), nn.Conv2d(1, 1, (1, 9))

    def forward(self, x):
        x = self.norm(x)
        arms = x[:, 0, 1, 4] + x[:, 0, 7, 4] + (x[:, 0, 4, 1] + x[:, 0, 4, 7])
        return {"good": torch.stack([arms, x[:, 0, 4, 4]], 1), "bad": self.rows(x).flatten(1)}


def test_a_tolerance_is_no_excuse_between_quarter_turns_and_one_that_is_too_small_fails():
    cross = as_model(Cross(), output="good")
    assert_equivariant(cross, "c4", IMAGES, tolerance=1e-3)
    for tolerance in (None, 1e-3):
        with pytest.raises(AssertionError, match="elements that need interpolation"):
            assert_equivariant(cross, "c8", IMAGES, tolerance=tolerance)
    with pytest.raises(AssertionError, match=r"^not equivariant to c4: .*tolerance 1e-30"):
        assert_equivariant(lambda x: squares_about_the_mean(x).mean((2, 3)), "c4", IMAGES, tolerance=1e-30)


@pytest.mark.parametrize("options", [{"batch_size": 2}, {"output": "good"}, {"output": "bad"}])
def test_a_wrapped_model_is_audited_as_it_was_wrapped(options):
    network = Cross().bfloat16()
    audit = fast(as_model(network, **options), group="c4")
    assert list(audit.outputs) == ([""] if "output" in options else ["good", "bad"])
    assert audit.verdict == ("equivariant" if options.get("output") == "good" else "broken")
    assert audit.cause.endswith("rows") == (options.get("output") == "bad")
    assert network.training
    assert int(network.norm.num_batches_tracked) == 0


def test_the_memory_of_a_call_counts_what_it_returns():
    seen = []
    audit_model(
        lambda x: seen.append(len(x)) or x.expand(-1, 99, -1, -1), IMAGES, "c4", memory=2 * 4 * 8 * 100 * 81, sizes=()
    )
    assert max(seen) == 4  # the few images by which the action is found
    assert seen[-1] == 2
