"""Small images that differ at every pose, and folders of them."""

import math

import numpy as np
from PIL import Image

from unpose.data import posed

HOSTILE = [
    "<img src=x onerror=alert(1)>.png", "=HYPERLINK(1).png", "new\nline.png", "quote\"'.png", "-rf.png", "; rm x.png",
]  # fmt: skip
"""File names that a page, a table or a shell could take for code."""

KINDS = ("hook", "frame", "bracket", "cross", "flag")


def things(size=26, kinds=3):
    """The first kinds of a hook, a frame, a bracket, a cross with a foot and a flag: (kinds, size, size) in 0 to 1.

    No two are alike at any pose or size, and none but the frame has a symmetry. They stay within the disc that turns
    with the canvas.
    """
    grid = np.zeros((5, 26, 26), np.float32)
    grid[0, 5:20, 12:15] = grid[0, 5:8, 12:20] = 1
    grid[1, 8:18, 8:18] = 1
    grid[1, 11:15, 11:15] = 0
    grid[2, 6:20, 8:11] = grid[2, 17:20, 8:19] = grid[2, 6:9, 8:14] = 1
    grid[3, 5:20, 13:15] = grid[3, 9:11, 8:19] = grid[3, 16:20, 15:19] = 1
    grid[4, 6:20, 9:12] = grid[4, 6:13, 12:19] = 0.8
    places = (np.arange(size) * 26 / size + 13 / size).astype(int)  # the nearest of 26 pixels
    return grid[:kinds][:, places][:, :, places]


def posed_things(copies=8, *, size=26, kinds=3, group="se2", max_shift=2.0, noise=0.0, seed=3):
    """Copies of :func:`things` at random poses, thing after thing: ``images``, ``poses``, ``sources``."""
    found = posed(things(size, kinds), group, copies=copies, max_shift=max_shift, random_state=seed)
    if noise:
        images = found.images  # one array, which is noisy in place
        images += noise * np.random.default_rng(seed).standard_normal(found.images.shape).astype(np.float32)
    return found


def scribbles(kinds, side, seed=5, strokes=4):
    """Smooth random strokes, (kinds, side, side), none like another."""
    rng = np.random.default_rng(seed)
    y, x = np.indices((side, side)) - (side - 1) / 2
    images = np.zeros((kinds, side, side), np.float32)
    for image in images:
        places, angles = rng.uniform(-side / 5, side / 5, (2, strokes)), rng.uniform(0, math.pi, strokes)
        for x0, y0, angle in zip(*places, angles, strict=True):
            along = (x - x0) * math.cos(angle) + (y - y0) * math.sin(angle)
            across = (y - y0) * math.cos(angle) - (x - x0) * math.sin(angle)
            image += np.exp(-((along / (side / 6)) ** 4) - (across / 1.2) ** 2).astype(np.float32)
    return images.clip(0, 1)


def blobs(n=5, side=21, channels=1, seed=0):
    """Smooth random images that vanish at the border: a tensor (n, channels, side, side) in 0 to 1."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, channels, 5, 5, generator=generator)
    fine = torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic")
    window = torch.hann_window(side, periodic=False)
    return (fine * window[:, None] * window).clamp(0, 1)


def write_image(path, image):
    """Save an image of values from 0 to 1 as PNG, whatever the ending of its name; make its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray((np.asarray(image).clip(0, 1) * 255 + 0.5).astype(np.uint8)).save(path, format="PNG")
    return path


def write_folder(folder, images, labels=None, hostile=()):
    """Save images as ``000.png`` and so on, in a folder for each label if there are labels; some under other names."""
    names = list(hostile)
    for number, image in enumerate(images):
        name = names.pop() if names else f"{number:03d}.png"
        write_image(folder / (KINDS[labels[number]] if labels is not None else ".") / name, image)
    return folder
