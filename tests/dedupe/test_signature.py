"""Signatures: laws of turns and mirrors, with pictures that are different as the control."""

import numpy as np
import pytest

from unpose.dedupe import extract_patch, find_regions, signature, signatures


@pytest.fixture(scope="module")
def patches(synthetic):
    frames = [synthetic.picture(seed) for seed in range(7)]
    return np.stack([extract_patch(frame, find_regions(frame)[0]) for frame in frames])


@pytest.mark.laws
@pytest.mark.parametrize("layer", ["whole", "parts"])
def test_quarter_turns_and_mirrors_leave_the_central_view_alone(patches, layer):
    ours = signatures(patches)[layer][:, 0].astype(np.float64)
    control = np.linalg.norm(ours - np.roll(ours, 1, axis=0), axis=1).min()
    for turned in (np.rot90(patches, 1, (1, 2)), np.rot90(patches, 2, (1, 2)), patches[:, :, ::-1]):
        theirs = signatures(np.ascontiguousarray(turned))[layer][:, 0].astype(np.float64)
        assert np.linalg.norm(ours - theirs, axis=1).max() < 0.05 * control


@pytest.mark.laws
def test_coefficients_turn_by_phases_and_mirror_by_conjugation(patches):
    starts = signature.basis_of(signature.WHOLE).starts
    frequency = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    ours = signature.projected(signature.ranks(patches), signature.WHOLE, 0)[:, 0]
    turned = signature.projected(signature.ranks(np.rot90(patches, 1, (1, 2))), signature.WHOLE, 0)[:, 0]
    mirrored = signature.projected(signature.ranks(patches[:, :, ::-1]), signature.WHOLE, 0)[:, 0]
    np.testing.assert_allclose(turned, ours * np.exp(-0.5j * np.pi * frequency), atol=1e-5)
    np.testing.assert_allclose(mirrored, (-1.0) ** frequency * ours.conj(), atol=1e-5)


def test_any_increasing_change_of_brightness_keeps_the_signature(patches):
    brighter = (255 * (patches / 255.0) ** 0.6).astype(np.uint8)
    ours, theirs = (signatures(each)["whole"][:, 0].astype(np.float64) for each in (patches, brighter))
    control = np.linalg.norm(ours - np.roll(ours, 1, axis=0), axis=1).min()
    assert np.linalg.norm(ours - theirs, axis=1).max() < 0.25 * control


def test_a_view_of_the_original_is_the_crop(synthetic):
    # The view (0.9, 0.08, -0.08) of the disc is the disc of a crop: their vectors agree, those of other views do not.
    frame = synthetic.picture(3, (200, 200))
    whole = extract_patch(frame, find_regions(frame)[0])[None]
    cut = frame[2 : 2 + 180, 18 : 18 + 180]  # its centre lies 8 pixels right of and 8 above that of the frame
    part = extract_patch(cut, find_regions(cut)[0])[None]
    theirs = signatures(whole)["whole"][0].astype(np.float64)
    ours = signatures(part)["whole"][0, 0].astype(np.float64)
    apart = np.linalg.norm(theirs - ours, axis=1)
    view = signature.WHOLE.views[int(apart.argmin())]
    assert (view.scale, round(view.x, 2), round(view.y, 2)) == (0.9, 0.08, -0.08)


def test_a_constant_patch_has_a_finite_signature():
    assert all(np.isfinite(vectors).all() for vectors in signatures(np.full((1, 64, 64), 9, np.uint8)).values())


def test_the_pose_of_a_view_maps_its_centre_to_zero():
    view = signature.View(0.6, 0.3, -0.2)
    np.testing.assert_allclose(view.pose @ [0.3, -0.2, 1], [0, 0, 1], atol=1e-12)
    np.testing.assert_allclose(view.pose @ [0.9, -0.2, 1], [1, 0, 1], atol=1e-12)
