"""
unpose audit: any model, from the command line
==============================================

A model is an ONNX file, a network of this package or, as here, an object in a Python file: logistic regression on the
digits of scikit-learn. The command says in words what changes and what would help, and writes a page and tables.
"""

import contextlib
import json
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

from unpose.cli import main
from unpose.files import write_image

temporary = tempfile.TemporaryDirectory()  # removed at the end
folder = Path(temporary.name)
(folder / "my_models.py").write_text("""
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

digits = load_digits()
images = np.kron(digits.images / 16, np.ones((1, 2, 2)))  # (1797, 16, 16), in [0, 1]
classifier = LogisticRegression(max_iter=200).fit(images[:1000].reshape(1000, -1), digits.target[:1000])
""")
digits = load_digits()
for number in range(1000, 1200):
    image = np.kron(digits.images[number] / 16, np.ones((2, 2)))
    write_image(folder / "digits" / str(digits.target[number]) / f"{number}.png", image)

# %%
# The command as in a shell. Its exit status is 1, because the model is not invariant.
with contextlib.chdir(folder):
    status = main("audit my_models:classifier --images digits -o audited".split(), standalone_mode=False)
print("exit status", status)
print(sorted(path.name for path in (folder / "audited").iterdir()))

# %%
# ``audit.json`` has all numbers of the page.
audit = json.loads((folder / "audited" / "audit.json").read_text())
print(audit["headline"])
angles = [*audit["angles"], audit["angles"][0]]
degrees = np.radians([each["degrees"] for each in angles])
figure, axis = plt.subplots(figsize=(5.5, 3.85), subplot_kw={"projection": "polar"}, layout="constrained")
axis.plot(degrees, [100 * each["accuracy"] for each in angles], color="C2", label="right answers")
axis.plot(degrees, [100 * each["changed"] for each in angles], color="C3", label="another answer")
axis.set(theta_zero_location="N", ylim=(0, 102), yticks=[50, 100], yticklabels=["50 %", "100 %"])
axis.legend(loc="lower left", bbox_to_anchor=(-0.5, 0))
plt.show()
