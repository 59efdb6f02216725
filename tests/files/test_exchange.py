"""Programs that answer for images."""

import os
import sys

import numpy as np
import pytest

from unpose.files import exchange

OTHER = "import sys, time; file = open(sys.argv[1], 'w', 1); print('x', file=file); time.sleep(900)"
STARTS_OTHER = f"""
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {OTHER!r}, sys.argv[1]])
time.sleep(900)
"""


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_program_that_takes_too_long_ends_with_those_that_it_started(tmp_path):
    os.mkfifo(tmp_path / "alive")
    pipe, said = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK), b""
    for seconds in (0.5, 4, 32):  # until the second program has begun
        with (
            pytest.raises(ValueError, match="could not be run"),
            exchange.program_answers([sys.executable, "-c", STARTS_OTHER, str(tmp_path / "alive")], np.zeros((1, 5, 7)),
                            timeout=seconds),
        ):  # fmt: skip
            pass
        if said := os.read(pipe, 100):
            break
    assert said.startswith(b"x")
    os.set_blocking(pipe, True)
    assert os.read(pipe, 100) == b""  # the end, when no process holds the other side any more
    os.close(pipe)
