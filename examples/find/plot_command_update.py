"""
unpose update: images that arrive later
=======================================

A run is finished, and on Monday more images arrive. ``unpose update`` adds them to its groups without doing the run
again; images that fit no group are marked, because they may be of a new kind.
"""

import contextlib
import csv
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from unpose.cli import main
from unpose.data import drawings, posed
from unpose.files import write_image
from unpose.runs import read_run

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
crab, seven, creature = drawings(36)
batches = {
    "first": posed([crab, seven], copies=12, max_shift=3.0),
    "monday": posed([crab, creature], copies=4, max_shift=3.0, random_state=1),
}
for name, batch in batches.items():
    for index, image in enumerate(batch.images):
        write_image(folder / name / f"{name}-{index:02d}.png", image.clip(0, 1))

# %%
# The commands as in a shell.
with contextlib.chdir(folder):
    main("cluster first -o run --clusters 2 --features pixels".split(), standalone_mode=False)
    main("update run monday".split(), standalone_mode=False)

# %%
# The run now shows all images; ``added.csv`` lists the new ones.
read_run(folder / "run")

# %%
with (folder / "run" / "added.csv").open() as file:
    rows = list(csv.DictReader(file))
figure, axes = plt.subplots(2, 4, figsize=(5.5, 3.2), layout="constrained")
for axis, image, row in zip(axes.flat, batches["monday"].images, rows, strict=True):
    axis.imshow(image.clip(0, 1))
    fits = float(row["p_value"]) >= 0.05
    axis.set_title(f"group {row['cluster']}" if fits else "a new kind?", color="black" if fits else "tab:red")
    axis.axis("off")
plt.show()
