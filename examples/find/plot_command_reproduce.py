"""
unpose reproduce: the papers, figure by figure
==============================================

Every figure, table and theorem of the two papers behind this package is a command. This one is figure 2 of the paper on
Invariant Attention: kernel attention contracts blobs of points to their means, round by round.
"""

import contextlib
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
from PIL import Image

from unpose.cli import main

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
with contextlib.chdir(folder):
    main("reproduce figure2 -o blobs".split(), standalone_mode=False)
print(sorted(path.name for path in (folder / "blobs").iterdir()))

# %%
# ``unpose reproduce --list`` names everything that can be reproduced, with its place in the paper and its time.
picture = Image.open(folder / "blobs" / "figure2.png")
figure = plt.figure(figsize=(5.5, 5.5 * picture.height / picture.width))
axis = figure.add_axes([0, 0, 1, 1])
axis.imshow(picture)
axis.axis("off")
plt.show()
