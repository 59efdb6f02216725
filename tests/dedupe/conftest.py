"""Photograph-like pictures without data: smooth noise with edges, of uneven sizes."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage


def picture(seed, shape=(113, 149)):
    random = np.random.default_rng(seed)
    layers = [ndimage.gaussian_filter(random.standard_normal(shape), sigma) * sigma for sigma in (2, 5, 11)]
    image = sum(layers) + 0.6 * (ndimage.gaussian_filter(random.standard_normal(shape), 7) > 0.02)
    image = (image - image.min()) / np.ptp(image)
    return image.astype(np.float32)


def as_pil(image):
    return Image.fromarray((image * 255 + 0.5).astype(np.uint8))


def as_floats(image):
    return np.asarray(image.convert("L"), dtype=np.float32) / 255


@pytest.fixture(scope="session")
def synthetic():
    return SimpleNamespace(picture=picture, as_pil=as_pil, as_floats=as_floats)
