"""Figures by class, as ``train`` and ``evaluate`` print and write them."""

from pathlib import Path
from typing import TYPE_CHECKING

from unpose.cli.shared.output import write_output, write_picture

if TYPE_CHECKING:
    from unpose.train import ClassFigures


def class_lines(figures: "ClassFigures") -> str:
    """The table of classes and a sentence about the worst."""
    worst = figures.worst()
    return (
        f"{figures.table()}\n{worst[0].upper()}{worst[1:]}. Mean recall of the classes: "
        f"{figures.balanced_accuracy:.2%}."
    )


def write_confusion(stem: Path, figures: "ClassFigures", title: str) -> None:
    """Write the confusion matrix as a picture (``STEM.png``) and as a table (``STEM.csv``)."""
    from unpose.report import figures as drawing
    from unpose.runs.tables import csv_text

    write_picture(
        stem.with_name(f"{stem.name}.png"), drawing.confusion(figures.confusion, figures.classes, title=title)
    )
    columns = ["class", "images", "recall", "precision", *(f"taken for {name}" for name in figures.classes)]
    rows = [
        [each["class"], each["images"], each["recall"], each["precision"], *counts]
        for each, counts in zip(figures.as_dictionary()["classes"], figures.confusion.tolist(), strict=True)
    ]
    write_output(stem.with_name(f"{stem.name}.csv"), csv_text(columns, rows).encode())
