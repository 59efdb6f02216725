"""Which symmetries do images obey, and how far? :func:`discover`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from unpose.discover.descriptors import descriptors, joined, prepare
from unpose.discover.families import FAMILIES, Family
from unpose.discover.label_test import LabelGain, label_gains
from unpose.discover.photographs import PhotographTest
from unpose.discover.two_sample import Overlap, two_sample_overlap
from unpose.images import as_batch, from_batch

Verdict = Literal["holds", "holds up to", "does not hold", "cannot tell"]

ALIKE = 0.25
"""Moved and real images are alike if no classifier tells more than this apart."""
HALF = 0.5
"""A symmetry reaches as far as at least this share of the moved images could be real ones. Without labels, it does not
hold if more than this share can be told apart."""
FEWEST = 64
"""With fewer images nothing is said: the error of ``told_apart`` would be about as large as ``ALIKE``."""
_MOST_COMPARED = 2000
MOST_USED = 3000
"""Of more images, a random sample is used."""
_OBJECTIONS = 8

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Reading:
    """What was measured at one strength of a transformation.

    Parameters
    ----------
    strength : float
        Strength, in the unit of the family; 1 for a single transformation.
    told_apart : float
        How well a classifier tells moved from real images: 0 not at all, 1 always.
    plausible : float
        Share of moved images that could be real ones.
    standard_error : float
        Of ``told_apart``.
    gain : float or None, default None
        With labels: change of the nearest neighbour's accuracy if copies moved by this strength are used too.
    gain_error : float or None, default None
        Its standard error.

    Examples
    --------
    >>> Reading(90.0, 0.95, 0.05, 0.02).plausible
    0.05
    """

    strength: float
    told_apart: float
    plausible: float
    standard_error: float
    gain: float | None = None
    gain_error: float | None = None


@dataclass(frozen=True)
class Objection:
    """An image that speaks against a symmetry.

    Parameters
    ----------
    image : int
        Index of the image.
    strength : float
        Strength at which it objects.
    resembles : int or None, default None
        With labels: the image of another class that, moved, is its nearest neighbour. Without: None, and the moved
        image itself looks like no real image.

    Examples
    --------
    >>> Objection(3, 180.0, resembles=7).resembles
    7
    """

    image: int
    strength: float
    resembles: int | None = None


@dataclass(frozen=True)
class Finding:
    """The verdict on one family of transformations.

    Parameters
    ----------
    family : str
        Name of the family.
    verdict : {"holds", "holds up to", "does not hold", "cannot tell"}
        Whether images moved so are as real as the others.
    limit : float or None
        For ``"holds up to"``: the largest strength.
    why : str
        The reason in one sentence.
    readings : tuple of Reading
        The curve, by strength.
    objections : tuple of Objection
        Images that speak against it, the clearest first.

    Examples
    --------
    >>> print(Finding("turns", "holds up to", 20.0, "Half of the images could be real up to there.", (), ()))
    turns: holds up to 20 degrees. Half of the images could be real up to there.
    """

    family: str
    verdict: Verdict
    limit: float | None
    why: str
    readings: tuple[Reading, ...] = field(repr=False)
    objections: tuple[Objection, ...] = field(repr=False)

    @property
    def answer(self) -> str:
        """The verdict with its limit."""
        return self.verdict if self.limit is None else f"{self.verdict} {self.written(self.limit)}"

    def written(self, strength: float) -> str:
        """A strength with its unit; empty for a single transformation."""
        family = _FAMILY[self.family]
        return "" if family.is_single else family.written(strength)

    def __str__(self) -> str:
        return f"{self.family}: {self.answer}. {self.why}"


@dataclass(frozen=True)
class Discovery:
    """What :func:`discover` found.

    Parameters
    ----------
    findings : tuple of Finding
        One for each family.
    n_images : int
        Number of images.
    labelled : bool
        Whether labels were used.

    Examples
    --------
    >>> turns = Finding("turns", "holds", None, "Flat.", (), ())
    >>> mirror = Finding("mirror", "does not hold", None, "Never mirrored.", (), ())
    >>> found = Discovery((turns, mirror), 500, False)
    >>> found.group, found.finite_group
    ('se2', 'c8')
    """

    findings: tuple[Finding, ...]
    n_images: int
    labelled: bool

    def __getitem__(self, family: str) -> Finding:
        for finding in self.findings:
            if finding.family == family:
                return finding
        raise KeyError(f"{family!r} was not tried; tried: {', '.join(each.family for each in self.findings)}")

    def _holds(self, family: str) -> bool:
        return any(each.family == family and each.verdict == "holds" for each in self.findings)

    def _occurs(self, family: str) -> bool:
        """Whether moved images occur, perhaps less often than others."""
        return any(
            each.family == family and (each.verdict == "holds" or (each.verdict == "cannot tell" and each.readings))
            for each in self.findings
        )

    def _limit(self, family: str, whole: float, none: float) -> float:
        limits = [each.limit for each in self.findings if each.family == family and each.limit is not None]
        return whole if self._occurs(family) else limits[0] if limits else none

    @property
    def max_angle(self) -> float:
        """Largest rotation for a search over poses, in degrees."""
        return self._limit("turns", 180.0, 0.0)

    @property
    def max_scale(self) -> float:
        """Largest change of size for a search over poses, as a factor."""
        return self._limit("scale", max(_FAMILY["scale"].strengths), 1.0)

    @property
    def group(self) -> str:
        """The largest group for a search over poses: use it with :attr:`max_angle` and :attr:`max_scale`.

        It contains what holds and what cannot be told although moved images occur: a search only compares images, and
        its price for too large a group is time.
        """
        kind = "similarity" if self.max_scale > 1 else "se2" if self.max_angle > 0 else "translation"
        return kind + ("+mirror" if self._occurs("mirror") else "")

    @property
    def finite_group(self) -> str:
        """The largest finite group that holds, for networks, ``adapt`` and ``audit``: their answers rely on it."""
        order = (
            8 if self._holds("turns") else 4 if self._holds("quarter turn") else 2 if self._holds("half turn") else 1
        )
        return f"{'d' if self._holds('mirror') else 'c'}{order}"

    @property
    def options(self) -> str:
        """Options for ``unpose cluster`` and ``unpose align``; empty if nothing could be measured."""
        if not any(each.readings for each in self.findings):
            return ""
        text = f"--group {self.group}"
        if self.group.startswith(("se2", "similarity")):
            text += f" --max-angle {self.max_angle:.3g}"
        if self.group.startswith("similarity"):
            text += f" --max-scale {self.max_scale:.3g}"
        return text

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do with the result, one line for each kind of command."""
        if not self.options:
            return ("Nothing could be measured: choose the group yourself, from what you know about the images.",)
        search = [f"For cluster and align: {self.options}"]
        if self.group == "translation":
            search = [
                "No turn, mirror or change of size was found: images can be compared as they are.",
                f"{search[0]}, which searches shifts only; without it they search all turns, too",
            ]
        if self.finite_group == "c1":
            return *search, "For networks: --group c1, an ordinary network; for adapt and audit no group holds in full"
        return *search, f"For networks, adapt and audit: --group {self.finite_group}"

    def to_dict(self) -> dict[str, Any]:
        """The results as plain values, for JSON."""
        return {
            "images": self.n_images,
            "labelled": self.labelled,
            "group": self.group,
            "max_angle": self.max_angle,
            "max_scale": self.max_scale,
            "finite_group": self.finite_group,
            "options": self.options,
            "findings": [
                {
                    "family": each.family, "verdict": each.verdict, "limit": each.limit, "why": each.why,
                    "readings": [vars(reading) for reading in each.readings],
                    "objections": [vars(objection) for objection in each.objections],
                }
                for each in self.findings
            ],
        }  # fmt: skip

    def _repr_html_(self) -> str:
        """The verdicts, each with the share of moved images that can be told apart by strength, for notebooks."""
        from unpose.report import curve_html, table_html

        columns = {
            "transformation": [each.family for each in self.findings],
            "verdict": [each.answer for each in self.findings],
            "told apart, by strength": [
                curve_html([reading.told_apart for reading in each.readings]) if each.readings else ""
                for each in self.findings
            ],
            "why": [each.why for each in self.findings],
        }
        return table_html(columns, title=f"{self.n_images:,} images", notes=self.advice)

    def __str__(self) -> str:
        width = max((len(each.family) for each in self.findings), default=0)
        answers = max((len(each.answer) for each in self.findings), default=0)
        lines = [f"{each.family:<{width}}  {each.answer:<{answers}}  {each.why}" for each in self.findings]
        return "\n".join([*lines, *self.advice])


def discover(
    images: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    families: Sequence[str] | None = None,
    random_state: int = 0,
    network: Callable[[Tensor], Tensor] | None = None,
    progress: Progress | None = None,
) -> Discovery:
    """Measure which transformations images obey, and how far.

    Parameters
    ----------
    images : array of shape (n, h, w) or (n, h, w, c)
        Images, at least 64. Of more than 3,000, a random sample is read; others are not touched. They may then be a
        list, or any object with ``shape``, ``len`` and ``[]`` for sorted arrays of integers, such as one of Zarr.
    labels : array of shape (n,), optional
        Class of each image: from people, or the answers of a model. Labels say whether moving an image changes what it
        shows; without them, only whether moved images occur.
    families : sequence of str, optional
        Names of the transformations to try; all by default: turns, mirror, half turn, quarter turn, scale, shift,
        stretch, shear, perspective, brightness.
    random_state : int, default 0
        Seed of the images that are drawn and of the halves they are divided into.
    network : callable, optional
        What recognises photographs, from images (n, c, 64, 64) in [0, 1] to vectors (n, d); by default the network of
        the extra ``unpose[features]``, if it is installed.
    progress : callable, optional
        Called as ``progress(stage, done, total)``.

    Returns
    -------
    Discovery

    Notes
    -----
    **Without labels.** If a transformation ``g`` is a symmetry, images moved by ``g`` are distributed like the images.
    A classifier is trained to tell them apart and read on images that it has not seen. A symmetry holds if at most 25 %
    can be told apart at any strength. It reaches as far as at least half of the moved images could be real ones; or, if
    that is never less than half although more than half can be told apart, to where half of these can be. Between 25
    and 50 % images alone cannot tell: moved images occur, but less often.

    **With labels.** Moved copies of the images become candidates of a nearest-neighbour classifier. If accuracy falls,
    moving changes the class: a 6 turned by 180 degrees is a 9. Where there are several strengths, the next one has to
    confirm it. If accuracy does not fall, and moved images could be real, the symmetry holds, also where poses are not
    equally frequent.

    **Photographs.** For images without a background, where more than 25 % can be told apart and nothing else speaks
    against the symmetry, the network is asked about mirrors, half and quarter turns; with labels, class by class. If it
    tells more than half apart, the symmetry does not hold, and turns reach as far as the curve says.

    Both sides of a comparison are moved by half of the transformation, so that both are blurred by the same
    interpolation. At most 2,000 images are compared and 3,000 labelled images used, drawn at random.

    Examples
    --------
    >>> import numpy as np
    >>> letters = 0.1 * np.random.default_rng(0).random((120, 16, 16))
    >>> letters[:, 3:13, 5] = letters[:, 12, 5:11] = 1  # the letter L, never mirrored
    >>> print(discover(letters, families=["mirror"])["mirror"])
    mirror: does not hold. Only 0% of the moved images could be real ones.
    """
    batch, sample, n = _read_sample(images, random_state)
    classes = None if labels is None else np.asarray(labels)
    if classes is not None and classes.shape != (n,):
        raise ValueError(f"labels must have one entry for each image: got shape {classes.shape} for {n} images")
    chosen = _chosen_families(families)
    if n < FEWEST:
        why = f"Only {n} images; at least {FEWEST} are needed."
        return Discovery(
            tuple(Finding(f.name, "cannot tell", None, why, (), ()) for f in chosen), n, labels is not None
        )
    codes = None if classes is None else torch.from_numpy(np.unique(classes, return_inverse=True)[1])[sample]
    small, centred = prepare(batch)
    known = None if codes is None else codes[:_MOST_COMPARED]
    photographs = PhotographTest(batch[:_MOST_COMPARED], known, random_state, network)
    findings = []
    for done, family in enumerate(chosen):
        if progress is not None:
            progress("trying transformations", done, len(chosen))
        overlaps = _overlaps(family, small[:_MOST_COMPARED], centred[:_MOST_COMPARED], random_state)
        gains = None if codes is None else _gains(family, small, centred, codes, random_state)
        finding = _finding(family, overlaps, gains, sample)
        if _is_open(finding) and (seen := photographs.overlap(family.name)) is not None:
            finding = _finding(family, overlaps, gains, sample, seen)
        findings.append(finding)
    if progress is not None:
        progress("trying transformations", len(chosen), len(chosen))
    return Discovery(tuple(findings), n, labels is not None)


def moved_example(images: ArrayLike, family: str, objection: Objection) -> NDArray:
    """Two images side by side that show why an image objects.

    Parameters
    ----------
    images : array of shape (n, h, w) or (n, h, w, c)
        The images that were given to :func:`discover`.
    family : str
        Name of the transformation.
    objection : Objection
        One of the objections of its finding.

    Returns
    -------
    ndarray of shape (h, 2 w) or (h, 2 w, c)
        Left the image; right the image of another class after the transformation, or the image itself after it.

    Examples
    --------
    >>> import numpy as np
    >>> moved_example(np.zeros((3, 8, 8)), "mirror", Objection(0, 1.0)).shape
    (8, 16)
    """
    array = np.asarray(images)
    other = objection.image if objection.resembles is None else objection.resembles
    batch = as_batch(array[[objection.image, other]])
    moved = _FAMILY[family].move(batch[1:], torch.eye(3, dtype=batch.dtype).expand(1, 3, 3), objection.strength, 1.0)
    return from_batch(torch.cat([batch[:1], moved], dim=-1), channels=array.ndim == 4)[0]


_FAMILY = {family.name: family for family in FAMILIES}


def _read_sample(images: Any, random_state: int) -> tuple[Tensor, Tensor, int]:
    """Up to MOST_USED of the images as a batch (m, c, h, w), their indices (m,), sorted, and the number of images."""
    source = images if hasattr(images, "shape") or isinstance(images, list | tuple) else np.asarray(images)
    n = len(source) if getattr(source, "shape", None) != () else 1
    sample = torch.randperm(n, generator=torch.Generator().manual_seed(random_state))[:MOST_USED].sort().values
    if n <= MOST_USED:
        return as_batch(source), sample, n
    rows = sample.numpy()
    try:
        return as_batch([source[k] for k in rows] if isinstance(source, list | tuple) else source[rows]), sample, n
    except ValueError as error:
        raise ValueError(
            f"{error}; counted from 0 among the {MOST_USED:,} of {n:,} images that are looked at"
        ) from None


def _chosen_families(names: Sequence[str] | None) -> list[Family]:
    if names is None:
        return list(FAMILIES)
    if unknown := [name for name in names if name not in _FAMILY]:
        raise ValueError(f"families must be of {', '.join(_FAMILY)}; got {unknown[0]!r}")
    return [_FAMILY[name] for name in names]


def _strengths(family: Family) -> tuple[float, ...]:
    return family.strengths or (1.0,)


def _overlaps(family: Family, images: Tensor, centred: Tensor, random_state: int) -> list[Overlap]:
    """The two-sample test at each strength."""
    found = []
    for strength in _strengths(family):
        real, moved = joined([descriptors(side) for side in family.sides(images, centred, strength)])
        found.append(two_sample_overlap(real, moved, random_state=random_state))
    return found


def _gains(family: Family, images: Tensor, centred: Tensor, labels: Tensor, random_state: int) -> list[LabelGain]:
    """The label test with copies moved by each strength, in both directions."""
    shares = (1.0,) if family.is_single else (-1.0, 1.0)
    strengths = _strengths(family)
    moved = [family.move(images, centred, strength, share) for strength in strengths for share in shares]
    real, *copies = joined([descriptors(each) for each in (family.move(images, centred, strengths[0], 0.0), *moved)])
    by_strength = [copies[k : k + len(shares)] for k in range(0, len(copies), len(shares))]
    return label_gains(real, by_strength, labels, random_state=random_state)


def _is_open(finding: Finding) -> bool:
    """Whether edges and colours tell some moved images from real ones, not enough to refuse the transformation."""
    told_apart = max(reading.told_apart for reading in finding.readings)
    return finding.verdict in ("holds", "cannot tell") and told_apart > ALIKE


def _finding(
    family: Family,
    overlaps: list[Overlap],
    gains: list[LabelGain] | None,
    sample: Tensor,
    seen: Overlap | None = None,
) -> Finding:
    """The verdict; ``seen`` is what a network for photographs says, which is asked where images could not tell."""
    strengths = _strengths(family)
    readings = tuple(
        Reading(
            strength, overlap.told_apart, overlap.plausible, overlap.standard_error,
            *(() if gains is None else (gains[k].gain, gains[k].standard_error)),
        )
        for k, (strength, overlap) in enumerate(zip(strengths, overlaps, strict=True))
    )  # fmt: skip
    objects = _confirmed([gains is not None and gains[k].objects for k in range(len(strengths))])
    verdict, limit, why = _verdict(family, readings, objects, 0.0 if seen is None else seen.told_apart)
    refused = None if verdict in ("holds", "cannot tell") else _first_refused(readings, objects)
    return Finding(
        family.name, verdict, limit, why, readings, _objections(strengths, overlaps, gains, objects, refused, sample)
    )


def _confirmed(objects: list[bool]) -> list[bool]:
    """Objections that the next strength confirms: of ten strengths, one objects by chance now and then.

    >>> _confirmed([False, True, False, True, True])
    [False, False, False, True, True]
    """
    return [one and following for one, following in zip(objects, [*objects[1:], True], strict=True)]


def _first_refused(readings: tuple[Reading, ...], objects: list[bool]) -> int:
    """The first strength that is refused; if none is, the one at which most images are told apart."""
    refused = [reading.plausible < HALF or no for reading, no in zip(readings, objects, strict=True)]
    return refused.index(True) if any(refused) else int(np.argmax([reading.told_apart for reading in readings]))


def _verdict(
    family: Family, readings: tuple[Reading, ...], objects: list[bool], seen: float
) -> tuple[Verdict, float | None, str]:
    """The verdict from the curve; ``objects`` says at which strengths labels object, ``seen`` what a network sees."""
    told_apart = max(reading.told_apart for reading in readings)
    first = _first_refused(readings, objects)
    reading = readings[first]
    at = "" if family.is_single else f" at {family.written(reading.strength)}"
    if objects[first]:
        limit = readings[first - 1].strength if first else 0.0
        why = f"Moved copies mislead the nearest neighbour{at}: its accuracy changes by {reading.gain:+.3f}."
    elif reading.plausible < HALF:
        limit = _crossing(readings, [1 - each.plausible for each in readings], 1 - HALF)
        why = f"Only {reading.plausible:.0%} of the moved images could be real ones{at}."
    elif told_apart <= ALIKE:
        return "holds", None, f"At most {max(told_apart, 0.0):.0%} of the moved images can be told from real ones."
    elif reading.gain is not None and seen <= HALF:
        return "holds", None, "Moved images occur, not equally often, and labels do not object."
    elif max(told_apart, seen) > HALF:
        limit = _crossing(readings, [each.told_apart for each in readings], told_apart / 2)
        why = f"{told_apart:.0%} of the moved images can be told from real ones{at}."
        if seen > HALF:
            moved = "images turned by 90 degrees" if family.name == "turns" else "moved images"
            why = f"A network for photographs tells {seen:.0%} of the {moved} from real ones."
    else:
        return "cannot tell", None, f"Moved images occur, but {told_apart:.0%} can be told apart; labels would decide."
    if family.is_single or limit < family.least:
        return "does not hold", None, why
    return "holds up to", limit, why


def _crossing(readings: tuple[Reading, ...], curve: list[float], level: float) -> float:
    """The strength at which a curve first exceeds a level, between two strengths by interpolation."""
    first = next(k for k, value in enumerate(curve) if value > level)
    if not first:
        return 0.0
    share = (level - curve[first - 1]) / (curve[first] - curve[first - 1])
    return readings[first - 1].strength + share * (readings[first].strength - readings[first - 1].strength)


def _objections(
    strengths: tuple[float, ...],
    overlaps: list[Overlap],
    gains: list[LabelGain] | None,
    objects: list[bool],
    refused: int | None,
    sample: Tensor,
) -> tuple[Objection, ...]:
    """The images that speak against a symmetry most clearly, as indices of the caller's images."""
    if gains is not None and any(objects):
        at = objects.index(True)
        pairs = sample[gains[at].misled[:_OBJECTIONS]]
        return tuple(Objection(int(image), strengths[at], int(other)) for image, other in pairs)
    if refused is None:
        return ()
    unlikely = overlaps[refused].probabilities.argsort()[:_OBJECTIONS]
    return tuple(Objection(int(sample[k]), strengths[refused]) for k in unlikely)
