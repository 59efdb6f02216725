"""What the README says, its pictures and its links; `test_snippets.py` runs what it shows."""

from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


@pytest.mark.parametrize("page", [README, README.parent / "docs" / "start.md"])
def test_who_has_no_gpu_is_told_how_to_install_without_cuda(page):
    told = page.read_text()
    assert "pip install torch --index-url https://download.pytorch.org/whl/cpu" in told
    assert "gigabytes of CUDA libraries" in told


def test_the_way_from_a_folder_to_arrays_and_to_a_page_is_shown():
    for call in ('.fit("photos/")', 'unpose.read_folder("photos/").images', ".report("):
        assert call in README.read_text()
