"""Pictures and altered copies of them, for the benchmarks of ``unpose dedupe``."""

import importlib.util
import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFont, ImageOps

CUBIC = Image.Resampling.BICUBIC
ASPECTS = ((32, 32), (32, 24), (24, 32), (32, 21))
DEVELOPMENT = ("skimage/data/astronaut.png", "skimage/data/coffee.png", "skimage/data/chelsea.png",
               "skimage/data/motorcycle_left.png", "skimage/data/retina.jpg")  # fmt: skip
KEPT_APART = ("sklearn/datasets/images/flower.jpg", "sklearn/datasets/images/china.jpg", "skimage/data/rocket.jpg",
              "skimage/data/ihc.png", "skimage/data/hubble_deep_field.jpg")  # fmt: skip


def cifar(data: Path, part: str, count: int, start: int = 0, seed: int = 0) -> list[Image.Image]:
    """Pictures of CIFAR-10 at four aspect ratios, enlarged four to five times; ``part`` is test or train_batch1..5."""
    with np.load(data / f"cifar10_{part}.npz") as stored:
        pixels = stored["x_test" if part == "test" else "x_train"][start : start + count]
    random = np.random.default_rng(seed)
    pictures = []
    for image in pixels:
        width, height = ASPECTS[random.integers(len(ASPECTS))]
        left, top, zoom = (32 - width) // 2, (32 - height) // 2, random.uniform(4, 5)
        cut = Image.fromarray(image[top : top + height, left : left + width])
        pictures.append(cut.resize((round(width * zoom), round(height * zoom)), CUBIC))
    return pictures


def tiles(names: Sequence[str], size: tuple[int, int] = (240, 180)) -> list[Image.Image]:
    """Tiles that do not overlap of the photographs that scikit-image and scikit-learn bring."""
    pictures = []
    for name in names:
        package, _, inner = name.partition("/")
        spec = importlib.util.find_spec(package)
        assert spec is not None, f"{package} is not installed"
        photograph = Image.open(Path(str(spec.origin)).parent / inner).convert("RGB")
        for top in range(0, photograph.height - size[1] + 1, size[1]):
            for left in range(0, photograph.width - size[0] + 1, size[0]):
                pictures.append(photograph.crop((left, top, left + size[0], top + size[1])))
    return pictures


def array_pictures(
    data: Path, file: str, count: int, key: str = "x", seed: int = 0, start: int = 0
) -> list[Image.Image]:
    """Grey images of a data set (plankton, red cells), enlarged to 160 pixels: some of a random order of all."""
    with np.load(data / file) as stored:
        pixels = stored[key]
    chosen = np.random.default_rng(seed).permutation(len(pixels))[start : start + count]
    return [Image.fromarray(pixels[i]).convert("RGB").resize((160, 160), CUBIC) for i in chosen]


def turned(picture: Image.Image, random: np.random.Generator) -> Image.Image:
    """Turned by any angle, all of it kept, with black or white corners."""
    fill = 255 * int(random.integers(2))
    return picture.rotate(random.uniform(0, 360), CUBIC, expand=True, fillcolor=(fill,) * 3)


def turned_in_frame(picture: Image.Image, random: np.random.Generator) -> Image.Image:
    """Turned by any angle in a frame of the same size: corners are lost, others are black."""
    return picture.rotate(random.uniform(0, 360), CUBIC)


def turned_and_cut(picture: Image.Image, random: np.random.Generator) -> Image.Image:
    """Turned by any angle and cut to the largest upright rectangle, as when a horizon is straightened."""
    degrees = random.uniform(0, 360)
    whole = picture.rotate(degrees, CUBIC, expand=True)
    width, height = (side - 2 for side in _largest_upright(picture.size, math.radians(degrees)))
    x, y = whole.width / 2, whole.height / 2
    return whole.crop((round(x - width / 2), round(y - height / 2), round(x + width / 2), round(y + height / 2)))


def _largest_upright(size: tuple[int, int], angle: float) -> tuple[float, float]:
    """Width and height of the largest upright rectangle inside one of the given size that is turned."""
    width, height = size
    sine, cosine = abs(math.sin(angle)), abs(math.cos(angle))
    if min(size) <= 2 * sine * cosine * max(size) or abs(sine - cosine) < 1e-10:
        half = min(size) / 2
        return (half / sine, half / cosine) if width >= height else (half / cosine, half / sine)
    determinant = cosine**2 - sine**2
    return (width * cosine - height * sine) / determinant, (height * cosine - width * sine) / determinant


def mirrored(picture: Image.Image, random: np.random.Generator) -> Image.Image:
    """Mirrored, and turned by a multiple of a quarter turn."""
    return ImageOps.mirror(picture).rotate(90 * int(random.integers(4)), expand=True)


def scaled(picture: Image.Image, random: np.random.Generator) -> Image.Image:
    """Scaled by a factor from 0.4 to 2.5."""
    factor = math.exp(random.uniform(math.log(0.4), math.log(2.5)))
    return picture.resize((round(picture.width * factor), round(picture.height * factor)), Image.Resampling.LANCZOS)


def cropped(picture: Image.Image, random: np.random.Generator) -> Image.Image:
    """Without 10 % of its width and of its height, at any place."""
    width, height = round(0.9 * picture.width), round(0.9 * picture.height)
    left, top = int(random.integers(picture.width - width + 1)), int(random.integers(picture.height - height + 1))
    return picture.crop((left, top, left + width, top + height))


def recompressed(picture: Image.Image, random: np.random.Generator) -> Image.Image:
    """JPEG of quality 15 to 60."""
    return as_jpeg(picture, int(random.uniform(15, 60)))


def brightened(picture: Image.Image, random: np.random.Generator) -> Image.Image:
    """Brightness times 0.65 to 1.5 and contrast times 0.7 to 1.4, clipped."""
    return ImageEnhance.Contrast(ImageEnhance.Brightness(picture).enhance(random.uniform(0.65, 1.5))).enhance(
        random.uniform(0.7, 1.4)
    )


def bordered(picture: Image.Image, random: np.random.Generator) -> Image.Image:
    """A border of 3 to 12 % in black, white or any colour."""
    colours = [(0, 0, 0), (255, 255, 255), tuple(int(v) for v in random.integers(0, 256, 3))]
    return ImageOps.expand(
        picture, 1 + int(random.uniform(0.03, 0.12) * max(picture.size)), colours[random.integers(3)]
    )


def stamped(picture: Image.Image, random: np.random.Generator) -> Image.Image:
    """A word in large letters across the picture, or an opaque label of 25 % x 12 % of its sides, anywhere."""
    return _stamped(picture, random, (0.25, 0.12))


def covered(picture: Image.Image, random: np.random.Generator) -> Image.Image:
    """An opaque label of 35 % x 22 % of its sides, anywhere: harder than the stamp of the goal."""
    return _stamped(picture, random, (0.35, 0.22), word=False)


def _stamped(
    picture: Image.Image, random: np.random.Generator, size: tuple[float, float], word: bool = True
) -> Image.Image:
    picture = picture.copy()
    draw, (width, height) = ImageDraw.Draw(picture, "RGBA"), picture.size
    colour = [(255, 255, 255), (0, 0, 0), (220, 30, 30)][random.integers(3)]
    if word and random.random() < 0.5:
        font = ImageFont.load_default(size=max(8.0, 0.14 * height))
        place = random.uniform(0, 0.4) * width, random.uniform(0.1, 0.8) * height
        draw.text(place, "SAMPLE", fill=(*colour, 200), font=font)
        return picture
    across, down = size[0] * width, size[1] * height
    x, y = random.uniform(0, width - across), random.uniform(0, height - down)
    draw.rectangle((x, y, x + across, y + down), fill=(*colour, 255))
    font = ImageFont.load_default(size=max(6.0, 0.6 * down))
    draw.text((x + 0.1 * across, y + 0.1 * down), "12:30", fill=(128, 128, 128, 255), font=font)
    return picture


def several(picture: Image.Image, random: np.random.Generator) -> Image.Image:
    """Cropped by 10 %, brightened, mirrored or not, and turned by any angle."""
    picture = brightened(cropped(picture, random), random)
    return turned(ImageOps.mirror(picture) if random.random() < 0.5 else picture, random)


ALTERATIONS: dict[str, Callable[[Image.Image, np.random.Generator], Image.Image]] = {
    "turned": turned, "turned in its frame": turned_in_frame, "turned and cut": turned_and_cut, "mirrored": mirrored,
    "scaled": scaled, "cropped by 10 %": cropped, "recompressed": recompressed, "brightened": brightened,
    "bordered": bordered, "stamped": stamped, "covered": covered, "several": several,
}  # fmt: skip


def as_jpeg(picture: Image.Image, quality: int) -> Image.Image:
    """The picture after JPEG of this quality."""
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")
