"""The pictures of docs/howto/points.md, docs/howto/contours.md, docs/howto/sphere.md and docs/howto/motion.md.

    python benchmarks/worlds_pictures.py docs/pictures

Everything in them is made up, so that no data are needed.
"""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from motion import sequences
from solids import rotation, shape
from unpose.contours import contour, outline_distances
from unpose.groups import parse
from unpose.points import register
from unpose.report.figures import beside, montage, scatter
from unpose.sphere import directions, rotate


def points():
    rng = np.random.default_rng(6)
    a = shape(rng, 900)
    b = a @ rotation(rng).T + rng.uniform(-1, 1, 3) + 0.03 * rng.normal(size=a.shape)
    found = register(a, b)
    moved = a @ found.pose[:3, :3].T + found.pose[:3, 3]

    def panel(first, second, title):
        both = np.concatenate([first, second])[:, :2]
        return scatter(both, colours=np.repeat([0, 1], [len(first), len(second)]), title=title, size=300)

    return beside([panel(a, b, "two clouds, seen from above"), panel(moved, b, "registered")])


def blob(turn=0.0, flip=False, n=72):
    """A silhouette without symmetry."""
    y, x = np.mgrid[:n, :n] - (n - 1) / 2
    z = (x - 1j * y) * np.exp(-1j * turn)
    z = z.conj() if flip else z
    angle, radius = np.angle(z), np.abs(z)
    return radius < 17 + 6 * np.cos(2 * angle) + 5 * np.cos(3 * angle + 1) + 3 * np.sin(5 * angle)


def contours():
    masks = [blob(), blob(2.1), blob(-0.7, flip=True)]
    curves = np.stack([contour(mask, 100) for mask in masks])
    match = outline_distances(curves[:1], curves)
    figures = []
    for k, curve in enumerate(curves):
        dots = np.stack([curve.real, curve.imag], 1)
        name = f"distance {match.distances[0, k]:.2f}"
        name += f", turned {np.degrees(match.angles[0, k]) % 360:.0f}" if k else ""
        name += ", mirrored" if match.mirrored[0, k] else ""
        colours = np.where(np.arange(100) < 8, 1, 0)  # where it starts
        figures.append(scatter(dots, colours=colours, title=name, size=230))
    return beside(figures)


def sphere():
    h = 48
    centres = torch.nn.functional.normalize(torch.randn(7, 3, generator=torch.Generator().manual_seed(3)), dim=1)
    image = (20 * (directions(h, 2 * h) @ centres.T - 1)).exp().sum(-1)[None, None]
    turns = [parse("so3").exp(torch.tensor(vector)) for vector in ([0, 0, 1.0], [0, 0.8, 0], [0, 1.5708, 0])]
    images = torch.cat([image, *(rotate(image, turn) for turn in turns)])[:, 0]
    labels = ["a function on the sphere", "about z: columns move", "tilted by 46 degrees", "a pole on the equator"]
    return montage(images.clamp(0, 1).numpy(), columns=4, labels=labels, scale=2)


def motion():
    digit = np.zeros((1, 8, 8), np.float32)
    digit[0, 1:7, 3:5] = digit[0, 1:3, 1:5] = 1
    rng = np.random.default_rng(0)
    options = SimpleNamespace(frames=6, side=20, noise=0.3)
    rows = [sequences(digit, [velocity], options, rng)[0, :, 0].numpy() for velocity in ((0, 0), (2, 1))]
    labels = [f"still, frame {t}" for t in range(6)] + [f"moving, frame {t}" for t in range(6)]
    return montage(np.concatenate(rows).clip(0, 1), columns=6, labels=labels, scale=5)


def main():
    folder = Path(sys.argv[1])
    for name, draw in {"points": points, "contours": contours, "sphere": sphere, "motion": motion}.items():
        picture = draw().quantize(64)
        picture.save(folder / f"{name}.png", optimize=True)
        print(f"{folder / f'{name}.png'}: {picture.size}")


if __name__ == "__main__":
    main()
