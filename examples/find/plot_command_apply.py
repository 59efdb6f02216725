"""
unpose apply: names for groups
==============================

On the page of a run one names, splits and merges groups and saves ``labels.csv``. ``unpose apply`` writes these names
into the run. Here the run has five groups because nobody knew that there are three kinds; naming merges them.
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
copies = posed(drawings(36), "se2", copies=12, max_shift=3.0)
for index, image in enumerate(copies.images):
    write_image(folder / "images" / f"{index:02d}.png", image.clip(0, 1))
with contextlib.chdir(folder):
    main("cluster images -o run --clusters 5 --features pixels".split(), standalone_mode=False)
before = read_run(folder / "run")

# %%
# The file that the page would save: a name for every image.
names = ("crab", "seven", "creature")
with (folder / "labels.csv").open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["path", "name"])
    table.writerows([f"{index:02d}.png", names[source]] for index, source in enumerate(copies.sources))
with contextlib.chdir(folder):
    main("apply run labels.csv".split(), standalone_mode=False)
after = read_run(folder / "run")

# %%
figure, axes = plt.subplots(2, 5, figsize=(5.5, 2.7), layout="constrained")
for axis in axes.flat:
    axis.set_axis_off()
for axis, mean in zip(axes[0], before.means, strict=True):
    axis.imshow(mean.clip(0, 1))
    axis.set_title("?", fontsize=10)
for axis, mean, name in zip(axes[1], after.means, after.cluster_names, strict=False):
    axis.imshow(mean.clip(0, 1))
    axis.set_title(name, fontsize=10)
figure.suptitle("five groups; after unpose apply, three kinds with names")
plt.show()
