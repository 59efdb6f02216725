"""A classifier to audit: logistic regression on the digits of scikit-learn.

Run this file once to write the images, then audit the classifier:

    cd examples
    python audit_digits.py
    unpose audit audit_digits:classifier --images digits -o audited

Then open ``audited/report.html``.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from unpose.files import write_image

digits = load_digits()
images = np.kron(digits.images / 16, np.ones((1, 2, 2)))  # (1797, 16, 16), in [0, 1]
classifier = LogisticRegression(max_iter=200).fit(images[:1000].reshape(1000, -1), digits.target[:1000])

if __name__ == "__main__":
    for number in range(1000, 1200):
        write_image(f"digits/{digits.target[number]}/{number}.png", images[number])
