"""The cost of a training is counted, and the choice for the CPU keeps within it."""

import pytest

from unpose.train import cost, named_recipe, recipe_from


def test_operations_grow_with_images_epochs_and_pixels():
    recipe = recipe_from({"epochs": 3, "network": {"group": "c4", "options": {"width": 3, "stages": [1, 1]}}})
    one = cost.training_operations(recipe, 10, 1, 2, 16)
    # Lifting: 9 taps of 1 channel to 3 x 4; then, at half the size, 9 taps of 12 to 12 channels. The rest is little.
    forward = 2 * (9 * 12 * 16**2 + 9 * 12 * 12 * 8**2)
    assert one == pytest.approx(3 * forward * 10 * 3, rel=0.15)
    assert cost.training_operations(recipe.changed(epochs=6), 20, 1, 2, 16) == pytest.approx(4 * one)


@pytest.mark.parametrize(("images", "size"), [(50, 128), (281, 64), (3000, 28)])
def test_the_choice_keeps_within_the_budget_or_at_the_fewest_epochs(images, size):
    recipe = cost.fit_to_cpu(named_recipe("folder"), images, 1, 5, size)
    side = recipe.data.size or size
    assert side <= min(size, 64)
    assert 12 <= recipe.epochs <= 40
    assert recipe.epochs == 12 or cost.training_operations(recipe, images, 1, 5, side) <= 6.3e12
    assert cost.fit_to_cpu(named_recipe("folder"), images, 1, 5, size, may_resize=False).data.size is None


def test_recipes_of_networks_whose_operations_are_not_counted_are_kept():
    recipe = named_recipe("rotmnist-r4")
    assert cost.fit_to_cpu(recipe, 10_000, 1, 10, 128) == recipe


@pytest.mark.parametrize(("symmetry", "views"), [({}, 1), ({"method": "soft", "groups": ["d1"]}, 2)])
def test_a_duration_is_that_of_the_steps_that_are_run(symmetry, views, problem, small_recipe, watched):
    assert cost.measured_seconds(small_recipe(batch_size=20, symmetry=symmetry), problem) > 0
    assert {len(images) for images in watched.trained} == {20 * views}
    assert watched.steps >= 2
