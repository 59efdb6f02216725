"""Figures by class: how many images of each class are recognised, and what the others are taken for."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from unpose.data import Split
from unpose.train.evaluation import predict_logits
from unpose.train.processes import Processes

_ROWS_SHOWN = 20
"""Classes in the printed table; of more, the worst are shown."""


@dataclass(frozen=True)
class ClassFigures:
    """What a classifier makes of the images of each class.

    Attributes
    ----------
    classes : tuple of str
        Names of the classes.
    confusion : (n_classes, n_classes) array of int
        ``confusion[i, j]`` images of class i were taken for class j.

    Examples
    --------
    >>> figures = ClassFigures(("cat", "dog"), np.array([[3, 1], [2, 0]]))
    >>> figures.accuracy, figures.recall.tolist()
    (0.5, [0.75, 0.0])
    >>> figures.worst()
    'no dog is right: 0 of 2, 2 taken for cat'
    """

    classes: tuple[str, ...]
    confusion: NDArray

    @property
    def support(self) -> NDArray:
        """Number of images of each class, (n_classes,)."""
        return self.confusion.sum(1)

    @property
    def accuracy(self) -> float:
        """Share of all images that are classified correctly."""
        return float(self.confusion.trace() / self.confusion.sum())

    @property
    def recall(self) -> NDArray:
        """Share of the images of each class that are classified correctly; NaN for a class without images."""
        with np.errstate(invalid="ignore"):
            return self.confusion.diagonal() / self.support

    @property
    def precision(self) -> NDArray:
        """Share of the images taken for each class that are of it; NaN if there are none."""
        with np.errstate(invalid="ignore"):
            return self.confusion.diagonal() / self.confusion.sum(0)

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall of the classes that have images."""
        return float(np.nanmean(self.recall))

    def worst(self) -> str:
        """Say in words which class is recognised worst, and what its images are taken for.

        Classes of which no image is right are all named.
        """
        support, right = self.support, self.confusion.diagonal()
        missed = [i for i in np.argsort(-support, kind="stable") if support[i] and not right[i]]
        if missed:
            parts = [f"no {self._with_count(i)}" for i in missed[:6]]
            more = f"; and {len(missed) - 6} more classes of which none is right" if len(missed) > 6 else ""
            return "; ".join(parts) + more
        worst = int(np.nanargmin(self.recall))
        if right[worst] == support[worst]:
            return "all images of all classes are right"
        return f"the worst class is {self._with_count(worst)}"

    def _with_count(self, i: int) -> str:
        others = self.confusion[i].copy()
        others[i] = 0
        verb = " is right" if not self.confusion[i, i] else ""
        taken = int(others.argmax())
        return (
            f"{self.classes[i]}{verb}: {self.confusion[i, i]:,} of {self.support[i]:,}"
            f"{'' if verb else ' right'}, {others[taken]:,} taken for {self.classes[taken]}"
        )

    def _repr_html_(self) -> str:
        """Recall and precision of each class, for notebooks."""
        from unpose.report import table_html

        columns = {
            "class": self.classes,
            "images": self.support.tolist(),
            "recall": self.recall.tolist(),
            "precision": self.precision.tolist(),
        }
        return table_html(columns, notes=[self.worst()])

    def table(self) -> str:
        """Format recall, precision and number of images of each class, the worst first."""
        order = [i for i in np.argsort(self.recall, kind="stable") if self.support[i]]
        rows = [("class", "right", "of", "recall", "precision")]
        for i in order[:_ROWS_SHOWN]:
            precision = "" if np.isnan(self.precision[i]) else f"{self.precision[i]:.0%}"
            right, of = self.confusion[i, i], self.support[i]
            rows.append((self.classes[i], f"{right:,}", f"{of:,}", f"{self.recall[i]:.0%}", precision))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for first, *others in rows:
            numbers = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
            lines.append("  ".join([first.ljust(widths[0]), *numbers]))
        if len(order) > _ROWS_SHOWN:
            lines.append(f"and {len(order) - _ROWS_SHOWN} more classes, with a higher recall")
        return "\n".join(line.rstrip() for line in lines)

    def as_dictionary(self) -> dict[str, Any]:
        """Return the figures as plain values that JSON can hold."""
        return {
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "worst": self.worst(),
            "classes": [
                {
                    "class": name,
                    "images": int(self.support[i]),
                    "right": int(self.confusion[i, i]),
                    "recall": None if np.isnan(self.recall[i]) else float(self.recall[i]),
                    "precision": None if np.isnan(self.precision[i]) else float(self.precision[i]),
                }
                for i, name in enumerate(self.classes)
            ],
            "confusion": self.confusion.tolist(),
        }


def class_figures(
    network: nn.Module,
    split: Split,
    classes: tuple[str, ...],
    *,
    processes: Processes | None = None,
    device: torch.device | str = "cpu",
) -> ClassFigures:
    """Classify images and count the answers by class.

    Parameters
    ----------
    network : torch.nn.Module
    split : Split
        Images and labels.
    classes : tuple of str
        Names of the outputs of the network, which the labels index.
    processes : Processes, optional
        Each process classifies its share; by default this process alone.
    device : torch.device or str, default "cpu"
        On which processes add their counts.

    Returns
    -------
    ClassFigures

    Examples
    --------
    >>> from unpose.data import load
    >>> digits = load("digits")
    >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(400, 10))
    >>> class_figures(network, digits.test, digits.classes).confusion.shape
    (10, 10)
    """
    processes = processes or Processes()
    own = np.array_split(np.arange(len(split)), processes.count)[processes.rank]
    counts = torch.zeros(len(classes), len(classes), dtype=torch.float64)
    if len(own):
        part = split.take(own)
        answers = predict_logits(network, part.images).argmax(1)
        counts.index_put_(
            (torch.from_numpy(part.labels), answers), torch.ones(len(own), dtype=torch.float64), accumulate=True
        )
    total = processes.sum(counts.to(device)).cpu().numpy()
    return ClassFigures(tuple(classes), np.rint(total).astype(np.int64))


def majority_accuracy(train: Split, test: Split) -> float:
    """Accuracy of always answering with the most frequent class of the training images.

    Parameters
    ----------
    train, test : Split

    Returns
    -------
    float

    Examples
    --------
    >>> train = Split(np.zeros((3, 8, 8)), np.array([1, 1, 0]))
    >>> majority_accuracy(train, Split(np.zeros((2, 8, 8)), np.array([0, 1])))
    0.5
    """
    return float((test.labels == np.bincount(train.labels).argmax()).mean())
