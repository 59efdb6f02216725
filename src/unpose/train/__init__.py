"""Training: recipes, the loop, what a network gets right, and networks to and from the disk."""

from unpose.train.card import Card, Described, card_markdown, describe, read_light, save_with_card
from unpose.train.checkpoint import load_network, read_classes, read_notes, save_network
from unpose.train.loop import Diverged, Moment, Outcome, Stopped, build_network, train
from unpose.train.measure import accuracy, accuracy_by_angle, logits_of
from unpose.train.pretrained import pretrained, pretrained_file, pretrained_names
from unpose.train.processes import Processes, joined_processes, was_restarted
from unpose.train.recipe import Recipe, RecipeError, named_recipe, read_recipe, recipe_from, recipe_names, recipe_toml
from unpose.train.state import StateError
from unpose.train.twin import twin_description

__all__ = [
    "Card",
    "Described",
    "Diverged",
    "Moment",
    "Outcome",
    "Processes",
    "Recipe",
    "RecipeError",
    "StateError",
    "Stopped",
    "accuracy",
    "accuracy_by_angle",
    "build_network",
    "card_markdown",
    "describe",
    "joined_processes",
    "load_network",
    "logits_of",
    "named_recipe",
    "pretrained",
    "pretrained_file",
    "pretrained_names",
    "read_classes",
    "read_light",
    "read_notes",
    "read_recipe",
    "recipe_from",
    "recipe_names",
    "recipe_toml",
    "save_network",
    "save_with_card",
    "train",
    "twin_description",
    "was_restarted",
]
