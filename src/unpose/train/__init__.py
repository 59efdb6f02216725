"""Train networks: recipes, the training loop, evaluation, network files and pretrained networks.

============================ =====================================================================================
``recipe.py``, ``recipes/``  a training run as a validated value; TOML files of published and own recipes
``loop.py``                  ``train``: steps, validation, checkpoints, resume
``training_step.py``         one step; ``cuda_graph.py`` captures and replays it on a GPU
``batches.py``               images and random poses of a step
``optimizers.py, muon.py``   optimizers, learning-rate schedule, moving average
``state.py``                 the resumable state of a run
``checkpoint.py``            networks as files; ``cards.py``: model cards inside them
``pretrained.py, weights/``  trained networks that come with the package
``evaluation.py``            outputs and accuracy, upright and rotated; ``baseline.py``: the network without the group
``processes.py``             several processes under ``torchrun``
============================ =====================================================================================
"""

from unpose.train.baseline import baseline_description
from unpose.train.checkpoint import load_network, read_classes, read_notes, save_network
from unpose.train.evaluation import accuracy, accuracy_by_angle, predict_logits
from unpose.train.loop import DivergedError, StoppedError, TrainingProgress, TrainingResult, build_network, train
from unpose.train.pretrained import pretrained, pretrained_file, pretrained_names
from unpose.train.processes import Processes, joined_processes, was_restarted
from unpose.train.recipe import Recipe, RecipeError, named_recipe, read_recipe, recipe_from, recipe_names, recipe_toml
from unpose.train.state import StateError

__all__ = [
    "DivergedError",
    "Processes",
    "Recipe",
    "RecipeError",
    "StateError",
    "StoppedError",
    "TrainingProgress",
    "TrainingResult",
    "accuracy",
    "accuracy_by_angle",
    "baseline_description",
    "build_network",
    "joined_processes",
    "load_network",
    "named_recipe",
    "predict_logits",
    "pretrained",
    "pretrained_file",
    "pretrained_names",
    "read_classes",
    "read_notes",
    "read_recipe",
    "recipe_from",
    "recipe_names",
    "recipe_toml",
    "save_network",
    "train",
    "was_restarted",
]
