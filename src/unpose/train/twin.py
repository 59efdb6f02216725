"""The control of every claim: the same network for translations only, with as many parameters."""

from typing import Any

from unpose.nn import count_parameters
from unpose.train.checkpoint import outlined


def twin_description(description: dict[str, Any]) -> dict[str, Any]:
    """The description of a network's translation-only twin: group ``c1``, made wider until it has as many parameters.

    The twin never has fewer: of all widths the smallest that reaches the number. A :func:`unpose.nn.gsa_net` shares
    nearly all of its parameters among the elements of its group, so its twin has the same widths; it lacks the
    embeddings of the elements, well below one per cent. The twin of a :func:`unpose.nn.scale_net` sees one scale with
    exactly as many parameters.
    """
    if description["network"] == "scale_net":
        return description | {"group": "dilations(1)"}
    alone = description | {"group": "c1"}
    wanted = _count(description)
    if description["network"] == "group_cnn":
        width = description["width"]
        while _count(alone | {"width": width}) < wanted:
            width += 1
        return alone | {"width": width}
    if description["network"] == "swivel_net":
        scale = 64
        while _count(alone | {"widths": _scaled(description["widths"], scale)}) < wanted:
            scale += 1
        return alone | {"widths": _scaled(description["widths"], scale)}
    return alone


def _scaled(widths: list[int], scale: int) -> list[int]:
    return [-(-width * scale // 64) for width in widths]


def _count(description: dict[str, Any]) -> int:
    return count_parameters(outlined(description))
