"""
unpose adapt: a model file, made invariant
==========================================

The command measures a model on upright and turned images, tries the wrappers that apply and writes the best one. Here
the model is a small network that was trained on upright drawings and saved as a file.
"""

import contextlib
import io
import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from unpose.cli import main
from unpose.data import drawings, posed
from unpose.nn import group_cnn
from unpose.train import save_network

folder = Path(tempfile.mkdtemp())
torch.manual_seed(0)
made = posed(drawings(20).mean(3), "se2", copies=50, max_angle=0.2, max_shift=1.5)
images, labels = torch.from_numpy(made.images)[:, None], torch.from_numpy(made.sources)
network = group_cnn("c1", in_channels=1, n_classes=3, image_size=20, width=8, stages=(1, 1))
optimizer = torch.optim.AdamW(network.parameters(), lr=2e-2)
for _ in range(80):
    batch = torch.randint(len(images), (24,))
    loss = cross_entropy(network(images[batch]), labels[batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
save_network(folder / "model.safetensors", network)
np.save(folder / "upright.npy", made.images[::3])

# %%
# The command as in a shell; ``--json`` gives the table as numbers.
output = io.StringIO()
with contextlib.chdir(folder), contextlib.redirect_stdout(output):
    main(
        "adapt model.safetensors --images upright.npy --group c4 --border zero --steps 0 --json -o adapted".split(),
        standalone_mode=False,
    )
result = json.loads(output.getvalue())
print(json.dumps(result, indent=1)[:1500])
print(sorted(path.name for path in (folder / "adapted").iterdir()))
