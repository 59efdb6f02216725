"""What the README shows runs as it stands there."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_every_python_block_runs_in_order(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) >= 3
    names = {}
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    largest_error, all_found = capsys.readouterr().out.split()
    assert float(largest_error) < 0.02
    assert all_found == "True"


@pytest.mark.parametrize("picture", re.findall(r"!\[[^\]]*\]\(([^)]*)\)", README.read_text()))
def test_every_picture_is_there(picture):
    assert (README.parent / picture).stat().st_size > 1000


@pytest.mark.parametrize("link", re.findall(r"[^!]\[[^\]]*\]\(([^)#:]*)\)", README.read_text()))
def test_every_link_leads_somewhere(link):
    assert (README.parent / link).exists()
