"""The figures, tables, theorems and propositions of both papers, each of which can be run.

``unpose reproduce`` is the command; from Python, ``find("contraction").outcome()``. Nothing heavy is imported before an
item runs, because the command line lists them all.

========================== =========================================================================================
``items.py``               :class:`Item`, its :class:`Option`, :class:`Settings` and :class:`Outcome`
``invariant_attention.py`` the items of *Invariant Attention: Provable Clustering Under Transformations*
``contraction.py``, ...    one file for each theorem: also ``uniqueness.py``, ``kernel.py`` and ``figure1.py``
``group_attention.py``     the items of *Group Equivariant Stand-Alone Self-Attention For Vision*
``attention_laws.py``      its propositions and equations, measured
``attention_pictures.py``  its figures
``published_networks.py``  its tables: every cell as a training run, with its cost
========================== =========================================================================================
"""

import difflib

from unpose.reproduce.group_attention import GROUP_ATTENTION
from unpose.reproduce.invariant_attention import INVARIANT_ATTENTION
from unpose.reproduce.items import Item, Option, Outcome, Settings

__all__ = ["ITEMS", "Item", "Option", "Outcome", "Settings", "find"]

ITEMS: tuple[Item, ...] = (*INVARIANT_ATTENTION, *GROUP_ATTENTION)
"""All items, in the order of the papers."""


def find(name: str) -> Item:
    """Find an item by its name.

    Parameters
    ----------
    name : str
        Name of the item, as ``unpose reproduce --list`` shows it.

    Returns
    -------
    Item

    Examples
    --------
    >>> find("figure2").reference
    'Figure 2'
    """
    for item in ITEMS:
        if item.name == name:
            return item
    names = [item.name for item in ITEMS]
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
    raise ValueError(f"nothing to reproduce is called {name!r}; {hint}")
