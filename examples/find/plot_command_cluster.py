"""
unpose cluster: a folder of images
==================================

The command that a person with a folder of images starts with. It writes a page to look at, a table of all images and
the averages of the groups. Here it runs on ninety handwritten digits at random poses.
"""

import contextlib
import csv
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits

from unpose.cli import main
from unpose.data import posed
from unpose.files import write_image
from unpose.groups import scaling
from unpose.images import warp

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
digits = load_digits()
chosen = np.concatenate([np.flatnonzero(digits.target == digit)[:30] for digit in (2, 3, 6)])
large = warp(torch.from_numpy(digits.images[chosen] / 16).float(), scaling(torch.tensor(3.0)), shape=(36, 36))
for index, image in enumerate(posed(large, "se2", max_shift=3.0).images):
    write_image(folder / "images" / f"{index:02d}.png", image.clip(0, 1))

# %%
# The command as in a shell. It compares pixels only, so that the result does not depend on which extras are installed.
with contextlib.chdir(folder):
    main("cluster images -o run --clusters 3 --features pixels".split(), standalone_mode=False)
print(sorted(path.name for path in (folder / "run").iterdir()))

# %%
# What it wrote: the averages, and in ``labels.csv`` group and pose of each image.
with (folder / "run" / "labels.csv").open() as file:
    rows = list(csv.DictReader(file))
groups = sorted({row["cluster"] for row in rows}, key=int)
averages = sorted(path for path in (folder / "run" / "means").iterdir() if "error" not in path.name)
figure, axes = plt.subplots(len(groups), 8, figsize=(5.5, 2.5), layout="constrained", squeeze=False)
for row, group, average in zip(axes, groups, averages, strict=True):
    members = [each["path"] for each in rows if each["cluster"] == group]
    row[0].imshow(Image.open(average), cmap="gray")
    row[0].set_ylabel(len(members), rotation=0, ha="right", va="center")
    for axis, name in zip(row[1:], members, strict=False):
        axis.imshow(Image.open(folder / "images" / name), cmap="gray")
for axis in axes.flat:
    axis.set(xticks=[], yticks=[])
axes[0, 0].set_title("average", fontsize=10)
axes[0, 4].set_title("some of its images", fontsize=10)
plt.show()
