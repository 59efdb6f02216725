"""A program as a model: it reads a folder of images and writes a table of numbers."""

import shlex
import subprocess
from collections.abc import Sequence

from numpy.typing import NDArray

from unpose.files.exchange import exchanged_images, read_numbers


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
        Name of the file to write: ``.csv`` with one row for each image, or ``.npy``.
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
        with exchanged_images(images, self.form) as (given, folder):
            target = folder / self.answers
            words = [word.replace("{images}", str(given)).replace("{answers}", str(target)) for word in self.words]
            try:
                done = subprocess.run(words, capture_output=True, text=True, timeout=self.timeout, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                raise ValueError(f"{self.words[0]} could not be run: {error}") from error
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["no message"])[-1]
                raise ValueError(f"{self.words[0]} ended with status {done.returncode}: {last}")
            answers = read_numbers(target)
        if len(answers) != len(images):
            raise ValueError(f"{self.words[0]} wrote {len(answers)} rows for {len(images)} images")
        return answers
