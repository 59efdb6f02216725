"""Residual group convolution networks: encoders without a head, errors."""

import pytest
import torch

from unpose.nn import count_parameters, group_resnet, rebuild
from unpose.train import baseline_description


def test_an_encoder_is_described_by_the_length_of_its_vectors():
    network = group_resnet("c4", 1, 99, 8, widths=(2, 3), depths=(1, 1), head=None)
    assert network(torch.rand(5, 1, 8, 11)).shape == (5, 20)
    assert network.description["n_classes"] == 20
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
