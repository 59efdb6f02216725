"""Planted defects: every one is found, its module is named, and the same models without it raise no alarm."""

import itertools

import pytest
import torch
from defect_networks import DEVELOPED, KEPT, build
from further_defects import FURTHER
from last_defects import LAST, TAUGHT
from released_attention import ReleasedGroupAttention

from unpose.audit import assert_equivariant, audit_model, equivariance_error, probe_images, smooth_noise

CASES = {**DEVELOPED, **KEPT, **FURTHER, **LAST, **TAUGHT}
# This defect is found, but the module before it is named: the cosines that it makes move in no way that is known.
CASES.pop("rows of cosines weighted")


def runs(case, broken):
    """All combinations of group, precision and size at which a case is tried."""
    return list(itertools.product(case.groups, case.precisions, case.sizes if broken else case.clean_sizes))


def judge(case, group, precision, size, broken):
    """What is wrong with the audit of one model; empty if it is right."""
    model = build(case, group, size, broken, precision)
    audit = audit_model(model, probe_images(case.channels, (size, size)), group, measure=False, sizes=())
    if not broken:
        return "" if audit.holds else f"false alarm: {audit.summary()}"
    if audit.verdict != case.verdict:
        return f"{case.verdict} was called {audit.verdict}: {audit.summary()}"
    return "" if case.module in (None, audit.cause) else f"{case.module} was wanted, {audit.cause} was named"


@pytest.mark.parametrize("number", range(0, len(CASES), 5))
def test_a_defect_is_found_or_a_clean_model_passes(number):
    # One run of every fifth case here, with and without its defect in turn; the slow test does all of them.
    name, case = list(CASES.items())[number]
    broken = number % 2 == 0
    group, precision, size = runs(case, broken)[number % len(runs(case, broken))]
    assert not judge(case, group, precision, size, broken), name


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", CASES)
def test_every_defect_at_every_group_size_and_precision(name):
    case = CASES[name]
    wrong = [
        (*run, broken, message)
        for broken in (True, False)
        for run in runs(case, broken)
        if (message := judge(case, *run, broken))
    ]
    assert not wrong


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["crop off centre", "anisotropic kernel", "moments about a corner", "flatten and linear"]
)
def test_eight_rotations_are_judged_by_their_quarter_turns(name):
    case = CASES[name]
    audit = audit_model(build(case, "c4", 9, True, torch.float32), probe_images(2, (9, 9)), "c8", sizes=())
    assert audit.verdict == "broken"
    assert case.module in (None, audit.cause)


@pytest.mark.parametrize("size", [11, 14])
def test_under_eight_rotations_a_round_function_stays_within_the_floor(size):
    moments = CASES["moments about a corner"].make("c8", size, False)
    assert audit_model(moments, smooth_noise(4, 2, (size, size)), "c8", sizes=()).holds


@pytest.mark.parametrize("group", ["c4", pytest.param("c8", marks=pytest.mark.slow)])
def test_the_released_group_attention_is_not_equivariant(group):
    torch.manual_seed(0)
    order = int(group[1:])
    maps = torch.randn(2, 4, order, 5, 5, generator=torch.Generator().manual_seed(1))
    released, right = (ReleasedGroupAttention(group, 4, 3, 4, 1, right) for right in (False, True))
    measured = equivariance_error(released.double(), maps.double(), group, "regular image", input="regular image")
    assert measured.worst_exact > 0.01
    with pytest.raises(AssertionError, match=r"turn .*module \(network\) breaks it"):
        assert_equivariant(released, group, maps, input="regular image", actions="regular image")
    if group == "c4":
        assert_equivariant(right, group, maps, input="regular image", actions="regular image")
