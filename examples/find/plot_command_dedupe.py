"""
unpose dedupe: the same photograph twice
========================================

Two photographs and edited copies of them in one folder: turned, mirrored, made smaller and brighter, cropped. The
command compares every candidate pixel against pixel and says which copy to keep. It moves nothing unless told to.
"""

import contextlib
import csv
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image, ImageEnhance
from sklearn.datasets import load_sample_image

from unpose.cli import main

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
photos = folder / "photos"
photos.mkdir()
china, flower = (Image.fromarray(np.array(load_sample_image(name))) for name in ("china.jpg", "flower.jpg"))
china.save(photos / "china.jpg", quality=95)
flower.save(photos / "flower.jpg", quality=95)
china.rotate(90, expand=True).resize((213, 320)).save(photos / "china-turned.jpg")
china.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(photos / "china-mirrored.png")
ImageEnhance.Brightness(flower.crop((20, 15, 620, 410))).enhance(1.25).save(photos / "flower-bright.jpg", quality=60)

# %%
# The same as ``unpose dedupe photos -o found`` in a shell.
with contextlib.chdir(folder):
    main("dedupe photos -o found".split(), standalone_mode=False)

# %%
# ``duplicates.csv`` has a row for each photograph of a set.
with (folder / "found" / "duplicates.csv").open() as file:
    rows = list(csv.DictReader(file))
figure, axes = plt.subplots(2, 3, figsize=(5.5, 3.6), layout="constrained")
for axis in axes.flat:
    axis.axis("off")
for number, name in enumerate(sorted({row["set"] for row in rows})):
    members = sorted((row for row in rows if row["set"] == name), key=lambda row: row["keep"] == "no")
    for axis, row in zip(axes[number], members, strict=False):
        axis.imshow(Image.open(photos / row["path"]))
        if row["keep"] == "yes":
            axis.set_title("keep", fontsize=9)
        else:
            axis.set_title(
                f"turned {round(float(row['angle']))}°" + (", mirrored" if row["mirrored"] == "yes" else ""), fontsize=9
            )
plt.show()
