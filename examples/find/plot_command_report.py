"""
unpose report: a page that needs nothing else
=============================================

The page of a run is one HTML file: its pictures lie inside it, it needs no server and loads nothing from elsewhere.
``unpose report`` makes it again from the run folder, without the images. The picture shows what the file contains.
"""

import base64
import contextlib
import io
import re
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image

from unpose.cli import main
from unpose.data import drawings, posed
from unpose.files import write_image

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
for index, image in enumerate(posed(drawings(40), "se2", copies=12, max_shift=4.0).images):
    write_image(folder / "images" / f"{index:02d}.png", image.clip(0, 1))

# %%
# The commands as in a shell.
with contextlib.chdir(folder):
    main("cluster images -o run --clusters 3 --features pixels".split(), standalone_mode=False)
    main("report run -o for-my-colleagues.html".split(), standalone_mode=False)

# %%
page = (folder / "for-my-colleagues.html").read_text(encoding="utf-8")
print(f"{len(page) / 1000:.0f} kB; loads from elsewhere: {len(re.findall(r'(?:src|href)=.https?:', page))} files")
# The first bytes of a WebP picture in base64 are always the same.
found = re.findall(r"UklGR[A-Za-z0-9+/=]+", page)
pictures = sorted((Image.open(io.BytesIO(base64.b64decode(data))) for data in found), key=lambda p: -p.width * p.height)
figure, axes = plt.subplots(1, 3, figsize=(5.5, 2.6), layout="constrained")
for axis, picture in zip(axes, pictures, strict=False):
    axis.imshow(picture)
    axis.set_title(f"{picture.width} x {picture.height}", fontsize=10)
    axis.axis("off")
figure.suptitle("the largest pictures inside the page")
plt.show()
