"""The progress of long commands on stderr: a bar with the remaining time, or plain lines where there is no terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

_SECONDS_BETWEEN_LINES = 10.0


class Report(Protocol):
    """Called with the name of a stage, the number of finished units, their total, and perhaps a remark."""

    def __call__(self, stage: str, done: int, total: int, remark: str = "") -> None: ...


@contextmanager
def progress(
    *, log: Callable[[str], None] | None = None, quiet: bool = False, clock: Callable[[], float] = time.monotonic
) -> Iterator[Report]:
    """A function that shows the progress of everything that reports one.

    ``log`` is called with the name of each stage when it begins; ``quiet`` shows nothing; ``clock`` gives the time in
    seconds.
    """
    display: Any = _Nothing() if quiet else _Bars() if sys.stderr.isatty() else _Lines(clock)
    current, last = "", 0

    def report(stage: str, done: int, total: int, remark: str = "") -> None:
        nonlocal current, last
        if stage != current or done < last:
            current = stage
            display.begin(stage, done)
            if log is not None:
                log(stage)
        last = done
        display.update(stage, done, total, remark)

    try:
        yield report
    finally:
        display.close()


class _Nothing:
    def begin(self, stage: str, done: int) -> None: ...

    def update(self, stage: str, done: int, total: int, remark: str) -> None: ...

    def close(self) -> None: ...


class _Bars:
    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("{task.description:<19}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[remark]}"),
        )  # fmt: skip
        self._bars = Progress(*columns, console=Console(stderr=True))
        self._bars.start()
        self._task: Any = None

    def begin(self, stage: str, done: int) -> None:
        self._task = self._bars.add_task(stage, total=None, completed=done, remark="")

    def update(self, stage: str, done: int, total: int, remark: str) -> None:
        self._bars.update(self._task, completed=done, total=total, remark=remark)

    def close(self) -> None:
        self._bars.stop()


class _Lines:
    """A line every ten seconds, and one when a stage is done."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def begin(self, stage: str, done: int) -> None:
        self._began = self._last_line = self._clock()
        self._first = done

    def update(self, stage: str, done: int, total: int, remark: str) -> None:
        now = self._clock()
        if self._first < done < total and now - self._last_line >= _SECONDS_BETWEEN_LINES:
            left = (now - self._began) * (total - done) / (done - self._first)
            remark = remark and f" ({remark})"
            sys.stderr.write(f"{stage}: {done:,} of {total:,}, about {left:.0f} s left{remark}\n")
            self._last_line = now
        elif done >= total and now >= self._began:
            sys.stderr.write(f"{stage}: {total:,} done\n")
            self._began = self._last_line = float("inf")
        sys.stderr.flush()

    def close(self) -> None:
        sys.stderr.flush()
