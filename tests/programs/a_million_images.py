"""Write, read and show the run of a million images, and say how much memory it takes.

``a_million_images.py FOLDER [TIMES]``, where 100 images are repeated 10,000 times.

The clustering of 100 images is saved, what is saved is repeated, as if the images had been added, and loaded again.
"""

import hashlib
import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import safetensors.numpy

from unpose.cluster import InvariantClustering
from unpose.data import ImageSet, drawings, posed
from unpose.runs import RunSettings, read_run, write_run

TIMES = int(sys.argv[2]) if len(sys.argv) > 2 else 10_000


def told(stage):
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    sys.stdout.write(f"{stage} {time.process_time():.0f} s {peak:.2f} GB\n")


def repeated(model, folder):
    """The estimator as if its images had come many times, none of them a copy."""
    model.save(folder)
    about, arrays = json.loads((folder / "model.json").read_text()), {}
    n = len(model.labels_)
    for name, array in safetensors.numpy.load_file(folder / "model.safetensors").items():
        first = np.repeat(np.arange(TIMES) * n, len(array))  # of each repetition
        if name in ("labels_", "confidences_", "poses_", "digests", "weights.data", "neighbours.distances"):
            arrays[name] = np.concatenate([array] * TIMES)
        elif name == "neighbours.poses":
            arrays[name] = np.concatenate([array.astype(np.float32)] * TIMES)
        elif name in ("weights.indices", "neighbours.indices"):
            arrays[name] = np.concatenate([array] * TIMES) + first.reshape(-1, *[1] * (array.ndim - 1))
        elif name == "weights.indptr":
            ends = np.arange(TIMES)[:, None] * array[-1] + array[1:]
            arrays[name] = np.append(0, ends.ravel())
        else:
            arrays[name] = array
    arrays["copies_"] = np.arange(n * TIMES)
    content = safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})
    about["arrays_sha256"] = hashlib.sha256(content).hexdigest()
    (folder / "model.safetensors").write_bytes(content)
    (folder / "model.json").write_text(json.dumps(about))
    return InvariantClustering.load(folder)


folder = Path(sys.argv[1])
images = posed(drawings(17).mean(-1), copies=34, max_shift=1.0, random_state=0).images[:100]
model = repeated(InvariantClustering(3, features="pixels").fit(images), folder / "model")
pixels = np.concatenate([(images.clip(0, 1) * 255).astype(np.uint8)] * TIMES)
names = [f"plate {i // 1000}/image {i}.png" for i in range(len(pixels))]
stack = ImageSet(pixels, names, names, np.zeros(len(pixels), int), None, [], "as stored", pixels.shape[1:], [])
told("begin")
run = write_run(folder, folder / "input", stack, model, RunSettings(clusters=3), "unpose cluster")
told("write_run")
run.write_page()
told("page")
with (folder / "labels.csv").open() as table:
    sys.stdout.write(f"rows {sum(1 for _ in table)}\n")
assert len(read_run(folder).names) == len(pixels)
told("read_run")
