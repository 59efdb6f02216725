"""A program as a model: it reads a folder of images and writes a table of numbers."""

import shlex
from collections.abc import Sequence

from numpy.typing import NDArray

from unpose.files.exchange import program_answers, read_numbers


class Command:
    """A program that reads images from files and writes its answers to a file, as a model.

    Parameters
    ----------
    command : str or sequence of str
        The command line. ``{images}`` is replaced by the folder of PNG files (or the NumPy file), ``{answers}`` by the
        file to write.
    form : {"png", "npy"}, default "png"
        Whether images are PNG files of 8 bits, named in order, or one array (n, h, w, c) of floats.
    answers : str, default "answers.csv"
        Name of the file to write: ``.npy``, or ``.csv`` with one row for each image. If the rows begin with the names
        of the PNG files they may be in any order.
    timeout : float, default 600
        Seconds after which the program is stopped.

    Examples
    --------
    >>> import sys
    >>> import numpy as np
    >>> code = "import sys, numpy as np; np.save(sys.argv[2], np.load(sys.argv[1]).mean((1, 2)))"
    >>> program = Command([sys.executable, "-c", code, "{images}", "{answers}"], form="npy", answers="a.npy")
    >>> program(np.ones((2, 5, 5, 1))).tolist()
    [[1.0], [1.0]]
    """

    layout = "nhwc"

    def __init__(
        self, command: str | Sequence[str], *, form: str = "png", answers: str = "answers.csv", timeout: float = 600
    ) -> None:
        self.words = shlex.split(command) if isinstance(command, str) else list(command)
        if form not in ("png", "npy") or not answers.endswith((".csv", ".npy")):
            raise ValueError(f"form must be 'png' or 'npy' and answers end in .csv or .npy, got {form!r}, {answers!r}")
        if not any("{images}" in word for word in self.words) or not any("{answers}" in word for word in self.words):
            raise ValueError("the command must contain {images} and {answers}, which are replaced by paths")
        self.form, self.answers, self.timeout = form, answers, timeout

    def __call__(self, images: NDArray) -> NDArray:
        """(n, h, w, c) -> (n, ...): run the program once on all images."""
        with program_answers(self.words, images, form=self.form, name=self.answers, timeout=self.timeout) as file:
            names = [f"{i:06d}.png" for i in range(len(images))] if self.form == "png" else None
            answers = read_numbers(file, names)
        if len(answers) != len(images):
            raise ValueError(f"{self.words[0]} wrote {len(answers)} rows for {len(images)} images")
        return answers
