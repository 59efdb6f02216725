"""The picture of the first page and of the README: a pile of turned drawings, and what clustering makes of it.

    python benchmarks/landing_picture.py docs/pictures

The drawings are those of the package, each in eight copies at random poses with noise; the groups, averages and aligned
copies are the results of one fit without labels.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from unpose import InvariantClustering
from unpose.cluster import apply_poses
from unpose.data import drawings, posed

SIDE, TILE, MEAN, SHOWN = 96, 92, 124, 6
WIDTH, HEIGHT, SCALE = 1200, 408, 2


def tile(image, side, cut, radius=12):
    """One image as a rounded square, without ``cut`` pixels at each border."""
    inner = image[cut:-cut, cut:-cut].clip(0, 1) * 255
    picture = Image.fromarray(inner.astype(np.uint8)).resize((side * SCALE,) * 2, Image.LANCZOS)
    mask = Image.new("L", picture.size)
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, *picture.size), radius * SCALE, fill=255)
    picture.putalpha(mask)
    return picture


def main(folder):
    rng = np.random.default_rng(5)
    copies = posed(drawings(SIDE), "se2", copies=8, max_shift=8.0, random_state=1)
    images = (copies.images + rng.normal(0, 0.16, copies.images.shape)).astype(np.float32)
    model = InvariantClustering(n_clusters=3, random_state=0).fit(images)
    aligned = apply_poses(images, model.poses_)

    canvas = Image.new("RGBA", (WIDTH * SCALE, HEIGHT * SCALE))

    def place(image, x, y, side, cut):
        canvas.alpha_composite(tile(image, side, cut), (int(x * SCALE), int(y * SCALE)))

    for spot, index in enumerate(rng.permutation(len(images))):
        place(images[index], spot % 6 * 98, spot // 6 * 98 + 11, TILE, cut=8)
    draw, grey = ImageDraw.Draw(canvas), (128, 140, 150, 255)
    x, y = 594 * SCALE, HEIGHT * SCALE // 2
    draw.line((x, y, x + 34 * SCALE, y), fill=grey, width=7 * SCALE)
    draw.polygon([(x + 52 * SCALE, y), (x + 30 * SCALE, y - 16 * SCALE), (x + 30 * SCALE, y + 16 * SCALE)], fill=grey)
    for row, label in enumerate(np.unique(model.labels_)):
        top = row * (MEAN + 18)
        place(model.means_[label], 660, top, MEAN, cut=13)
        for column, index in enumerate(np.flatnonzero(model.labels_ == label)[:SHOWN]):
            place(aligned[index], 798 + column * 68, top + (MEAN - 62) // 2, 62, cut=13)
    small = canvas.resize((WIDTH, HEIGHT), Image.LANCZOS)
    small.quantize(256, method=Image.Quantize.FASTOCTREE).save(folder / "landing.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
