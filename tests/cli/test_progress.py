"""Progress on stderr: a bar on a terminal, and plain lines with the remaining time elsewhere."""

import io
import sys

from unpose.cli.shared import progress as module
from unpose.cli.shared.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_say_what_is_done_and_how_long_it_takes(monkeypatch):
    said, heard, now = io.StringIO(), [], [100.0]
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with progress(log=heard.append) as report:
        for done in range(0, 101, 10):
            report("search", done, 100)
            now[0] += 4.0
        report("refine", 3, 3)
        report("refine", 1, 7)  # the same stage again, from the start
        report("refine", 7, 7)
    lines = said.getvalue().splitlines()
    assert heard == ["search", "refine", "refine"]
    assert lines[0] == "search: 30 of 100, about 28 s left"
    assert lines[-3:] == ["search: 100 done", "refine: 3 done", "refine: 7 done"]
    assert len(lines) == 6


def test_a_terminal_gets_a_bar(monkeypatch):
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with progress() as report:
        report("search", 0, 10)
        report("search", 10, 10)
    assert "search" in screen.getvalue()
    assert "10/10" in screen.getvalue()


def test_continued_work_estimates_from_where_it_began(monkeypatch):
    said, now = io.StringIO(), [0.0]
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    with progress() as report:
        report("train", 80, 100, "epoch 5")
        now[0] = 20.0
        report("train", 90, 100, "epoch 6")
    assert said.getvalue() == "train: 90 of 100, about 20 s left (epoch 6)\n"


def test_quiet_shows_nothing(monkeypatch):
    said = io.StringIO()
    monkeypatch.setattr(sys, "stderr", said)
    with progress(quiet=True) as report:
        report("search", 10, 10)
    assert said.getvalue() == ""
