"""Sizes of memory in words."""

import pytest

from unpose.files import in_bytes


@pytest.mark.parametrize(
    ("given", "meant"),
    [(8e9, 8 * 10**9), (" 512 mb ", 512 * 10**6), ("1.5g", 15 * 10**8), ("3TiB", 3 * 2**40), ("2e9", 2 * 10**9)],
)
def test_what_is_meant(given, meant):
    assert in_bytes(given) == meant


@pytest.mark.parametrize("given", ["", "GB", "-2GB", "1.2.3MB", "0.2", "1e999", "4XB", None])
def test_what_is_no_size_is_named(given):
    with pytest.raises(ValueError, match=r"memory must be a size such as 4GB") as error:
        in_bytes(given)
    assert repr(given) in str(error.value)
