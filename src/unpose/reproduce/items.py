"""What one reproducible result of a paper is: its name, where it stands in the paper, its cost, and how it is made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image


def _report_nothing(stage: str, done: int, total: int, remark: str = "") -> None:
    """Progress that nobody looks at."""


@dataclass(frozen=True)
class Settings:
    """What every item is run with.

    Parameters
    ----------
    seed : int, default 0
        Seed of the random data and poses.
    full : bool, default False
        Whether to run at the size of the paper, or at the small size that takes at most two minutes on two cores.
    folder : Path, default Path(".")
        Folder of the results. An item that trains networks keeps its checkpoints there; all others leave writing to
        the caller.
    report : callable, optional
        Called as ``report(stage, done, total)`` while the item runs; nothing is reported by default.

    Examples
    --------
    >>> Settings(seed=3).full
    False
    """

    seed: int = 0
    full: bool = False
    folder: Path = Path()
    report: Callable[..., None] = _report_nothing


@dataclass(frozen=True)
class Outcome:
    """What an item found: a picture or a table, the numbers behind it, and the main ones in sentences.

    Parameters
    ----------
    numbers : dict
        All results, as plain values that can be written as JSON.
    findings : sequence of str
        The main results, one sentence each.
    figure : PIL.Image.Image, optional
        The picture.
    table : sequence of dict, optional
        The rows of a table, each a dictionary from column names to cells.

    Examples
    --------
    >>> print(Outcome({}, (), table=[{"group": "c4", "error": 0.25}, {"group": "c8", "error": 0.5}]).markdown())
    | group | error |
    |---|---|
    | c4 | 0.25 |
    | c8 | 0.5 |
    """

    numbers: dict[str, Any]
    findings: Sequence[str]
    figure: "Image | None" = None
    table: Sequence[dict[str, Any]] | None = None

    def markdown(self) -> str:
        """The table as Markdown; an empty string if there is none."""
        if not self.table:
            return ""
        rows: list[Sequence[Any]] = [list(self.table[0]), ["---"] * len(self.table[0])]
        rows += [list(row.values()) for row in self.table]
        lines = ["| " + " | ".join(map(_cell, row)) + " |" for row in rows]
        lines[1] = lines[1].replace(" ", "")
        return "\n".join(lines)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Option:
    """An option that only one item has; its type is that of its default.

    Parameters
    ----------
    name : str
        Name with hyphens, as on the command line; the item's function takes it with underscores.
    default : float, int, str or bool
        Default value.
    help : str
        One sentence about it.
    choices : sequence of str, default ()
        The allowed values, if they are few.
    bounds : (float, float), optional
        The smallest and the largest allowed number.

    Examples
    --------
    >>> Option("max-angle", 65.0, "Largest rotation in degrees.", bounds=(0, 180)).keyword
    'max_angle'
    """

    name: str
    default: Any
    help: str
    choices: Sequence[str] = ()
    bounds: tuple[float, float] | None = None

    @property
    def keyword(self) -> str:
        """The name of the argument of the item's function."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class Item:
    """A figure, table, theorem, proposition or experiment of a paper that can be run.

    Parameters
    ----------
    name : str
        Name by which it is run: ``unpose reproduce NAME``.
    paper : str
        Short title of the paper.
    reference : str
        Where it stands in the paper, such as "Theorem 4.1".
    title : str
        One line that says what it shows.
    run : callable
        Called as ``run(settings, **options)``, returns an :class:`Outcome`.
    seconds : int
        About how long it takes at the small size on two cores.
    full_seconds : int, optional
        The same at the size of the paper; None if the small size is already that of the paper.
    description : str, default ""
        A few sentences more, for its help.
    options : sequence of Option, default ()
        Options of this item alone.
    seed : int, default 0
        Default seed.

    Examples
    --------
    >>> def run(settings, *, sides):
    ...     return Outcome({"angles": 180.0 * (sides - 2)}, ())
    >>> item = Item("angles", "Elements", "I.32", "Angles of a polygon", run, 1, options=[Option("sides", 3, "Sides.")])
    >>> item.outcome().numbers, item.outcome(sides=4).numbers
    ({'angles': 180.0}, {'angles': 360.0})
    """

    name: str
    paper: str
    reference: str
    title: str
    run: Callable[..., Outcome]
    seconds: int
    full_seconds: int | None = None
    description: str = ""
    options: Sequence[Option] = field(default=())
    seed: int = 0

    def outcome(self, settings: Settings | None = None, **options: Any) -> Outcome:
        """Run the item, with its default options where none are given."""
        known = {option.keyword: option.default for option in self.options}
        if unknown := sorted(options.keys() - known.keys()):
            raise ValueError(f"{self.name} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}")
        return self.run(Settings(seed=self.seed) if settings is None else settings, **known | options)
