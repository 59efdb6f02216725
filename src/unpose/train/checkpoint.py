"""Networks as single files: safetensors with the network's description in its header. Reading executes no code."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch

from unpose.files import output, printable_name, refuse_code
from unpose.groups import parse
from unpose.nn import Network, rebuild
from unpose.train.quick import QuickNetwork

FORMAT = 1
"""Version of the file layout; increased when older readers would misread the file."""
_LARGEST_HEADER = 2**22
_LARGEST_NUMBER = 4096
_LARGEST_NAMED = {"kernel_size": 31, "n_classes": 2**16, "image_size": 2**16}
"""Largest accepted values of single entries of a description: a hostile header must not allocate huge tables."""
_LONGEST_LIST = 64
_LARGEST_ORDER = 360


def save_network(
    path: str | os.PathLike[str], network: Network, *, classes: Sequence[str] = (), notes: dict[str, Any] | None = None
) -> Path:
    """Write a network to one file, atomically: its weights and how to build it.

    The file is ordinary safetensors. Its metadata has one entry, ``unpose``: JSON with the ``format`` version, the
    network's ``description``, the names of its ``classes``, and ``notes``, such as how it was trained.

    Parameters
    ----------
    path : path-like
    network : Network
        Made by :mod:`unpose.nn`.
    classes : sequence of str, default ()
        Names of the outputs.
    notes : dict, optional
        JSON-serializable information to store.

    Returns
    -------
    pathlib.Path

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from unpose.nn import group_cnn
    >>> with TemporaryDirectory() as folder:
    ...     path = save_network(f"{folder}/net.safetensors", group_cnn("c4", 1, 2, 8, parameters=500))
    ...     load_network(path).group
    c4
    """
    if not isinstance(network, Network):
        raise ValueError(
            "only networks made by unpose.nn can be saved, because they know how to rebuild themselves; got "
            f"{type(network).__name__}"
        )
    if parse(network.group.name) != network.group:
        raise ValueError(f"the group {network.group.name!r} has no name that unpose.groups.parse can read")
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    _check_plausible(network.description, len(weights))  # refuse to write what could not be read again
    _class_names(list(classes), network.description["n_classes"])
    about = {"format": FORMAT, "description": network.description, "classes": list(classes), "notes": notes or {}}
    content = safetensors.torch.save(weights, metadata={"unpose": json.dumps(about)})
    target = Path(path)
    with output(target) as stream:
        stream.write(content)
    return target


def load_network(path: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> Network:
    """Load a network from a file written by :func:`save_network`, in evaluation mode.

    The header is checked against the tensors it lists before any network is built.

    Parameters
    ----------
    path : path-like
    device : str or torch.device, default "cpu"

    Returns
    -------
    Network

    Raises
    ------
    ValueError
        If the file is truncated, modified, of another program or of a newer version; the message names it.

    Examples
    --------
    >>> from unpose.train import pretrained_file
    >>> load_network(pretrained_file("mnist-c8")).group
    c8
    """
    refuse_code(path)
    content = Path(path).read_bytes()
    with _readable(path):
        header = read_header(content)
        description = _about(header)["description"]
        shapes = {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
        _check_plausible(description, len(shapes))
        outline = {name: tuple(tensor.shape) for name, tensor in build_on_meta(description).state_dict().items()}
        # Earlier versions saved empty tensors, of representations that a group does not have.
        _check_shapes(outline, {name: shape for name, shape in shapes.items() if name in outline or 0 not in shape})
        weights = safetensors.torch.load(content)
        network = _build(description)
        network.load_state_dict(weights, assign=True)
        kinds = {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()}
        if len(kinds) == 1:
            network.to(kinds.pop())  # constant tables are not in the file: give them the type of the weights
    return network.to(device).eval()


def read_classes(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Read the class names from a network's file; without names, the class numbers as text.

    There are none if the outputs are no scores of classes: those of an encoder, or of a network with another head.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> from unpose.train import pretrained_file
    >>> read_classes(pretrained_file("mnist-c8"))[:3]
    ('0', '1', '2')
    """
    content = Path(path).read_bytes()
    with _readable(path):
        about = _about(read_header(content))
        count = about["description"]["n_classes"]
        if not isinstance(count, int) or not 1 <= count <= _LARGEST_NAMED["n_classes"]:
            raise ValueError(f"n_classes = {count} is out of bounds")
        names = _class_names(about.get("classes"), count) if _has_classes(about) else []
    return tuple(printable_name(name) for name in names)


def _has_classes(about: dict[str, Any]) -> bool:
    """Whether the outputs are scores of classes, by the head of the network and by the recipe that trained it."""
    found: Any = about
    for name in ("notes", "recipe", "unlabelled", "loss"):  # notes of other programs may hold anything
        found = found.get(name) if isinstance(found, dict) else None
    return about["description"].get("head", "classes") == "classes" and found in (None, "none")


def _class_names(names: list[str] | None, count: int) -> list[str]:
    """Check that there is one name for each output; without names, use numbers."""
    names = names or [str(number) for number in range(count)]
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"names of classes must be texts, got {names}")
    if len(names) != count:
        raise ValueError(f"there are {len(names)} names of classes for {count} outputs")
    return names


def read_notes(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read the notes from a network's file; their content is not validated.

    Parameters
    ----------
    path : path-like

    Returns
    -------
    dict

    Examples
    --------
    >>> from unpose.train import pretrained_file
    >>> sorted(read_notes(pretrained_file("mnist-c8")))
    ['card', 'light', 'recipe']
    """
    content = Path(path).read_bytes()
    with _readable(path):
        notes: dict[str, Any] = _about(read_header(content)).get("notes", {})
        if not isinstance(notes, dict):
            raise ValueError(f"its notes must be a table, got {type(notes).__name__}")
    return notes


@contextmanager
def _readable(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say which file is wrong, whatever is wrong with it."""
    try:
        yield
    except (
        ValueError, KeyError, TypeError, AttributeError, RuntimeError, ArithmeticError, safetensors.SafetensorError,
    ) as error:  # fmt: skip
        raise ValueError(f"{Path(path)} is not a network that unpose can read: {error}") from error


def read_header(content: bytes) -> dict[str, Any]:
    """Parse the JSON header of a safetensors file: an eight-byte length, then the text."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length + 8 > len(content):
        raise ValueError("it is truncated, or not a safetensors file")
    if length > _LARGEST_HEADER:
        raise ValueError(f"its header has {length} bytes; at most {_LARGEST_HEADER} are read")
    return strict_json(content[8 : 8 + length], "its header")


def _about(header: dict[str, Any]) -> dict[str, Any]:
    """Return the ``unpose`` metadata of a network's file; checks format version and presence of a description."""
    text = header.get("__metadata__", {}).get("unpose")
    if not isinstance(text, str):
        raise ValueError("it holds tensors but does not say which network they belong to")
    about = strict_json(text.encode(), "its description")
    if about.get("format") != FORMAT:
        raise ValueError(
            f"it has layout {about.get('format')!r}, and this version of unpose reads layout {FORMAT}; a newer version "
            "may have written it"
        )
    if not isinstance(about.get("description"), dict):
        raise ValueError("its description is missing")
    return about


def strict_json(text: bytes, what: str) -> dict[str, Any]:
    """Parse a JSON object, rejecting duplicate keys."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError(f"{what} has duplicate keys")
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=unique)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON") from error
    if not isinstance(found, dict):
        raise ValueError(f"{what} is not a JSON object")
    return found


def _check_plausible(description: dict[str, Any], tensors: int) -> None:
    """Reject descriptions whose numbers are too large to build even the shapes of the network."""
    order = re.search(r"\d+", str(description.get("group")))
    if order and (len(order[0]) > 4 or int(order[0]) > _LARGEST_ORDER):
        raise ValueError(f"the group {description['group']!r} is unknown, or has more elements than any network uses")
    todo: list[tuple[str, Any]] = list(description.items())
    while todo:
        name, value = todo.pop()
        if isinstance(value, dict):
            todo += value.items()
        elif isinstance(value, list):
            if len(value) > _LONGEST_LIST:
                raise ValueError(f"{name} has {len(value)} entries, at most {_LONGEST_LIST} are read")
            todo += [(name, part) for part in value]
        elif isinstance(value, int | float) and not abs(value) <= _LARGEST_NAMED.get(name, _LARGEST_NUMBER):
            raise ValueError(f"{name} = {value} is out of bounds")
    names = {"group_cnn": "stages", "group_resnet": "depths", "swivel_net": "depths"}
    depths = names.get(str(description.get("network")))
    if depths and sum(description.get(depths, [])) > tensors:
        raise ValueError(f"it describes more layers than its {tensors} tensors can fill")


def build_on_meta(description: dict[str, Any]) -> Network:
    """Build the network of a description on the meta device: shapes without weights."""
    with torch.device("meta"):
        return _build(description)


def _build(description: dict[str, Any]) -> Network:
    """Build the network of a description, which :func:`unpose.nn.rebuild` or :mod:`unpose.train.quick` knows."""
    if description.get("network") != "quick":
        return rebuild(description)
    options = {name: value for name, value in description.items() if name not in ("network", "group")}
    return QuickNetwork(**options)


def _check_shapes(wanted: dict[str, tuple[int, ...]], found: dict[str, tuple[int, ...]]) -> None:
    for name in wanted.keys() | found.keys():
        if wanted.get(name) != found.get(name):
            raise ValueError(
                f"its tensor {name!r} has shape {found.get(name)}, the network it describes needs {wanted.get(name)}"
            )
