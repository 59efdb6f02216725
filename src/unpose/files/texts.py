"""Text files that a person gives: tables, settings, lists."""

import os

from unpose.files.outputs import read_file

LARGEST_TEXT = 2**28
"""Most bytes of a text file: a table of a million images has a tenth."""


def read_text(path: str | os.PathLike[str]) -> str:
    """Read a text file in UTF-8, with or without the mark that spreadsheet programs put first.

    Parameters
    ----------
    path : str or path
        A regular file of at most 256 MB; devices and pipes, which may never end, are refused.

    Returns
    -------
    str
        The text, with line ends as they are.

    Raises
    ------
    ValueError
        If it is no such file; the message names it.

    Examples
    --------
    >>> import tempfile
    >>> from unpose.files import write_text
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     read_text(write_text(folder + "/a.csv", "path,class"))
    'path,class'
    """
    content = read_file(path, LARGEST_TEXT)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{os.fspath(path)} must be a text file in UTF-8: {error}") from error
