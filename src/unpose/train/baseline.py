"""The baseline of every comparison: the same network without the group, with as many parameters."""

from typing import Any

from unpose.nn import count_parameters
from unpose.train.checkpoint import build_on_meta


def baseline_description(description: dict[str, Any]) -> dict[str, Any]:
    """Describe the translation-only baseline of a network: group ``c1``, widened to at least as many parameters.

    The smallest width that reaches the parameter count is taken. A :func:`unpose.nn.gsa_net` shares nearly all
    parameters among group elements, so its baseline keeps the widths and only lacks the element embeddings (well below
    1 %). The baseline of a network for dilations sees a single scale; that of a :func:`unpose.nn.scale_net` has exactly
    as many parameters. The baseline of a network on a continuous group has the group ``translation`` and lacks the
    network's few weights of relative linear parts.

    Parameters
    ----------
    description : dict
        ``network.description``.

    Returns
    -------
    dict
        For :func:`unpose.nn.rebuild`.

    Examples
    --------
    >>> from unpose.nn import group_cnn
    >>> baseline_description(group_cnn("c4", 1, 10, 8, parameters=2000).description)["group"]
    'c1'
    """
    if description["group"].startswith("dilations"):
        return description | {"group": "dilations(1)"}
    if description["network"] in ("lie_cnn", "lie_transformer"):
        return description | {"group": "translation"}
    plain = description | {"group": "c1"}
    wanted = _count(description)
    if description["network"] == "group_cnn":
        width = description["width"]
        while _count(plain | {"width": width}) < wanted:
            width += 1
        return plain | {"width": width}
    if description["network"] in ("swivel_net", "group_resnet"):
        scale = 64
        while _count(plain | {"widths": _scaled(description["widths"], scale)}) < wanted:
            scale += 1
        return plain | {"widths": _scaled(description["widths"], scale)}
    return plain


def _scaled(widths: list[int], scale: int) -> list[int]:
    return [-(-width * scale // 64) for width in widths]


def _count(description: dict[str, Any]) -> int:
    return count_parameters(build_on_meta(description))
