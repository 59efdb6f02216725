"""Downloads files of public data sets; a file is kept only if its checksum is the known one."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from unpose.data.folders import InputError, Progress
from unpose.files import write_chunks

_CHUNK_BYTES = 2**18
_TIMEOUT = 60.0
"""Seconds without any byte after which the connection is closed."""


@dataclass(frozen=True)
class Remote:
    """A file on a server, with its checksum and size in bytes."""

    url: str
    sha256: str
    size: int

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.url.rpartition("/")[2]


def _idx_files(address: str, *files: tuple[str, str, int]) -> tuple[Remote, ...]:
    """Gzipped IDX files below an address, each by its stem, checksum and size."""
    return tuple(Remote(f"{address}/{stem}-ubyte.gz", sha256, size) for stem, sha256, size in files)


REMOTE: dict[str, tuple[Remote, ...]] = {
    "mnist": _idx_files(
        "https://storage.googleapis.com/cvdf-datasets/mnist",
        ("train-images-idx3", "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609", 9_912_422),
        ("train-labels-idx1", "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c", 28_881),
        ("t10k-images-idx3", "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6", 1_648_877),
        ("t10k-labels-idx1", "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6", 4_542),
    ),
    "fashion-mnist": _idx_files(
        "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion",
        ("train-images-idx3", "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84", 26_421_880),
        ("train-labels-idx1", "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845", 29_515),
        ("t10k-images-idx3", "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073", 4_422_102),
        ("t10k-labels-idx1", "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5", 5_148),
    ),
    "cifar-10": (
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            170_052_171,
        ),
    ),
}
"""Data set -> its files; only files whose checksum is known."""


def download(remote: Remote, folder: Path, progress: Progress | None = None) -> Path:
    """Download a file into a folder, and raise :class:`InputError` if its checksum is wrong.

    A download that fails leaves no file.
    """
    try:
        return write_chunks(folder / remote.name, _checked(remote, progress))
    except (URLError, OSError) as error:  # a timeout and a broken connection are OSErrors
        reason = getattr(error, "reason", None) or error
        raise InputError(
            f"{remote.url} could not be downloaded into {folder}: {reason}; download it by other means and put it there"
        ) from error


def _checked(remote: Remote, progress: Progress | None) -> Iterator[bytes]:
    digest, done = hashlib.sha256(), 0
    with urlopen(remote.url, timeout=_TIMEOUT) as response:
        while chunk := response.read(_CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if done > remote.size:
                break  # a different file; its checksum cannot be right
            if progress is not None:
                progress(remote.name, done, remote.size)
            yield chunk
    if done < remote.size:
        raise InputError(f"{remote.url} ended after {done:,} of {remote.size:,} bytes; try again")
    if done > remote.size or digest.hexdigest() != remote.sha256:
        raise InputError(f"{remote.url} is not the expected file: its SHA-256 is not {remote.sha256}; it was not kept")
