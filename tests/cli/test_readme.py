"""Pictures and links of the README; `test_snippets.py` runs what it shows."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("picture", re.findall(r"!\[[^\]]*\]\(([^)]*)\)", README.read_text()))
def test_every_picture_is_there(picture):
    assert (README.parent / picture).stat().st_size > 1000


@pytest.mark.parametrize("link", re.findall(r"[^!]\[[^\]]*\]\(([^)#:]*)\)", README.read_text()))
def test_every_link_leads_somewhere(link):
    assert (README.parent / link).exists()
