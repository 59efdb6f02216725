"""
unpose predict: classes by a network
====================================

The networks that come with the package need no training and no download. Here ``mnist-c8`` reads digits at any angle
from a folder of pictures and writes a table with the probability of each class.
"""

import contextlib
import csv
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits

from unpose.cli import main
from unpose.data import posed
from unpose.files import write_image
from unpose.groups import scaling
from unpose.images import warp

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
large = warp(torch.from_numpy(load_digits().images[10:25] / 16).float(), scaling(torch.tensor(2.5)), shape=(28, 28))
images = posed(large, "so2", random_state=1).images.clip(0, 1)
for index, image in enumerate(images):
    write_image(folder / "digits" / f"{index:02d}.png", image)

# %%
# The command as in a shell.
with contextlib.chdir(folder):
    main("predict --model mnist-c8 digits -o classes.csv".split(), standalone_mode=False)
with (folder / "classes.csv").open() as file:
    rows = list(csv.DictReader(file))

# %%
figure, axes = plt.subplots(3, 5, figsize=(5.5, 4.0), layout="constrained")
for axis, image, row in zip(axes.flat, images, rows, strict=True):
    axis.imshow(image, cmap="gray")
    axis.set_title(f"{row['class']}: {float(row[row['class']]):.0%}", fontsize=11)
    axis.axis("off")
plt.show()
