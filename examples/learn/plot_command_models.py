"""
unpose models: networks that come with the package
==================================================

The trained networks of the package, with their accuracy on test images as they are and at random rotations. Wherever a
command takes the file of a network, it also takes one of these names.
"""

import contextlib
import io
import json

import matplotlib.pyplot as plt

from unpose.cli import main

main(["models"], standalone_mode=False)

# %%
# The same as JSON.
output = io.StringIO()
with contextlib.redirect_stdout(output):
    main("models --json".split(), standalone_mode=False)
models = json.loads(output.getvalue())

# %%
figure, axis = plt.subplots(figsize=(5.5, 3.2), layout="constrained")
for number, model in enumerate(models):
    axis.barh(
        number - 0.18, 100 * model["card"]["upright"], 0.34, color="C0", label="as they are" if number == 0 else ""
    )
    axis.barh(number + 0.18, 100 * model["card"]["turned"], 0.34, color="C1", label="rotated" if number == 0 else "")
axis.set(
    yticks=range(len(models)), yticklabels=[f"{m['name']}\n{m['size'] / 1000:,.0f} kB" for m in models], xlim=(80, 100)
)
axis.set(xlabel="right answers in per cent, from 80", title="test images")
axis.invert_yaxis()
axis.legend(loc="upper right")
plt.show()
