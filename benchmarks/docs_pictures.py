"""The pictures of the explanations and tutorials, and the numbers in them.

    python benchmarks/docs_pictures.py docs/pictures

Drawings and digits come with the packages, so that no data are needed. Needs matplotlib (the extra ``docs``).
"""

import sys
from pathlib import Path

import matplotlib
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from unpose.data import drawings, posed
from unpose.groups import parse
from unpose.images import warp

matplotlib.use("agg")
import matplotlib.pyplot as plt

se2, similarity = parse("se2"), parse("similarity")
GREY = "#767676"
"""Text that can be read on a light and on a dark page."""
plt.rcParams.update({
    "figure.dpi": 100, "savefig.dpi": 150, "font.size": 11, "savefig.transparent": True, "text.color": GREY,
    "axes.edgecolor": GREY, "axes.labelcolor": GREY, "xtick.color": GREY, "ytick.color": GREY,
})  # fmt: skip


def turned(image, degrees):
    """(h, w) -> (h, w), turned about the centre."""
    return moved(image, [0.0, 0.0, np.radians(degrees)])


def moved(image, coordinates):
    group = similarity if len(coordinates) == 4 else se2
    pose = group.exp(torch.tensor(coordinates, dtype=torch.float32))
    return warp(torch.as_tensor(image, dtype=torch.float32)[None, None], pose)[0, 0].numpy()


def show(axis, image, title="", **options):
    axis.imshow(image, cmap="gray", **({"vmin": 0, "vmax": 1} | options))
    axis.set_title(title, fontsize=10)
    axis.set_xticks([])
    axis.set_yticks([])


def orbit(creature):
    figure = plt.figure(figsize=(5.4, 5.4))
    for k in range(12):
        angle = np.pi / 2 + 2 * np.pi * k / 12
        axis = figure.add_axes((0.5 + 0.4 * np.cos(angle) - 0.09, 0.5 + 0.4 * np.sin(angle) - 0.09, 0.18, 0.18))
        show(axis, turned(creature, 30 * k))
    figure.text(0.5, 0.5, "one orbit:\nall rotations of one image", ha="center", va="center", fontsize=13)
    return figure


def orbit_means(creature):
    copies = np.stack([turned(creature, angle) for angle in range(0, 360, 10)])
    back = np.stack([turned(image, -angle) for image, angle in zip(copies, range(0, 360, 10), strict=True)])
    figure, axes = plt.subplots(1, 3, figsize=(7.5, 2.9))
    show(axes[0], creature, "one image")
    show(axes[1], copies.mean(0), "mean of 36 copies", vmax=None)
    show(axes[2], back.mean(0), "mean of 36 aligned copies")
    return figure


def landscape(creature):
    angles = np.arange(-180, 180.5, 1.5)
    target = turned(creature, 130)
    distance = np.array([np.linalg.norm(turned(creature, angle) - target) for angle in angles])
    distance /= np.linalg.norm(target)
    valleys = [k for k in range(1, len(angles) - 1) if distance[k] < min(distance[k - 1], distance[k + 1])]
    figure, axis = plt.subplots(figsize=(7.5, 3.2), layout="constrained")
    axis.plot(angles, distance, color="#3a86c8")
    axis.plot(angles[valleys], distance[valleys], "o", color=GREY, label="local minima")
    axis.plot(130, distance[np.argmin(abs(angles - 130))], "o", color="#d1495b", markersize=10, label="the right pose")
    axis.set(xlabel="angle in degrees; descent begins at 0", ylabel="distance", xticks=range(-180, 181, 60))
    axis.legend(frameon=False, loc="lower left")
    axis.spines[["top", "right"]].set_visible(False)
    print(f"landscape: {len(valleys)} local minima")
    return figure


def false_optimum(first, second):
    """Two different drawings that move together: the distance per pixel, and what is left in the frame."""
    figure, axes = plt.subplots(2, 5, figsize=(9, 4.1))
    for column, (title, coordinates) in enumerate({
        "as they are": [0.0, 0.0, 0.0, 0.0], "shifted": [14.0, 0.0, 0.0, 0.0], "shifted out": [44.0, 0.0, 0.0, 0.0],
        "shrunk": [0.0, 0.0, 0.0, -0.7], "shrunk more": [0.0, 0.0, 0.0, -1.8],
    }.items()):  # fmt: skip
        images = [moved(image, coordinates) for image in (first, second)]
        distance = np.sqrt(np.mean((images[0] - images[1]) ** 2))
        for row, image in enumerate(images):
            show(axes[row, column], image, title if row == 0 else f"distance {distance:.2f}")
    figure.tight_layout()
    return figure


def interpolation(seven):
    there_and_back = turned(turned(seven, 20), -20)
    change = abs(there_and_back - seven)
    print(f"interpolation: 20 degrees there and back, {seven.shape[1]} pixels: a change of "
          f"{np.linalg.norm(change) / np.linalg.norm(seven):.3f}")  # fmt: skip
    figure, axes = plt.subplots(1, 4, figsize=(9, 2.7))
    show(axes[0], seven, "strokes of 28 pixels")
    show(axes[1], turned(seven, 20), "turned by 20 degrees")
    show(axes[2], there_and_back, "and back")
    show(axes[3], change, "what changed", vmax=None)
    figure.tight_layout()
    return figure


def plankton_images():
    """As in the tutorial on plankton."""
    animals = drawings(32).mean(-1)
    caught = posed(animals, "se2+mirror", copies=16, max_shift=3.0)
    noise = np.random.default_rng(0).normal(0, 0.05, caught.images.shape)
    images = np.clip(caught.images + noise, 0, 1)
    figure, axes = plt.subplots(2, 8, figsize=(9, 2.4))
    for axis, number in zip(axes.flat, np.random.default_rng(1).permutation(len(images)), strict=False):
        show(axis, images[number])
    figure.tight_layout(pad=0.3)
    return figure


def adapt_digits():
    """As in the tutorial on a model that one already has."""
    digits = load_digits()
    images = np.kron(digits.images / 16, np.ones((1, 2, 2))).astype(np.float32)
    model = LogisticRegression(max_iter=200).fit(images[:1000].reshape(1000, -1), digits.target[:1000])
    figure, axes = plt.subplots(2, 8, figsize=(9, 2.9))
    for column in range(8):
        image = images[1003 + column]
        for row, view in enumerate((image, np.rot90(image))):
            answer = model.predict(view.reshape(1, -1))[0]
            show(axes[row, column], view)
            right = answer == digits.target[1003 + column]
            axes[row, column].set_title(f"{answer}", color="#2a9d6f" if right else "#d1495b", fontsize=14)
    figure.tight_layout(pad=0.3)
    return figure


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    crab, _, creature = drawings(48).mean(-1)
    for name, figure in {
        "orbit": orbit(creature), "orbit-means": orbit_means(creature), "landscape": landscape(creature),
        "false-optimum": false_optimum(crab, creature), "interpolation": interpolation(drawings(28)[1].mean(-1)),
        "plankton-images": plankton_images(), "adapt-digits": adapt_digits(),
    }.items():  # fmt: skip
        figure.savefig(folder / f"{name}.png")


if __name__ == "__main__":
    main()
