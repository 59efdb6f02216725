"""Find out which transformations images obey, and how far: is my data free under turns, mirrors, changes of size?

:func:`discover` measures, for each family of transformations, whether moved images could be real ones and whether
moving changes the class, and names the largest group that is safe. Files, by what you want to change:

==================== ================================================================================================
``symmetry.py``      :func:`discover` and its results: the rule that turns curves into verdicts
``generators.py``    :func:`find_generators`: one-parameter groups found from images, without candidates
``latent_action.py`` :func:`fit_latent_action`: operators of an unknown transformation, learnt from films
``auto_group.py``    what ``group="auto"`` means in other rooms
``families.py``      the candidates: turns, mirrors, scale, ...
``two_sample.py``    can a classifier tell moved images from real ones?
``photographs.py``   what a network for photographs tells apart, where images cannot tell
``label_test.py``    do moved copies mislead the nearest neighbour?
``descriptors.py``   what images are compared by
==================== ================================================================================================
"""

from unpose.discover.auto_group import AUTO, discover_group
from unpose.discover.families import FAMILIES, Family
from unpose.discover.generators import Generator, Generators, find_generators
from unpose.discover.label_test import LabelGain, label_gains
from unpose.discover.latent_action import LatentAction, fit_latent_action
from unpose.discover.symmetry import FEWEST, Discovery, Finding, Objection, Reading, discover, moved_example
from unpose.discover.two_sample import Overlap, two_sample_overlap

__all__ = [
    "AUTO",
    "FAMILIES",
    "FEWEST",
    "Discovery",
    "Family",
    "Finding",
    "Generator",
    "Generators",
    "LabelGain",
    "LatentAction",
    "Objection",
    "Overlap",
    "Reading",
    "discover",
    "discover_group",
    "find_generators",
    "fit_latent_action",
    "label_gains",
    "moved_example",
    "two_sample_overlap",
]
