"""Six images, and the run that clusters them."""

import numpy as np
import pytest

from unpose.cluster import InvariantClustering
from unpose.data import read_folder
from unpose.runs import RunSettings, write_run


@pytest.fixture(scope="session")
def images(tmp_path_factory):
    """Two shapes at three poses each, as a stack: the file and what was read from it."""
    file = tmp_path_factory.mktemp("input") / "stack.npy"
    hook = np.zeros((13, 13), np.float32)
    hook[2:11, 5:7] = hook[2:4, 5:11] = 1
    np.save(file, np.stack([np.rot90(shape, turn) for shape in (hook, np.tri(13)) for turn in range(3)]))
    return file, read_folder(file)


@pytest.fixture(scope="session")
def run(images, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    file, found = images
    model = InvariantClustering(2).fit(found.images)
    written = write_run(folder, file, found, model, RunSettings(clusters=2), "unpose cluster")
    written.write_page()
    return written
