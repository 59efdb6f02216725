"""
unpose plan: how long will it take?
===================================

Before a long run, ``unpose plan`` groups samples of the images and says how long the whole will take here, on a GPU and
on a cluster, and how much memory and disk it needs. It takes about a minute, so that it is not run when the site is
built; the picture is recorded, for 1,797 handwritten digits on two cores.

.. image:: /pictures/command-plan.png
   :alt: Expected seconds on this machine, on one GPU and on sixteen workers
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
large = warp(torch.from_numpy(load_digits().images / 16).float(), scaling(torch.tensor(2.5)), shape=(28, 28))
np.save(folder / "digits.npy", posed(large, "se2", max_shift=2.0).images)

# %%
# The command as in a shell; ``--json`` gives the plan as numbers.
output = io.StringIO()
with contextlib.chdir(folder), contextlib.redirect_stdout(output):
    main("plan digits.npy --workers 16 --json".split(), standalone_mode=False)
result = json.loads(output.getvalue())
print(f"{result['plan']['count']:,} images, memory {result['plan']['memory'] / 1e9:.1f} GB")

# %%
seconds = result["seconds"]
names = {"here": f"here, {result['plan']['n_cores']} cores", "one_gpu": "one GPU", "workers": "16 workers"}
figure, axis = plt.subplots(figsize=(5.5, 2.8), layout="constrained")
bars = axis.barh(list(names.values()), [seconds[name] for name in names], color=["C0", "C1", "C2"])
axis.bar_label(bars, [f" {seconds[name]:.0f} s" for name in names])
axis.set(
    xlabel="expected time in seconds", title=f"{result['plan']['count']:,} images", xlim=(0, 1.2 * seconds["here"])
)
axis.invert_yaxis()
plt.show()

# sphinx_gallery_thumbnail_path = 'pictures/command-plan.png'
