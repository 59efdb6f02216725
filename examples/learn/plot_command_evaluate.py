"""
unpose evaluate: accuracy at every angle
========================================

A network that comes with the package is measured on images at every 15 degrees of rotation. It was trained on MNIST;
the images here are the coarser digits of scikit-learn, which it reads less well but equally well at every angle.
"""

import contextlib
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from PIL import Image
from sklearn.datasets import load_digits

from unpose.cli import main
from unpose.files import write_image
from unpose.groups import scaling
from unpose.images import warp

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
digits = load_digits()
large = warp(torch.from_numpy(digits.images[:50] / 16).float(), scaling(torch.tensor(2.5)), shape=(28, 28))
for index, image in enumerate(large.clamp(0, 1).numpy()):
    write_image(folder / "photos" / str(digits.target[index]) / f"{index:02d}.png", image)

# %%
# The command as in a shell.
with contextlib.chdir(folder):
    main("evaluate mnist-c8 photos --split all -o angles.png".split(), standalone_mode=False)

# %%
picture = Image.open(folder / "angles.png")
figure = plt.figure(figsize=(5.5, 5.5 * picture.height / picture.width))
axis = figure.add_axes([0, 0, 1, 1])
axis.imshow(picture)
axis.axis("off")
plt.show()
