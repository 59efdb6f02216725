"""
unpose discover: which symmetry do my images have?
==================================================

Handwritten digits are upright: a turned digit does not occur. The same digits at any angle have no upright pose. The
command measures which is the case: can a classifier tell turned images from the others?
"""

import contextlib
import io
import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits

from unpose.cli import main
from unpose.data import posed
from unpose.groups import scaling
from unpose.images import warp

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
small = torch.from_numpy(load_digits().images[:300] / 16).float()
upright = warp(small, scaling(torch.tensor(2.0)), shape=(22, 22)).numpy()
np.save(folder / "upright.npy", upright)
np.save(folder / "any-angle.npy", posed(upright, "so2").images)

# %%
# The command as in a shell, once for each file; ``--json`` gives the numbers behind the words.
found = {}
for name in ("upright", "any-angle"):
    output = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(output):
        main(["discover", f"{name}.npy", "--try", "turns", "--json"], standalone_mode=False)
    found[name] = json.loads(output.getvalue())
    finding = found[name]["findings"][0]
    print(f"{name}: turns: {finding['verdict']}. {finding['why']}")

# %%
figure, axis = plt.subplots(figsize=(5.5, 3.85), layout="constrained")
for name, colour in (("upright", "C1"), ("any-angle", "C0")):
    readings = found[name]["findings"][0]["readings"]
    axis.plot([r["strength"] for r in readings], [r["told_apart"] for r in readings], "o-", color=colour, label=name)
axis.axhline(0.25, color="grey", linestyle=":", label="below: the symmetry holds")
axis.set(xlabel="rotation in degrees", ylabel="moved images told apart", ylim=(-0.05, 1.05))
axis.legend()
plt.show()
