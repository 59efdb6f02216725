"""Labelled images in three parts, how a data set is split into them, and fingerprints that recognise images.

Users need :class:`Dataset` and :class:`Split`, which ``unpose.data`` exports. Training and evaluation import the rest
from here: fingerprints recognise the training images of a network in a folder that has grown since.
"""

import base64
import hashlib
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from unpose.data.folders import InputError
from unpose.files.arrays import read_array

__all__ = [
    "RANDOM_SPLIT", "Dataset", "Split", "decode_fingerprints", "encode_fingerprints", "image_fingerprints",
    "random_split",
]  # fmt: skip

RANDOM_SPLIT = "divided 70:15:15 within each class, seed 0"
"""The end of :attr:`Dataset.source` if the three parts were drawn at random here."""

_VALIDATION_SHARE = 0.1
"""Share of the training images that becomes the validation part if a data set has none."""

_FINGERPRINT_BYTES = 6
"""The probability that any of 50,000 images has the fingerprint of one of 50,000 others is 1 in 100,000."""

_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53)


@dataclass(frozen=True)
class Split:
    """Images and their labels.

    Parameters
    ----------
    images : ndarray, shape (n, h, w) or (n, h, w, c)
        ``uint8``, or floats as they are.
    labels : ndarray of int64, shape (n,)
        Indices into :attr:`Dataset.classes`.

    Examples
    --------
    >>> split = Split(np.zeros((3, 8, 8)), np.array([0, 1, 1]))
    >>> len(split), len(split.take(split.labels == 1))
    (3, 2)
    """

    images: NDArray
    labels: NDArray

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise InputError(f"there are {len(self.images):,} images and {len(self.labels):,} labels")
        if self.images.ndim not in (3, 4):
            raise InputError(f"images must be (n, h, w) or (n, h, w, c), got an array of shape {self.images.shape}")

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Split({len(self):,} images of {'x'.join(map(str, self.images.shape[1:]))})"

    def take(self, chosen: NDArray) -> "Split":
        """The images with these indices, or where this mask is true."""
        return Split(self.images[chosen], self.labels[chosen])

    def sample(self, most: int, rng: np.random.Generator) -> "Split":
        """About so many images, drawn from every class in proportion, at least one of each; all, if they are fewer."""
        if len(self) <= most:
            return self
        chosen = []
        for label in np.unique(self.labels):
            members = rng.permutation(np.flatnonzero(self.labels == label))
            chosen.append(members[: max(1, int(most * len(members) / len(self)))])
        return self.take(np.sort(np.concatenate(chosen)))


@dataclass(frozen=True)
class Dataset:
    """Labelled images in three parts that share no image.

    Parameters
    ----------
    name : str
        The name of exactly these images; a set that was generated here does not have the name of the original.
    source : str
        Where the images come from, in a sentence.
    classes : tuple of str
        Names of the classes, at least two.
    train, validation, test : Split
        The three parts.
    notes : tuple of str, default ()
        What a reader should know, such as files that could not be read.
    is_random_split : bool, default False
        Whether the parts were drawn at random from one set; if images are added to it, they are drawn differently.

    Examples
    --------
    >>> part = Split(np.zeros((2, 8, 8)), np.array([0, 1]))
    >>> dataset = Dataset("blank", "made up", ("a", "b"), part, part, part)
    >>> dataset.image_size, dataset.channels
    ((8, 8), 1)
    """

    name: str
    source: str
    classes: tuple[str, ...]
    train: Split
    validation: Split
    test: Split
    notes: tuple[str, ...] = ()
    is_random_split: bool = False

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise InputError(f"{self.name} has one class, {self.classes}; a classifier needs at least two")
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

    def _repr_html_(self) -> str:
        """A training image of each class with the number of its images, for notebooks."""
        from unpose.report import MOST_ROWS, pictures_html, text_html

        counts = np.bincount(self.train.labels, minlength=len(self.classes))
        shown = [label for label in range(len(self.classes)) if counts[label]][:MOST_ROWS]
        images = self.train.images[[int(np.argmax(self.train.labels == label)) for label in shown]]
        height, width = self.image_size
        text = (
            f"{self.name}: {len(self.classes)} classes, images of {height} x {width} pixels\n{len(self.train):,} for "
            f"training, {len(self.validation):,} for validation, {len(self.test):,} for the test"
        )
        return text_html(text) + pictures_html(images, [f"{self.classes[label]}: {counts[label]:,}" for label in shown])


def stratified_split(
    labels: NDArray, shares: Sequence[float], random_state: int = 0, classes: Sequence[str] = ()
) -> list[NDArray]:
    """Indices of the images of each part: first the remainder, then one part per share, drawn within every class.

    Every class has at least one image in every part; a class with fewer images than parts raises an error.
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


def random_split(whole: Split, shares: Sequence[float], classes: Sequence[str]) -> list[Split]:
    """The parts of :func:`stratified_split`, such that all copies of an image are in the same part."""
    first: dict[bytes, int] = {}
    fingerprints = image_fingerprints(whole.images)
    origins = np.array([first.setdefault(fingerprint, index) for index, fingerprint in enumerate(fingerprints)])
    originals = np.flatnonzero(origins == np.arange(len(whole)))
    parts = stratified_split(whole.labels[originals], shares, classes=classes)
    return [whole.take(np.isin(origins, originals[part])) for part in parts]


def without_shared_images(dataset: Dataset) -> Dataset:
    """Remove validation and test images that are also in an earlier part; notes say how many."""
    seen, notes, kept = set(image_fingerprints(dataset.train.images)), list(dataset.notes), []
    for name, before in (("validation", "training"), ("test", "training or validation")):
        part: Split = getattr(dataset, name)
        fingerprints = image_fingerprints(part.images)
        copied = np.array([fingerprint in seen for fingerprint in fingerprints])
        seen.update(fingerprints)
        if copied.all():
            raise InputError(
                f"{dataset.name}: every image for {name} is also an image for {before}, so the result would mean "
                "nothing; give other images"
            )
        if copied.any():
            notes.append(f"{copied.sum():,} of {len(part):,} images for {name} left out: they are in {before} too")
        kept.append(part.take(~copied))
    validation, test = kept
    return replace(dataset, validation=validation, test=test, notes=tuple(notes))


def image_fingerprints(images: NDArray) -> list[bytes]:
    """Compute a short hash of the pixels of each image: (n, h, w[, c]) -> n times 6 bytes.

    The hash is that of the image's norm and of weighted sums of its pixels, both rounded, so that pixels that another
    machine computes differently in the last bits change the fingerprints of few images. ``uint8`` and ``uint16`` count
    as shares of their full scale, so that an image in an array and the same one in a file have one fingerprint.
    """
    rows = images.reshape(*images.shape[:2], int(np.prod(images.shape[2:])))  # (n, h, w * c)
    # Cosines of incommensurable frequencies: no two pixels have the same weight in all sums.
    down = np.cos(np.outer(np.sqrt(_PRIMES), np.arange(rows.shape[1])))  # (sums, h)
    across = np.cos(np.outer(np.sqrt(_PRIMES[::-1]), np.arange(rows.shape[2])))  # (sums, w * c)
    fingerprints = []
    full_scale = np.iinfo(rows.dtype).max if rows.dtype in (np.uint8, np.uint16) else 1  # as unpose.files reads them
    for image in rows:
        with np.errstate(invalid="ignore"):  # NaN and infinite pixels are rejected by whoever uses them
            pixels = image.astype(np.float64) / full_scale
            norm = max(float(np.linalg.norm(pixels)), np.finfo(np.float64).tiny)
            weighted = (down @ pixels * across).sum(axis=1) / norm
            rounded = np.rint(1e4 * np.append(weighted, np.log(norm))) + 0.0  # + 0.0 turns -0 into 0
        digest = hashlib.blake2b(rounded.astype("<f8").tobytes(), digest_size=_FINGERPRINT_BYTES)
        fingerprints.append(digest.digest())
    return fingerprints


def encode_fingerprints(fingerprints: AbstractSet[bytes]) -> str:
    """Encode fingerprints as text, 8 characters each; the order does not matter."""
    return base64.b64encode(b"".join(sorted(fingerprints))).decode()


def decode_fingerprints(text: object, source: str) -> set[bytes]:
    """Decode the text of :func:`encode_fingerprints`; an error names the ``source`` of a damaged text."""
    try:
        content = base64.b64decode(text, validate=True) if isinstance(text, str) else b"?"
    except ValueError:
        content = b"?"
    if len(content) % _FINGERPRINT_BYTES:
        raise ValueError(f"{source}: its list of training images is damaged; take another copy of the file")
    return {content[start : start + _FINGERPRINT_BYTES] for start in range(0, len(content), _FINGERPRINT_BYTES)}


def with_validation(
    name: str, source: str, classes: tuple[str, ...], train: Split, test: Split, notes: tuple[str, ...] = ()
) -> Dataset:
    """A data set whose validation part is drawn from its training images."""
    kept, validation = stratified_split(train.labels, (_VALIDATION_SHARE,))
    return Dataset(name, source, classes, train.take(kept), train.take(validation), test, notes)


def read_part(path: Path, part: str) -> Split:
    """The images and labels in the arrays ``x_PART`` and ``y_PART`` of an ``.npz`` file."""
    return Split(read_array(path, f"x_{part}"), integer_labels(read_array(path, f"y_{part}")))


def integer_labels(labels: NDArray) -> NDArray:
    """Convert labels (n,) to int64, or raise an error if they are not whole numbers."""
    if labels.ndim != 1 or labels.dtype.kind not in "iufb" or not np.array_equal(labels, np.trunc(labels)):
        raise InputError(f"labels must be a list of whole numbers, got {labels.dtype} of shape {labels.shape}")
    return labels.astype(np.int64)
