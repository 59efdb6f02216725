"""Text files that a person gives: regular files of a limited size, or an error that names them."""

import os

import pytest
from click.testing import CliRunner

from unpose.cli import main
from unpose.files import UnreadableError, read_file, read_points, read_text, write_text


def test_the_mark_of_spreadsheet_programs_is_no_text(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"\xef\xbb\xbfpath,class\r\nb\xc3\xa4r.png,x\r\n")
    assert read_text(tmp_path / "a.csv") == "path,class\r\nb\u00e4r.png,x\r\n"
    (tmp_path / "a.csv").write_bytes(b"b\xe4r.png")
    with pytest.raises(ValueError, match=r"a\.csv must be a text file in UTF-8"):
        read_text(tmp_path / "a.csv")


def test_what_is_too_large_or_may_never_end_is_not_read(tmp_path):
    with open(tmp_path / "large.csv", "wb") as file:
        file.truncate(2**28 + 1)
    with pytest.raises(ValueError, match=r"large\.csv has .* bytes, more than the limit"):
        read_text(tmp_path / "large.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    for path in (tmp_path / "pipe.csv", "/dev/zero", tmp_path):
        for read in (read_text, read_points, lambda path: read_file(path, 2**30)):
            with pytest.raises(ValueError, match="must be a regular file"):
                read(path)
    assert issubclass(UnreadableError, ValueError)


@pytest.mark.parametrize("option", ["--labels", "--config"])
def test_a_device_as_an_option_ends_with_an_error(tmp_path, option):
    for k in range(3):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{k}.pgm").write_bytes(b"P5 9 9 255\n" + bytes(range(k, 81 + k)))
    words = ["cluster", str(tmp_path / "in"), "-o", str(tmp_path / "run"), option, "/dev/zero"]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 2
    assert "/dev/zero must be a regular file" in " ".join(result.output.split())


def test_a_star_file_that_is_too_large_is_rejected(tmp_path):
    write_text(tmp_path / "a.star", "data_\n")
    os.truncate(tmp_path / "a.star", 2**28 + 1)
    result = CliRunner().invoke(main, ["cluster", str(tmp_path / "a.star"), "-o", str(tmp_path / "run")])
    assert result.exit_code == 2
    assert "more than the limit" in " ".join(result.output.split())
