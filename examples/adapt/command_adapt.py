"""
unpose adapt: a model file, made invariant
==========================================

The command measures a model on upright and turned images, tries the wrappers that apply and writes the best one. Here
the model is a small network that was trained on upright digits and saved as a file. Without labels, its answers to the
upright images count as right.

This takes about half a minute, most of it to write ONNX, so that it is not run when the site is built; the picture is
recorded.

.. image:: /pictures/command-adapt.png
   :alt: Agreement of five versions of the model with its upright answers, on upright and on turned images
"""

import contextlib
import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

from unpose.cli import main
from unpose.groups import scaling
from unpose.images import warp
from unpose.nn import group_cnn
from unpose.train import save_network

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
torch.manual_seed(0)
digits = load_digits()
keep = digits.target < 5
images = warp(torch.from_numpy(digits.images[keep] / 16).float(), scaling(torch.tensor(1.5)), shape=(15, 15))
labels = torch.from_numpy(digits.target[keep])
network = group_cnn("c1", in_channels=1, n_classes=5, image_size=15, width=16, stages=(1, 1))
optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
for _ in range(150):
    batch = torch.randint(500, (32,))
    loss = cross_entropy(network(images[batch, None]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
save_network(folder / "model.safetensors", network.eval())
np.save(folder / "upright.npy", images[500:700].numpy())

# %%
# The command as in a shell.
with contextlib.chdir(folder):
    main(
        "adapt model.safetensors --images upright.npy --group c4 --border zero --steps 40 -o adapted".split(),
        standalone_mode=False,
    )
print(sorted(path.name for path in (folder / "adapted").iterdir()))

# %%
# ``card.json`` has the table as numbers.
trials = json.loads((folder / "adapted" / "card.json").read_text())["trials"]
places = np.arange(len(trials))
figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
axis.barh(places - 0.2, [trial["upright"] for trial in trials], 0.38, label="upright")
axis.barh(places + 0.2, [trial["turned"] for trial in trials], 0.38, label="turned")
axis.set(yticks=places, yticklabels=[trial["method"] for trial in trials], xlabel="same answer as upright, per cent")
axis.invert_yaxis()
figure.legend(loc="outside upper center", ncols=2)
plt.show()

# sphinx_gallery_thumbnail_path = 'pictures/command-adapt.png'
