"""audit_modules: networks broken on purpose are caught, the module is named, and nobody else."""

import pytest
import torch
from torch import nn

from kit.group_networks import (
    AbsolutePositions,
    Block,
    GroupConvolution,
    Lifting,
    Network,
    PoolGroupAndPixels,
    PoolPixels,
)
from kit.tensors import normal
from unpose.audit import audit_modules, equivariance_error, smooth_noise


class WrongRoll(GroupConvolution):
    """A group convolution that rolls the group axis the wrong way round."""

    def relative(self, h):
        return self.group.product[h]


class RolledAxis(nn.Module):
    """One step along the group axis, as if every group were cyclic."""

    def forward(self, x):
        return x.roll(1, dims=2)


class Transposed(nn.Module):
    """Rows taken for columns, as a reshape with swapped sizes does."""

    def forward(self, x):
        return x.reshape(*x.shape[:-2], x.shape[-1], x.shape[-2])


class PositionsInForward(Network):
    """The network's own forward adds a position code: no module does it."""

    def forward(self, x):
        ramp = torch.arange(x.shape[-1], dtype=x.dtype) / x.shape[-1]
        return self.head(self.pool(self.last((self.block(self.lift(x)) + ramp).tanh())))


@pytest.mark.parametrize(("group", "frame"), [("c4", (7, 7)), ("d1", (8, 8)), ("c4", (5, 9)), ("d4", (5, 9))])
def test_a_right_network_has_no_culprit(group, frame):
    found = audit_modules(Network(group), smooth_noise(3, 2, frame), group)
    assert found.error < 1e-6
    assert found.culprits == ()
    moves = {row.name: (row.input_kind, row.output_kind) for row in found.rows}
    assert moves["lift"] == ("image", "regular image, axis 2")
    assert moves["last"] == ("regular image, axis 2", "regular image, axis 2")
    assert moves["pool"] == ("regular image, axis 2", "invariant")
    assert all(row.own_error < 1e-6 for row in found.rows)


BROKEN = {
    "odd pooling": ("c4", (7, 7), "extra", PoolPixels),
    "absolute encoding": ("c4", (7, 7), "extra", lambda: AbsolutePositions(7)),
    "strong absolute encoding": ("d1", (7, 7), "extra", lambda: AbsolutePositions(7, strength=30)),
    "rolled axis in a block": ("d4", (6, 6), "block.inside", RolledAxis),
    "rolled the wrong way": ("c4", (7, 7), "last", lambda: WrongRoll),
    "transposed, half turns": ("d1", (5, 9), "extra", Transposed),
}


@pytest.mark.parametrize("case", BROKEN)
def test_the_module_broken_on_purpose_is_named_and_no_other(case):
    group, frame, culprit, part = BROKEN[case]
    network, images = Network(group, **{culprit.split(".")[-1]: part()}), smooth_noise(3, 2, frame)
    assert not equivariance_error(network, images, group).holds()
    found = audit_modules(network, images, group)
    assert found.error > 1e-3
    assert found.culprits == (culprit,)
    assert f"breaks {group}: {culprit}" in str(found)
    guilty = [row for row in found.rows if "breaks it" in row.remark]
    assert [row.name for row in guilty] == [culprit]
    # those after it receive what is broken, and are cleared all the same
    after = [row for row in found.rows if row.name in ("last", "pool", "head") and row.name != culprit]
    assert after[-1].input_error > 1e-3
    assert all(row.own_error < 1e-6 for row in after)


def test_rolling_the_axis_of_a_cyclic_group_is_no_mistake():
    # A step along a cyclic axis multiplies from the right, the group acts from the left: they commute.
    assert audit_modules(Network("c4", extra=RolledAxis()), smooth_noise(3, 2, (7, 7)), "c4").culprits == ()


def test_what_a_forward_does_between_its_modules_is_found_there():
    found = audit_modules(PositionsInForward("c4"), smooth_noise(3, 2, (7, 7)), "c4")
    assert found.culprits == ("(network)",)
    assert "in its own forward, before last" in found.rows[0].remark


def test_two_culprits_are_both_named():
    network = nn.Sequential(
        Lifting("c4", 2, 3),
        AbsolutePositions(7, 0.05),
        GroupConvolution("c4", 3, 3),
        PoolPixels(),
        PoolGroupAndPixels(),
    )
    found = audit_modules(network, smooth_noise(3, 2, (7, 7)), "c4")
    assert found.culprits == ("1", "3")


def test_pixels_flattened_into_features_are_named():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 3, 1), nn.Flatten(), nn.Linear(3 * 49, 4))
    found = audit_modules(network, smooth_noise(3, 2, (7, 7)), "c4")
    assert found.culprits == ("2",)  # listing the pixels loses nothing; a weight for each of them does
    assert found.rows[2].output_kind == "flat image"


def test_a_plain_convolution_is_the_culprit_of_a_plain_network():
    torch.manual_seed(0)
    head = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 4)
    network = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), *head)
    found = audit_modules(network, smooth_noise(3, 2, (8, 8)), "c4")
    assert found.culprits == ("0",)
    # four features and four elements: a vector that does not move is not taken for one on the group
    assert [row.own_error for row in found.rows[2:]] == pytest.approx([0] * 4, abs=1e-6)


def test_features_as_many_as_elements_do_not_confuse():
    network = nn.Sequential(Lifting("c4", 2, 4), RolledAxis(), GroupConvolution("c4", 4, 4), PoolGroupAndPixels())
    found = audit_modules(network, smooth_noise(4, 2, (4, 4)), "c4")
    assert found.culprits == ()
    assert found.rows[2].input_kind == "regular image, axis 2"


def test_the_output_may_move():
    network = nn.Sequential(Lifting("d4", 2, 3), Block(GroupConvolution("d4", 3, 3)))
    images = smooth_noise(3, 2, (6, 6))
    assert audit_modules(network, images, "d4", "regular image").culprits == ()
    assert audit_modules(network, images, "d4", "image").error > 1e-2
    inner = normal(2, 3, 8, 5, 5)
    assert audit_modules(network[1], inner, "d4", "regular image", input="regular image", group_axis=2).error < 1e-6


def test_a_continuous_group_is_judged_by_its_quarter_turns():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.AdaptiveAvgPool2d(1))
    found = audit_modules(network, smooth_noise(3, 2, (7, 7)), "se2+mirror")
    assert len(found.elements) == 7
    assert found.culprits == ("0",)


class Gate(nn.Module):
    """Two inputs that move differently, one by keyword: maps on the group, and one number per image and channel."""

    def forward(self, maps, *, by):
        return {"maps": maps * by[:, :, None, None, None], "by": [by]}


class Gated(nn.Module):
    def __init__(self, spoilt):
        super().__init__()
        self.lift, self.pool, self.gate = Lifting("c4", 2, 4), PoolGroupAndPixels(), Gate()
        self.after = AbsolutePositions(6) if spoilt else nn.Identity()

    def forward(self, x):
        maps = self.lift(x)
        gated = self.gate(maps, by=self.pool(maps))
        return self.after(gated["maps"]) * gated["by"][0][:, :, None, None, None]


@pytest.mark.parametrize("spoilt", [False, True])
def test_modules_of_several_inputs_and_outputs(spoilt):
    found = audit_modules(Gated(spoilt), smooth_noise(3, 2, (6, 6)), "c4", "regular image")
    assert found.culprits == (("after",) if spoilt else ())
    (gate,) = (row for row in found.rows if row.name == "gate")
    assert gate.input_kind == gate.output_kind == "regular image, axis 2 & invariant"


def test_tensors_are_seen_before_a_module_works_in_place():
    network = nn.Sequential(Lifting("c4", 2, 3), nn.ReLU(inplace=True), PoolGroupAndPixels())
    found = audit_modules(network, smooth_noise(3, 2, (7, 7)), "c4")
    assert [row.own_error for row in found.rows] == pytest.approx([0] * 4, abs=1e-6)


def test_nothing_is_left_on_the_network():
    network = Network("c4")
    audit_modules(network, smooth_noise(3, 2, (7, 7)), "c4")
    assert network.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())


class Undecided(nn.Module):
    """Takes another path for some images."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.ReLU(), nn.Tanh()

    def forward(self, x):
        return (self.left if x[0, 0, 0, 0] > x[0, 0, -1, -1] else self.right)(x)


@pytest.mark.parametrize(
    ("make", "group", "options", "message"),
    [
        (Network, "c3", {}, "no quarter turn or mirror"),
        (Network, "translation", {}, "no quarter turn or mirror"),
        (lambda: lambda x: x, "c4", {}, "torch module"),
        (Undecided, "c4", {"output": "image"}, "different modules"),
        (lambda: nn.Conv2d(2, 3, 3), "c4", {"output": "regular"}, "must have 4 entries"),
        (lambda: nn.Sequential(nn.Flatten(0), nn.Linear(294, 5)), "c4", {}, "one row per input"),
    ],
)
def test_wrong_calls_say_what_is_wrong(make, group, options, message):
    with pytest.raises(ValueError, match=message):
        audit_modules(make(), smooth_noise(3, 2, (7, 7)), group, **options)


def test_a_network_of_one_size_says_so():
    network = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.LayerNorm([3, 5, 7]))
    with pytest.raises(ValueError, match=r"fails on inputs transformed by 'turn 90', \(3, 2, 7, 5\)"):
        audit_modules(network, smooth_noise(3, 2, (5, 7)), "c4", "image")
    assert audit_modules(network, smooth_noise(3, 2, (5, 7)), "c2", "image").culprits == ("0",)
