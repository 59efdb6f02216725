"""The items of Group Equivariant Stand-Alone Self-Attention For Vision."""

from unpose.reproduce.items import Item

GROUP_ATTENTION: tuple[Item, ...] = ()
