"""Labelled images in three parts, how a whole is divided into them, and marks by which an image is known again."""

import base64
import hashlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from unpose.data.folders import InputError

_HELD_OUT = 0.1
"""Share of the training images that is set aside for validation where a data set has no such part of its own."""
DRAWN = "divided 70:15:15 within each class, seed 0"
"""How the source of a set ends whose three parts were drawn here."""
_MARK = 6
"""Bytes of a mark: that any of 50,000 images is taken for one of 50,000 others has a chance of 1 in 100,000."""
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)


@dataclass(frozen=True)
class Split:
    """Images and the class of each."""

    images: NDArray  # (n, h, w) or (n, h, w, c); uint8, or floats in natural units
    labels: NDArray  # (n,) int64, places in Dataset.classes

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise InputError(f"there are {len(self.images):,} images and {len(self.labels):,} labels")
        if self.images.ndim not in (3, 4):
            raise InputError(f"images must be (n, h, w) or (n, h, w, c), got an array of shape {self.images.shape}")

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: NDArray) -> "Split":
        """The images with these numbers."""
        return Split(self.images[chosen], self.labels[chosen])


@dataclass(frozen=True)
class Dataset:
    """Labelled images in three parts that share no image."""

    name: str  # of these very images; a made set is not called like the original
    source: str  # where they come from, in a sentence
    classes: tuple[str, ...]
    train: Split
    validation: Split
    test: Split
    notes: tuple[str, ...] = ()  # what a reader should know: files that could not be read
    is_drawn: bool = False  # its parts were drawn from one whole, which other images in it would divide otherwise

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise InputError(f"{self.name} has one class, {self.classes}; learning to tell apart needs at least two")
        shapes = {part.images.shape[1:] for part in (self.train, self.validation, self.test)}
        if len(shapes) > 1:
            raise InputError(f"{self.name}: its parts differ in image size or colour: {sorted(shapes)}")
        for part, name in ((self.train, "training"), (self.validation, "validation"), (self.test, "test")):
            if not len(part):
                raise InputError(f"{self.name} has no images for {name}")
            if part.labels.min() < 0 or part.labels.max() >= len(self.classes):
                raise InputError(
                    f"{self.name}: labels for {name} run from {part.labels.min()} to {part.labels.max()}, and there "
                    f"are {len(self.classes)} classes"
                )

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width."""
        return self.train.images.shape[1], self.train.images.shape[2]

    @property
    def channels(self) -> int:
        """1 for grey images, otherwise the length of their last axis."""
        return 1 if self.train.images.ndim == 3 else self.train.images.shape[3]


def held_out(
    labels: NDArray, shares: Sequence[float], random_state: int = 0, classes: Sequence[str] = ()
) -> list[NDArray]:
    """Numbers of the images of each part: first what is left, then each share, with the same share of every class.

    Every class gets at least one image in every part; a class with fewer images than parts is an error, which names it.
    """
    rng = np.random.default_rng(random_state)
    parts: list[list[NDArray]] = [[] for _ in range(len(shares) + 1)]
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        if len(members) < len(parts):
            name = repr(classes[label]) if 0 <= label < len(classes) else label
            raise InputError(
                f"class {name} has too few images: {len(members)}, and at least {len(parts)} different ones are "
                "needed, one for each part"
            )
        for part, share in zip(parts[1:], shares, strict=True):
            taken = max(1, round(share * len(labels[labels == label])))
            part.append(members[:taken])
            members = members[taken:]
        parts[0].append(members)
    return [np.sort(np.concatenate(part)) for part in parts]


def drawn(whole: Split, shares: Sequence[float], classes: Sequence[str]) -> list[Split]:
    """The parts of :func:`held_out`; a copy of an image goes where that goes."""
    first: dict[bytes, int] = {}
    origins = np.array([first.setdefault(mark, number) for number, mark in enumerate(marks(whole.images))])
    originals = np.flatnonzero(origins == np.arange(len(whole)))
    parts = held_out(whole.labels[originals], shares, classes=classes)
    return [whole.take(np.isin(origins, originals[part])) for part in parts]


def apart(dataset: Dataset) -> Dataset:
    """The set without images for validation and test that a part before has too, and notes of how many those were."""
    seen, notes, kept = set(marks(dataset.train.images)), list(dataset.notes), []
    for name, before in (("validation", "training"), ("test", "training or validation")):
        part: Split = getattr(dataset, name)
        found = marks(part.images)
        copied = np.array([mark in seen for mark in found])
        seen.update(found)
        if copied.all():
            raise InputError(
                f"{dataset.name}: every image for {name} is, pixel for pixel, one for {before}, so nothing would be "
                "measured; give others"
            )
        if copied.any():
            notes.append(f"{copied.sum():,} of {len(part):,} images for {name} left out: they are in {before} too")
        kept.append(part.take(~copied))
    validation, test = kept
    return replace(dataset, validation=validation, test=test, notes=tuple(notes))


def marks(images: NDArray) -> list[bytes]:
    """A few bytes for each image, by which its pixels are known again: (n, h, w[, c]) -> n marks.

    A hash of the image's norm and of weighted sums of its pixels, rounded: what another machine computes otherwise in
    the last bits of pixels changes the marks of few images.
    """
    rows = images.reshape(*images.shape[:2], int(np.prod(images.shape[2:])))  # (n, h, w * c)
    # Waves whose frequencies have no common measure: no two pixels weigh the same in all sums.
    down = np.cos(np.outer(np.sqrt(_PRIMES), np.arange(rows.shape[1])))  # (sums, h)
    across = np.cos(np.outer(np.sqrt(_PRIMES[::-1]), np.arange(rows.shape[2])))  # (sums, w * c)
    found = []
    for image in rows:
        with np.errstate(invalid="ignore"):  # pixels that are no numbers are refused where they are used
            pixels = image.astype(np.float64)
            norm = max(float(np.linalg.norm(pixels)), np.finfo(np.float64).tiny)
            sums = (down @ pixels * across).sum(axis=1) / norm
            rounded = np.rint(1e4 * np.append(sums, np.log(norm))) + 0.0  # no -0, whose bytes differ
        found.append(hashlib.blake2b(rounded.astype("<f8").tobytes(), digest_size=_MARK).digest())
    return found


def packed(known: AbstractSet[bytes]) -> str:
    """Marks as text, eight characters each; the same for the same marks."""
    return base64.b64encode(b"".join(sorted(known))).decode()


def unpacked(text: object, source: str) -> set[bytes]:
    """The marks of a text that :func:`packed` made; an error that names its source where it is none."""
    try:
        content = base64.b64decode(text, validate=True) if isinstance(text, str) else b"?"
    except ValueError:
        content = b"?"
    if len(content) % _MARK:
        raise ValueError(f"{source}: its list of learnt images is cut off or changed; take another copy of the file")
    return {content[start : start + _MARK] for start in range(0, len(content), _MARK)}


def with_validation(
    name: str, source: str, classes: tuple[str, ...], train: Split, test: Split, notes: tuple[str, ...] = ()
) -> Dataset:
    kept, validation = held_out(train.labels, (_HELD_OUT,))
    return Dataset(name, source, classes, train.take(kept), train.take(validation), test, notes)


def integers(labels: NDArray) -> NDArray:
    if labels.ndim != 1 or labels.dtype.kind not in "iufb" or not np.array_equal(labels, np.trunc(labels)):
        raise InputError(f"labels must be a list of whole numbers, got {labels.dtype} of shape {labels.shape}")
    return labels.astype(np.int64)
