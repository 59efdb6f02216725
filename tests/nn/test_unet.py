"""U-Nets of group convolutions: masks and vectors move with the image, exactly for quarter turns and mirrors."""

import pytest
import torch

from unpose.audit import equivariance_error
from unpose.groups import parse
from unpose.nn import equivariant_unet, rebuild


def small(group, **options):
    torch.manual_seed(2)
    network = equivariant_unet(group, 2, 3, 9, width=3, levels=3, **options)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, torch.nn.BatchNorm3d):  # statistics as after training
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2.0)
                module.bias.normal_()
    return network.eval()


@pytest.mark.equivariance
@pytest.mark.parametrize(("group", "size"), [("c4", (9, 9)), ("d4", (10, 13)), ("d1", (8, 11))])
def test_masks_move_with_the_image(group, size, generator):
    images = torch.rand(3, 2, *size, generator=generator)
    report = equivariance_error(small(group), images, group, "image")
    assert report.holds(1e-5), report.table()
    assert report.control_error > 1e-2


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


def test_a_network_is_rebuilt_from_its_description(generator):
    network, images = small("c4"), torch.rand(1, 2, 7, 12, generator=generator)
    again = rebuild(network.description).eval()
    again.load_state_dict(network.state_dict())
    assert torch.equal(again(images), network(images))
    with pytest.raises(ValueError, match="scalar, regular, vector"):
        equivariant_unet("c4", 1, 1, 8, output="mask")
