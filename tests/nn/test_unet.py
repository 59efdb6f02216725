"""U-Nets of group convolutions: answers on the group and vectors turn with the image."""

import pytest
import torch

from kit.networks import contrasted
from unpose.audit import equivariance_error
from unpose.groups import parse
from unpose.nn import equivariant_unet


def small(group, **options):
    torch.manual_seed(2)
    return contrasted(equivariant_unet(group, 2, 3, 9, width=3, levels=3, **options))


@pytest.mark.equivariance
def test_regular_and_vector_answers_turn(generator):
    images = torch.rand(3, 2, 9, 9, generator=generator)
    assert equivariance_error(small("d4", output="regular"), images, "d4", "regular image").holds(1e-5)
    vectors = small("d4", output="vector")
    with torch.no_grad():
        given, turned, mirrored = (vectors(x) for x in (images, images.rot90(1, (-2, -1)), images.flip(-1)))
    elements = parse("d4").elements[:, :2, :2].float()
    for element, moved, found in ((1, given.rot90(1, (-2, -1)), turned), (4, given.flip(-1), mirrored)):
        wanted = torch.einsum("ij,bvjyx->bviyx", elements[element], moved)
        assert torch.allclose(found, wanted, atol=1e-5 * wanted.abs().max().item())


def test_other_answers_are_refused():
    with pytest.raises(ValueError, match="scalar, regular, vector"):
        equivariant_unet("c4", 1, 1, 8, output="mask")
