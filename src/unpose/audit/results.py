"""Turn the frozen results of the audit into plain values for JSON."""

import dataclasses
import math
from typing import Any

import numpy as np


def as_plain(value: Any) -> Any:
    """Convert dataclasses, arrays and numbers to what JSON can hold; values that are not finite become None."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [as_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return as_plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class Plain:
    """Gives a result dataclass ``to_dict()``, and notebooks the text that ``print`` shows."""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values that JSON can hold; values that are not finite become None."""
        plain: dict[str, Any] = as_plain(self)
        return plain

    def _repr_html_(self) -> str:
        """What ``print`` shows, for notebooks."""
        from unpose.report import text_html

        return text_html(str(self))
