"""
Average a model over the orbit
==============================

``symmetrize`` asks a model about every rotated copy of an image and averages the answers. It needs no training and
takes any model. Here it is logistic regression, trained on digits at random quarter turns: its answers depend on how a
digit lies. Their mean is the same for all quarter turns, and a little better than the model is on average.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from unpose import symmetrize

digits = load_digits()
images, labels = digits.images / 16, digits.target  # (1797, 8, 8)
turns = np.random.default_rng(0).integers(4, size=1000)
training = np.stack([np.rot90(image, k) for image, k in zip(images[:1000], turns, strict=True)])
model = LogisticRegression(max_iter=500).fit(training.reshape(1000, -1), labels[:1000])
invariant = symmetrize(model, "c4")

# %%
quarters = [np.rot90(images[1000:], k, (1, 2)) for k in range(4)]
plain = [np.mean(model.predict(each.reshape(797, -1)) == labels[1000:]) for each in quarters]
mean = [np.mean(invariant(each).argmax(1) == labels[1000:]) for each in quarters]

figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
axis.bar(np.arange(4) - 0.2, 100 * np.array(plain), 0.38, label="the model")
axis.bar(np.arange(4) + 0.2, 100 * np.array(mean), 0.38, label="its mean over c4")
axis.set(xticks=range(4), xticklabels=["upright", "90°", "180°", "270°"], ylabel="right answers in per cent")
axis.set_ylim(0, 119)
axis.legend(ncols=2, loc="upper center")
plt.show()
