"""Residual group convolution networks: invariance with a control, encoders without a head, errors."""

import pytest
import torch

from unpose.images import mirror
from unpose.nn import count_parameters, group_resnet, rebuild
from unpose.train import baseline_description

pytestmark = pytest.mark.equivariance


def encoder(group, generator):
    torch.manual_seed(0)
    network = group_resnet(group, 2, 0, (11, 14), widths=(3, 5), depths=(1, 2), head=None)
    network(torch.rand(7, 2, 11, 14, generator=generator))  # gives the norms other statistics than 0 and 1
    return network.eval().requires_grad_(False)


@pytest.mark.parametrize(("group", "mirrored"), [("c4", False), ("d4", True)])
def test_vectors_do_not_change_under_the_group_and_change_under_a_control(group, mirrored, generator):
    network, images = encoder(group, generator), torch.rand(3, 2, 11, 14, generator=generator)
    vectors = network(images)
    assert vectors.shape == (3, 32)
    turned = network(images.rot90(1, (2, 3)))
    flipped = network(mirror(images))
    torch.testing.assert_close(turned, vectors, atol=1e-5, rtol=1e-4)
    change = float((flipped - vectors).abs().max())
    assert change < 1e-5 if mirrored else change > 1e-3
    assert float((network(images.roll(1, 1)) - vectors).abs().max()) > 1e-3  # exchanged channels are another image


def test_an_encoder_is_described_by_the_length_of_its_vectors():
    network = group_resnet("c4", 1, 99, 8, widths=(2, 3), depths=(1, 1), head=None)
    assert network.description["n_classes"] == 20
    assert rebuild(network.description).description == network.description
    plain = rebuild(baseline_description(network.description))
    assert plain.group.order == 1
    assert count_parameters(plain) >= count_parameters(network)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": (2,), "depths": (1, 1)}, "equally many positive numbers"),
        ({"widths": (), "depths": ()}, "equally many positive numbers"),
        ({"widths": (2, 0), "depths": (1, 1)}, "equally many positive numbers"),
        ({"head": "mask"}, "'classes' or None, got 'mask'"),
    ],
)
def test_wrong_arguments_raise_errors_that_say_what_is_needed(options, message):
    with pytest.raises(ValueError, match=message):
        group_resnet("c4", 1, 3, 8, **options)
