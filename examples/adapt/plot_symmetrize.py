"""
Average a model over the orbit
==============================

``symmetrize`` asks a model about every rotated copy of an image and averages the answers. It needs no training, takes
any model, and the result does not change under the group at all. Here the model is logistic regression on upright
digits.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from unpose import symmetrize
from unpose.groups import scaling
from unpose.images import warp

digits = load_digits()
images = warp(torch.from_numpy(digits.images / 16).float(), scaling(torch.tensor(1.5)), shape=(17, 17))
labels = torch.from_numpy(digits.target)
classifier = LogisticRegression(max_iter=200).fit(images[:1000].flatten(1), labels[:1000])

# %%
# The mean over quarter turns gives the same answer at every quarter turn, right or wrong.
invariant = symmetrize(classifier, "c4")
truth = labels[1000:1300].numpy()
quarters = [torch.rot90(images[1000:1300], k, (1, 2)).numpy() for k in range(4)]
plain = [float((classifier.predict(each.reshape(300, -1)) == truth).mean()) for each in quarters]
mean = [float((invariant(each).argmax(1) == truth).mean()) for each in quarters]

# %%
# The price: what the model says about the three other views is noise, so upright digits are recognised less often.
figure, axis = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
axis.bar([k - 0.2 for k in range(4)], [100 * each for each in plain], 0.38, label="the model")
axis.bar([k + 0.2 for k in range(4)], [100 * each for each in mean], 0.38, label="its mean over c4")
axis.set(xticks=range(4), xticklabels=["upright", "90°", "180°", "270°"], ylabel="right answers in per cent")
axis.legend()
plt.show()
