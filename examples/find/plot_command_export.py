"""
unpose export: results for other tools
======================================

A run as a table, as sorted folders, as NumPy arrays or as a STAR file. Here the arrays: the images of each group,
aligned, which any other program can use without knowing about poses.
"""

import contextlib
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from unpose.cli import main
from unpose.data import drawings, posed
from unpose.files import write_image

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
copies = posed(drawings(36), "se2", copies=9, max_shift=3.0)
for index, image in enumerate(copies.images):
    write_image(folder / "images" / f"{index:02d}.png", image.clip(0, 1))

# %%
# The commands as in a shell.
with contextlib.chdir(folder):
    main("cluster images -o run --clusters 3 --features pixels".split(), standalone_mode=False)
    main("export run --to npz -o results.npz".split(), standalone_mode=False)
results = np.load(folder / "results.npz")
for name, array in results.items():
    print(f"{name:14} {array.dtype.name:8} {array.shape}")

# %%
figure, axes = plt.subplots(3, 9, figsize=(5.5, 2.3), layout="constrained")
for group, row in enumerate(axes):
    for axis, image in zip(row, results["aligned"][results["labels"] == group], strict=True):
        axis.imshow(image.clip(0, 1))
        axis.axis("off")
figure.suptitle("aligned, by group")
plt.show()
