"""``unpose align`` that is killed continues to the same bytes; test_blocks.py stops what it computes at any report."""

import time

import pytest

from kit.commands import contents, started, unpose_process
from kit.images import posed_things, write_folder


@pytest.mark.slow
def test_a_killed_alignment_ends_in_the_same_bytes(tmp_path):
    images = write_folder(tmp_path / "images", posed_things(300, kinds=1).images)
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert unpose_process("align", images, "-o", whole).status == 0
    process = started("align", images, "-o", stopped)
    while not list(stopped.glob("*/*.safetensors")):  # until a first part is finished
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.kill()
    process.communicate()
    assert not (stopped / "config.toml").exists()
    assert unpose_process("align", images, "-o", stopped).status == 0
    assert contents(stopped, exempt={"log.txt"}) == contents(whole, exempt={"log.txt"})
