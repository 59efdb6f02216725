"""Images whose neighbours are known, and sizes that cut a search of them into many blocks."""

import numpy as np
import pytest

from kit.images import scribbles
from unpose.align import Limits
from unpose.data import posed

SMALL = Limits(
    searched=17, gridded=19, refined=13, pairs=131, aligned=11, indexed=23, tile=16, sorted=7, pixels=45 * 24 * 24
)
"""None of these divides the number of images."""


@pytest.fixture(scope="session")
def small_blocks():
    return SMALL


@pytest.fixture(scope="session")
def copies():
    """Seven scribbles, nine copies each, at random poses on 24 pixels: ``images``, ``poses``, ``sources``."""
    return posed(scribbles(7, 24), "se2", copies=9, random_state=1, max_shift=2.0)


@pytest.fixture(scope="session")
def noisy(copies):
    """43 of these with noise, so that no two fit equally well."""
    images = copies.images[:43]
    return images + 0.05 * np.random.default_rng(5).random(images.shape, np.float32)
