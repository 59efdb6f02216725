"""``group = "auto"`` in a recipe: the group of the network is found from the training images and their labels."""

from unpose.data import Dataset
from unpose.discover import AUTO, Discovery, discover_group
from unpose.train.recipe import Recipe


def with_found_group(recipe: Recipe, dataset: Dataset) -> tuple[Recipe, Discovery | None]:
    """Replace the group ``"auto"`` of a recipe by the largest finite group that the training images obey.

    Parameters
    ----------
    recipe : Recipe
    dataset : Dataset
        Only its training part is used.

    Returns
    -------
    recipe : Recipe
        With the name of the group. A recipe that names its group is returned as it is.
    discovery : Discovery or None
        What was found and why; None if the recipe names its group.

    Examples
    --------
    >>> from unpose.data import load
    >>> recipe, found = with_found_group(Recipe(), load("digits"))
    >>> recipe.network.group, found
    ('c4', None)
    """
    if recipe.network.group != AUTO:
        return recipe, None
    found = discover_group(dataset.train.images, dataset.train.labels)
    return recipe.changed(group=found.finite_group), found
