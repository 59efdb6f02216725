"""Files of models: those that can run code when they are read are refused, whatever they hold."""

import os
from pathlib import Path

_RUN_CODE = (".pt2", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib", ".dill")


def refuse_code(path: str | os.PathLike[str]) -> None:
    """Raise a ValueError for a file of a kind that can run code when it is read.

    The archives of ``torch.save``, ``torch.jit`` and ``torch.export``, and pickles of any program, can name functions
    that their reader calls. No check beforehand finds all of them, so such files are not opened at all. A file of this
    kind under another name is opened by a reader that knows no pickles, and is refused there.

    Parameters
    ----------
    path : path-like
        What a user gave as a model. Its ending decides.

    Examples
    --------
    >>> refuse_code("model.onnx")
    >>> refuse_code("model.pt2")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: model.pt2 is refused, because .pt2 files can run code when they are read; write the same ...
    """
    ending = os.path.splitext(os.fspath(path))[1].lower()
    if ending in _RUN_CODE and not os.path.isdir(path):
        raise ValueError(
            f"{os.fspath(path)} is refused, because {ending} files can run code when they are read; write the same "
            "model as ONNX, or a network of unpose.nn as safetensors, where you trust it:\n"
            '  torch.onnx.export(model, (images,), "model.onnx", dynamo=True, external_data=False, '
            'dynamic_shapes=({0: "n"},))\n'
            '  unpose.train.save_network("model.safetensors", model)'
        )


def file_inside(folder: Path, *names: str) -> Path | None:
    """Find a regular file by the names of folders and the file below a folder that may come from a stranger.

    Parameters
    ----------
    folder : Path
        Where to look.
    *names : str
        Plain names, without separators.

    Returns
    -------
    Path or None
        The file; None if a name is not plain, or if any part is a link or is not there.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     _ = (Path(place) / "a.txt").write_text("abc")
    ...     file_inside(Path(place), "a.txt").name, file_inside(Path(place), "..", "a.txt")
    ('a.txt', None)
    """
    for name in names:
        folder = folder / name
        if folder.name != name or name == ".." or folder.is_symlink():
            return None
    return folder if folder.is_file() else None
