"""What a long command says while it works, on stderr: a bar with the time left, or plain lines where nobody watches."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Report = Callable[[str, int, int], None]
"""Stage, how many are done, of how many."""

_QUIET = 10.0
"""Seconds between two lines about one stage."""


@contextmanager
def progress(*, log: Callable[[str], None] | None = None) -> Iterator[Report]:
    """A report for everything that takes one; ``log`` hears when a stage begins."""
    show: Any = _Bars() if sys.stderr.isatty() else _Lines()
    stage, last = "", 0

    def report(name: str, done: int, total: int) -> None:
        nonlocal stage, last
        if name != stage or done < last:
            stage = name
            show.begin(name)
            if log is not None:
                log(name)
        last = done
        show.update(name, done, total)

    try:
        yield report
    finally:
        show.close()


class _Bars:
    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description:<19}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bars = Progress(*columns, console=Console(stderr=True))
        self._bars.start()
        self._task: Any = None

    def begin(self, name: str) -> None:
        self._task = self._bars.add_task(name, total=None)

    def update(self, name: str, done: int, total: int) -> None:
        self._bars.update(self._task, completed=done, total=total)

    def close(self) -> None:
        self._bars.stop()


class _Lines:
    """One line when a stage begins to be long, and one every ten seconds."""

    def begin(self, name: str) -> None:
        self._began = self._said = time.monotonic()

    def update(self, name: str, done: int, total: int) -> None:
        now = time.monotonic()
        if done and done < total and now - self._said >= _QUIET:
            left = (now - self._began) * (total - done) / done
            sys.stderr.write(f"{name}: {done:,} of {total:,}, about {left:.0f} s left\n")
            self._said = now
        elif done >= total and now >= self._began:
            sys.stderr.write(f"{name}: {total:,} done\n")
            self._began = self._said = float("inf")
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.flush()
