"""Progress on stderr: a bar on a terminal, and plain lines with the remaining time elsewhere."""

import io
from contextlib import redirect_stderr

from unpose.cli.shared.progress import progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_lines_say_what_is_done_and_how_long_it_takes():
    heard, now = [], [100.0]
    with redirect_stderr(io.StringIO()) as said, progress(log=heard.append, clock=lambda: now[0]) as report:
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


def test_a_terminal_gets_a_bar():
    with redirect_stderr(Terminal()) as screen, progress() as report:
        report("search", 0, 10)
        report("search", 10, 10)
    assert "search" in screen.getvalue()
    assert "10/10" in screen.getvalue()


def test_continued_work_estimates_from_where_it_began():
    now = [0.0]
    with redirect_stderr(io.StringIO()) as said, progress(clock=lambda: now[0]) as report:
        report("train", 80, 100, "epoch 5")
        now[0] = 20.0
        report("train", 90, 100, "epoch 6")
    assert said.getvalue() == "train: 90 of 100, about 20 s left (epoch 6)\n"


def test_quiet_shows_nothing():
    with redirect_stderr(io.StringIO()) as said, progress(quiet=True) as report:
        report("search", 10, 10)
    assert said.getvalue() == ""
