"""Train networks: recipes, the training loop, evaluation, network files and pretrained networks.

============================ =====================================================================================
``recipe.py``, ``recipes/``  a training run as a validated value; TOML files of published and own recipes
``loop.py``                  ``train``: steps, validation, checkpoints, resume
``objective.py``             what the loop optimizes and measures
``vicreg.py``                the loss of learning without labels
``unlabelled.py``            encoders without labels: VICReg, poses as views, neighbours as positives
``training_step.py``         one step; ``cuda_graph.py`` captures and replays it on a GPU
``limits.py``                when a run saves, waits and captures
``batches.py``               images and random poses of a step
``symmetry/``                how far symmetries hold, learned with the network
``optimizers.py, muon.py``   optimizers, learning-rate schedule, moving average
``state.py``                 the resumable state of a run
``checkpoint.py``            networks as files
``pretrained.py, weights/``  trained networks that come with the package
``evaluation.py``            outputs and accuracy, upright and rotated; ``baseline.py``: the network without the group
``by_class.py``              figures by class: recall, precision, what is taken for what
``quick.py``                 a classifier of fixed invariant statistics, in seconds
``records.py``               what a network's file says about its training images
============================ =====================================================================================

Doors of their own: ``cards.py`` (model cards inside the files of networks), ``cost.py`` (what a training costs, and a
recipe that a CPU finishes in minutes), ``processes.py`` (several processes under ``torchrun``) and ``state.py``.
"""

from unpose.train.baseline import baseline_description
from unpose.train.by_class import ClassFigures, class_figures, majority_accuracy
from unpose.train.checkpoint import load_network, read_classes, read_notes, save_network
from unpose.train.evaluation import accuracy, accuracy_by_angle, predict_logits
from unpose.train.loop import DivergedError, StoppedError, TrainingProgress, TrainingResult, build_network, train
from unpose.train.pretrained import pretrained, pretrained_file, pretrained_names
from unpose.train.quick import QuickNetwork, QuickResult, train_quick
from unpose.train.recipe import Recipe, RecipeError, named_recipe, read_recipe, recipe_from, recipe_names, recipe_toml
from unpose.train.records import save_quick
from unpose.train.state import StateError
from unpose.train.symmetry import Bounds, InstanceAugment, InvarianceConstrained, LearnedSymmetry, SoftEquivariance
from unpose.train.unlabelled import UnlabelledResult, train_unlabelled, unlabelled_recipe, unlabelled_seconds
from unpose.train.vicreg import vicreg_loss

__all__ = [
    "Bounds",
    "ClassFigures",
    "DivergedError",
    "InstanceAugment",
    "InvarianceConstrained",
    "LearnedSymmetry",
    "QuickNetwork",
    "QuickResult",
    "Recipe",
    "RecipeError",
    "SoftEquivariance",
    "StateError",
    "StoppedError",
    "TrainingProgress",
    "TrainingResult",
    "UnlabelledResult",
    "accuracy",
    "accuracy_by_angle",
    "baseline_description",
    "build_network",
    "class_figures",
    "load_network",
    "majority_accuracy",
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
    "save_quick",
    "train",
    "train_quick",
    "train_unlabelled",
    "unlabelled_recipe",
    "unlabelled_seconds",
    "vicreg_loss",
]
