"""What every test shares: one seed per test, and the folder of real images where there is one."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(7)


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture(scope="session")
def real_data():
    """Loads an array file from the folder named by UNPOSE_DATA; skips where there is none."""

    def load(name):
        folder = os.environ.get("UNPOSE_DATA")
        if not folder:
            pytest.skip("UNPOSE_DATA is not set: no folder of real images to test on")
        path = Path(folder) / name
        if not path.exists():
            pytest.skip(f"{name} is not in the folder UNPOSE_DATA names")
        return np.load(path)

    return load
