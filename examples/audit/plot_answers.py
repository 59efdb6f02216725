"""
Which answers change?
=====================

A classifier is judged by its answers: for every rotation, how many images get another answer, beside what interpolation
alone changes, and which class suffers most. Here the classifier is logistic regression on upright digits.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from unpose.audit import answer_changes, orbit_outputs
from unpose.groups import scaling
from unpose.images import warp

digits = load_digits()
images = warp(torch.from_numpy(digits.images / 16).float(), scaling(torch.tensor(1.5)), shape=(17, 17))[:, None]
classifier = LogisticRegression(max_iter=200).fit(images[:1000].flatten(1), digits.target[:1000])
outputs = orbit_outputs(lambda x: torch.from_numpy(classifier.predict_proba(x.flatten(1))), images[1000:1200], "c24")
report = answer_changes(outputs, labels=digits.target[1000:1200])
print(report)

# %%
angles = np.radians(np.append(report.degrees, 360))
figure, axis = plt.subplots(figsize=(5.5, 3.85), subplot_kw={"projection": "polar"}, layout="constrained")
for values, name in ((report.flips, "another answer"), (report.floors, "by interpolation")):
    axis.plot(angles, 100 * np.append(values, values[0]), label=name)
axis.set(theta_zero_location="N", ylim=(0, 100), yticks=[50, 100], yticklabels=["50 %", "100 %"])
axis.set_title(f"worst class: {report.classes[0].name}")
axis.legend(loc="lower left", bbox_to_anchor=(-0.55, 0))
plt.show()
