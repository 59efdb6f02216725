"""The network for dilations: enlarging an image by one step moves its features to the next scale."""

import pytest
import torch

from kit.networks import contrasted
from unpose.images import pixel_grid
from unpose.nn import count_parameters, rebuild, scale_net, scale_pyramid
from unpose.train import baseline_description

RATIO = 1.5
GROUP = f"dilations(3, {RATIO})"


def blobs(shape, generator, scale):
    """Three smooth blobs about the centre, enlarged by a scale, drawn and not resampled: (1, 2, h, w)."""
    places = 12 * torch.rand(2, 3, 2, generator=generator, dtype=torch.float64) - 6
    grid = pixel_grid(shape, torch.float64) / scale
    gaps = (grid[None, None] - places[:, :, None, None]).square().sum(-1)  # (2, 3, h, w)
    return torch.exp(-gaps / (2 * 3.0**2)).sum(1)[None]


def relative_error(found, wanted):
    return float((found - wanted).norm() / wanted.norm())


@pytest.fixture
def small_and_large(generator):
    """An image, and the same image enlarged together with its frame."""
    seed = generator.get_state()
    small = blobs((46, 54), generator, 1.0)
    generator.set_state(seed)
    return small, blobs((69, 81), generator, RATIO)


def test_a_level_of_an_image_is_the_next_level_of_the_enlarged_image(small_and_large):
    small, large = (scale_pyramid(images, [1, RATIO, RATIO**2]) for images in small_and_large)
    for number in range(2):
        assert large[number + 1].shape == small[number].shape
        assert relative_error(large[number + 1], small[number]) < 0.01
    assert [tuple(each.shape[-2:]) for each in large] == [(69, 81), (46, 54), (31, 36)]


def test_features_and_scores_move_up_by_one_scale(small_and_large):
    torch.manual_seed(0)
    network = contrasted(scale_net(GROUP, 2, 5, (46, 54), widths=(3, 4, 7)), gain=1.0).double()
    small, large = small_and_large
    with torch.no_grad():
        below, above = network.features(small), network.features(large)
        for number in range(2):
            assert relative_error(above[number + 1], below[number]) < 0.02
        scores, moved = network.scores(small), network.scores(large)
    assert scores.shape == (1, 3, 5)
    error = (moved[:, 1:] - scores[:, :-1]).norm()
    control = (moved[:, :-1] - scores[:, :-1]).norm()  # control: the same scale of the enlarged image
    assert error < 0.1 * control


def test_two_steps_of_a_pyramid_are_one(generator):
    images = blobs((60, 84), generator, 1.0)
    (once,) = scale_pyramid(images, [3.0])
    (half,) = scale_pyramid(images, [1.5])
    (twice,) = scale_pyramid(half, [2.0])
    assert relative_error(twice, once) < 0.01


def test_a_pyramid_does_not_alias():
    stripes = (torch.arange(61) % 2).double().expand(1, 1, 53, 61)
    (level,) = scale_pyramid(stripes, [3.0])  # every third pixel without smoothing would be stripes again
    inside = level[..., 4:-4, 4:-4]
    assert inside.std() < 0.01
    assert (inside - 0.5).abs().max() < 0.01


def test_the_probability_of_a_class_is_the_sum_over_its_scales(generator):
    network = scale_net(GROUP, 1, 4, (11, 13), widths=(3, 4)).eval()
    images = torch.rand(2, 1, 11, 13, generator=generator)
    pairs = network.scores(images).flatten(1).softmax(1).unflatten(1, (3, 4))  # of scale and class
    torch.testing.assert_close(network(images).softmax(1), pairs.sum(1))


def test_training_prefers_one_scale_per_image_and_one_scale_has_no_penalty(generator):
    """The penalty is linear in octaves; with one scale, training and evaluation agree."""
    network = scale_net("dilations(4, 2)", 1, 4, (11, 13), widths=(3,))
    step = network.scale_penalty[0, 1]
    assert step > 0
    torch.testing.assert_close(network.scale_penalty, step * torch.tensor([[0.0, 1.0, 2.0, 3.0], [1.0, 0.0, 1.0, 2.0]]))
    images = torch.rand(1, 1, 11, 13, generator=generator).expand(50, -1, -1, -1)
    torch.manual_seed(3)
    trained = network(images)
    options = [(network.scores(images)[:1] - row[:, None]).logsumexp(1) for row in network.scale_penalty]
    matches = torch.stack([(trained - option).abs().amax(1) < 1e-5 for option in options])  # (preferred, images)
    assert matches.sum(0).tolist() == [1] * 50  # each image has one of the two preferred scales
    assert matches.any(1).all()  # and both are drawn
    twin = rebuild(baseline_description(network.description))
    torch.testing.assert_close(twin(images), twin.scores(images)[:, 0])


def test_the_number_of_parameters_does_not_depend_on_the_scales_or_the_kernel():
    network = scale_net("dilations(3, 1.4)", 1, 5, (11, 13), widths=(3, 4))
    for other in ({"group": "dilations(2, 1.2)"}, {"kernel_size": 7}):
        assert count_parameters(rebuild(network.description | other)) == count_parameters(network)


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (5, 31)], ids=str)
def test_small_and_narrow_images_work(size, generator):
    network = scale_net("dilations(4, 2)", 1, 5, size, widths=(3, 4)).eval()
    assert network(torch.rand(2, 1, *size, generator=generator)).shape == (2, 5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scale_net("c4", 1, 5, 11), "needs dilations"),
        (lambda: scale_net("d1", 1, 5, 11), "needs dilations"),
        (lambda: scale_net("dilations(2)", 1, 5, 11, widths=()), "at least one layer"),
        (lambda: scale_net("dilations(2)", 1, 5, 11, kernel_size=4), "odd"),
        (lambda: scale_net("dilations(2)", 1, 5, 11, kernel_size=1), "at least 3"),
        (lambda: scale_net("se2", 1, 5, 11), "finite group"),
    ],
    ids=["turns", "mirror", "no layer", "even kernel", "kernel of one", "continuous"],
)
def test_wrong_arguments_raise_errors_that_say_what_is_needed(make, message):
    with pytest.raises(ValueError, match=message):
        make()
