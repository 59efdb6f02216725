"""
unpose align: one object, many images
=====================================

Thirty images of one object at unknown poses, in a TIFF stack with noise. The command writes the mean, the standard
error of its pixels, the pose of every image and the aligned stack.
"""

import contextlib
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import tifffile
from PIL import Image

from unpose.cli import main
from unpose.data import drawings, posed

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
copies = posed(drawings(40)[2:].mean(3), "se2", copies=30, max_shift=5.0).images
noise = 0.12 * np.random.default_rng(0).normal(size=copies.shape)
tifffile.imwrite(folder / "frames.tif", (copies + noise).clip(0, 1).astype(np.float32), photometric="minisblack")

# %%
# The command as in a shell.
with contextlib.chdir(folder):
    main("align frames.tif -o run".split(), standalone_mode=False)

# %%
# ``montage.png`` shows some images before and after the alignment; ``mean.png`` is the mean.
figure, axes = plt.subplot_mosaic(
    [["montage", "montage"], ["mean", "error"]], figsize=(5.5, 4.2), height_ratios=(1, 1.1), layout="constrained"
)
for name, axis in axes.items():
    axis.imshow(Image.open(folder / "run" / f"{name}.png"), cmap="gray")
    axis.set_title(f"{name}.png", fontsize=10)
    axis.axis("off")
plt.show()
