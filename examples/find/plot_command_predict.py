"""
unpose predict: new images, known groups
========================================

A run knows two kinds of drawings. New images are assigned to its groups by the votes of the most similar fitted images,
whatever their pose. The p-value says whether an image fits: the creature is of a kind that the run has not seen.
"""

import contextlib
import csv
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

from unpose.cli import main
from unpose.data import drawings, posed
from unpose.files import write_image

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
known = posed(drawings(40)[:2], "se2", copies=14, max_shift=4.0)
new = posed(drawings(40), "se2", copies=3, max_shift=4.0, random_state=1)
for name, images in (("known", known.images), ("new", new.images)):
    for index, image in enumerate(images):
        write_image(folder / name / f"{index:02d}.png", image.clip(0, 1))

# %%
# The commands as in a shell.
with contextlib.chdir(folder):
    main("cluster known -o run --clusters 2 --features pixels".split(), standalone_mode=False)
    main("predict run new -o new.csv".split(), standalone_mode=False)
with (folder / "new.csv").open() as file:
    rows = list(csv.DictReader(file))

# %%
figure, axes = plt.subplots(3, 3, figsize=(5.5, 4.4), layout="constrained")
for axis, image, row in zip(axes.flat, new.images, rows, strict=True):
    axis.imshow(image.clip(0, 1))
    fits = float(row["p_value"]) >= 0.05
    text = f"group {row['cluster']}, p = {float(row['p_value']):.2f}" if fits else "fits no group"
    axis.set_title(text, fontsize=10, color="black" if fits else "tab:red")
    axis.axis("off")
plt.show()
