"""Load the arrays of the benchmarks from the folder named by the environment variable UNPOSE_DATA."""

import os
from pathlib import Path

import numpy as np


def load(name, *keys):
    """Load arrays from an npz file: a list, in the order of the keys."""
    folder = os.environ.get("UNPOSE_DATA")
    if not folder or not (Path(folder) / name).exists():
        raise FileNotFoundError(f"{name} is not in the folder that the environment variable UNPOSE_DATA names")
    with np.load(Path(folder) / name) as arrays:
        return [arrays[key] for key in keys]
