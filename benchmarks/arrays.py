"""The arrays that benchmarks run on, from the folder that the environment variable UNPOSE_DATA names."""

import os
from pathlib import Path

import numpy as np


def load(name, *keys):
    """Some arrays of an npz file."""
    folder = os.environ.get("UNPOSE_DATA")
    if not folder or not (Path(folder) / name).exists():
        raise FileNotFoundError(f"{name} is not in the folder that the environment variable UNPOSE_DATA names")
    with np.load(Path(folder) / name) as arrays:
        return [arrays[key] for key in keys]
