"""
unpose train: a classifier from a folder
========================================

A folder with one subfolder for each class is all that ``unpose train`` needs. ``--quick`` fits a classifier to fixed
statistics that rotations do not change, in seconds; without it, a network is trained. The test images are used once.
"""

import contextlib
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
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
large = warp(torch.from_numpy(digits.images[:240] / 16).float(), scaling(torch.tensor(2.5)), shape=(24, 24))
for index, image in enumerate(posed(large, "so2").images):
    if digits.target[index] != 9:  # a 9 is a 6 upside down
        write_image(folder / "photos" / str(digits.target[index]) / f"{index:03d}.png", image.clip(0, 1))

# %%
# The command as in a shell.
with contextlib.chdir(folder):
    main("train photos --quick -o first".split(), standalone_mode=False)

# %%
# ``confusion.png`` shows what is taken for what.
figure = plt.figure(figsize=(5.5, 4.2))
axis = figure.add_axes([0, 0, 1, 1])
axis.imshow(Image.open(folder / "first" / "confusion.png"))
axis.axis("off")
plt.show()
