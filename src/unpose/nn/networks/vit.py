"""Vision transformers that are equivariant to a finite group, in the irrep basis of the group."""

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unpose.groups import FiniteGroup, fourier_basis
from unpose.nn.functional.checks import as_image_size, check_positive, parse_point_group
from unpose.nn.layers.constants import ConstantTables
from unpose.nn.layers.frame_attention import FrameBlock, LiftingPatchEmbed
from unpose.nn.layers.heads import VectorHead
from unpose.nn.layers.irreps import IrrepLinear, IrrepNorm
from unpose.nn.networks.base import Network, arguments_of
from unpose.nn.ops.frames import frame_gelu, to_frames

OUTPUTS = ("scalar", "regular", "vector")
"""How an answer transforms: not at all, by permutation of the elements of the group, or like a vector in the image."""


class TypedHead(ConstantTables):
    """Answers of a given type from tokens in the irrep basis: a hidden layer with GELU in frames, then a linear map.

    Tokens are (b, n, width). Pooled, the answer is of shape (b, outputs) for ``"scalar"``, (b, outputs, order) for
    ``"regular"`` and (b, outputs, 2) for ``"vector"``; dense, with axes (rows, columns) at the end.
    """

    basis: Tensor

    def __init__(self, group: FiniteGroup, width: int, outputs: int, kind: str, dense: bool) -> None:
        super().__init__()
        self.group, self.kind, self.dense = group, kind, dense
        # As many hidden channels in each frame as a token has numbers, since pooling over frames leaves one of them.
        self.hidden = IrrepLinear(group, width, width * group.order)
        self.read: nn.Module
        if kind == "vector":
            self.read = VectorHead(group, width, outputs, dense=True)
        else:
            self.read = nn.Linear(width, outputs)
        self.compute_tables()

    def constant_tables(self) -> dict[str, Tensor]:
        return {"basis": fourier_basis(self.group)}

    def extra_repr(self) -> str:
        return f"{self.kind}, dense={self.dense}"

    def forward(self, tokens: Tensor, rows: int, columns: int) -> Tensor:
        if not self.dense:
            tokens, rows, columns = tokens.mean(1, keepdim=True), 1, 1
        hidden = frame_gelu(self.hidden.multiply(tokens), self.hidden.bias, self.basis, self.group.name)
        frames = to_frames(hidden, self.basis)  # (b, n, order, channels)
        if self.kind == "scalar":
            frames = frames.mean(2, keepdim=True)
        if self.kind == "vector":
            maps = frames.permute(0, 3, 2, 1).unflatten(-1, (rows, columns))  # (b, channels, order, rows, columns)
            answer = self.read(maps)  # (b, outputs, 2, rows, columns)
        else:
            answer = self.read(frames).permute(0, 3, 2, 1).unflatten(-1, (rows, columns))
        if self.kind == "scalar":
            answer = answer.squeeze(2)  # (b, outputs, rows, columns)
        return answer if self.dense else answer.squeeze(-1).squeeze(-1)


class EquivariantViT(Network):
    """The network of :func:`equivariant_vit`."""

    def __init__(
        self,
        group: FiniteGroup,
        in_channels: int,
        n_classes: int,
        image_size: tuple[int, int],
        *,
        patch: int,
        depth: int,
        width: int,
        heads: int,
        mlp_ratio: float,
        equivariant_until: int,
        output: str,
        dense: bool,
    ) -> None:
        super().__init__(network="equivariant_vit", **arguments_of(locals()))
        trivial = parse_point_group("c1")
        self.equivariant_until = equivariant_until
        self.is_checkpointed = False
        self.patch_embed = LiftingPatchEmbed(group, in_channels, patch, width)
        groups = [group] * equivariant_until + [trivial] * (depth - equivariant_until)
        self.blocks = nn.ModuleList(FrameBlock(each, width, heads, mlp_ratio=mlp_ratio) for each in groups)
        # After plain blocks the features belong to no representation of the group.
        self.last_group = groups[-1]
        self.norm = IrrepNorm(self.last_group, width)
        self.head: nn.Module
        if n_classes == 0:
            self.head = nn.Identity()
        elif self.last_group.order == 1:
            self.head = nn.Linear(width, n_classes)
        else:
            self.head = TypedHead(self.last_group, width, n_classes, output, dense)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Compute the activations of each block again in the backward pass, which saves memory."""
        self.is_checkpointed = enable

    def forward_features(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, n, width), in the irrep basis"""
        rows, columns = self.patch_embed.grid(images)
        tokens = self.patch_embed(images)
        order = 0
        angles: tuple[Tensor, ...] = ()
        for module in self.blocks:
            block = cast(FrameBlock, module)
            if block.attn.group.order != order:  # the angles of all blocks of one group are the same
                order, angles = block.attn.group.order, block.attn.rotary_angles(rows, columns)
            if self.is_checkpointed and self.training:
                tokens = checkpoint(block, tokens, *angles, use_reentrant=False)
            else:
                tokens = block(tokens, *angles)
        return self.norm(tokens)

    def token_field(self, images: Tensor) -> Tensor:
        """Return the tokens as maps on the group, (b, channels, order, rows, columns), which can be audited.

        After plain blocks the order is 1, and the maps are not equivariant.
        """
        tokens = self.forward_features(images)
        basis = fourier_basis(self.last_group).to(tokens)
        frames = to_frames(tokens, basis)  # (b, n, order, channels)
        return frames.permute(0, 3, 2, 1).unflatten(-1, self.patch_embed.grid(images))

    def forward(self, images: Tensor) -> Tensor:
        """(b, in_channels, h, w) -> (b, n_classes), or what the output of the network is"""
        tokens = self.forward_features(images)
        if isinstance(self.head, TypedHead):
            return self.head(tokens, *self.patch_embed.grid(images))
        return tokens if isinstance(self.head, nn.Identity) else self.head(tokens.mean(1))


def equivariant_vit(
    group: str | FiniteGroup,
    in_channels: int,
    n_classes: int,
    image_size: int | Sequence[int],
    *,
    patch: int = 16,
    depth: int = 12,
    width: int = 384,
    heads: int | None = None,
    mlp_ratio: float = 4.0,
    equivariant_until: int | None = None,
    output: str = "scalar",
    dense: bool = False,
) -> EquivariantViT:
    """Create a vision transformer that is equivariant to a group, with fewer operations than an ordinary one.

    Tokens carry functions on the group, in the basis of its irreducible representations, where linear maps are
    block-diagonal. Attention compares tokens in every frame, with rotary positions seen from it.

    Parameters
    ----------
    group : str or FiniteGroup
        A point group such as ``"d1"``, ``"c8"`` or ``"d4"``; ``"c1"`` gives an ordinary vision transformer.
    in_channels : int
        Channels of the images.
    n_classes : int
        Number of classes, or of other answers; 0 for the tokens (b, n, width) themselves, in the irrep basis.
    image_size : int or (int, int)
        Side, or (height, width), in pixels. Must be a multiple of the patch; other multiples work as well.
    patch : int, default 16
        Side of a patch in pixels.
    depth : int, default 12
        Number of blocks.
    width : int, default 384
        Numbers of a token, all elements of the group together: a multiple of its order.
    heads : int, optional
        Heads, all frames together: a multiple of the order of the group, or for a group with mirrors half of its order.
        Default: as many as have at least 96 channels, or 64 for c1; where not even one head for each frame has them,
        frames h and h m share a head if the group has mirrors. GPUs compute heads of 48 channels as slowly as of 64.
    mlp_ratio : float, default 4.0
        Hidden numbers of the MLP of each block, relative to the width.
    equivariant_until : int, optional
        Number of blocks that are equivariant; those after them are ordinary blocks, and so the network as a whole is
        then not invariant. Default: all.
    output : {"scalar", "regular", "vector"}, default "scalar"
        How the answers transform: scalars do not change; regular ones are one number for each element of the group,
        which permutes them; vectors (x, y) turn with the image.
    dense : bool, default False
        Whether to give one answer for each patch in place of one for the image.

    Returns
    -------
    Network
        A torch module: (b, in_channels, h, w) -> (b, n_classes) for scalars, (b, n_classes, order) for regular answers,
        (b, n_classes, 2) for vectors; dense answers have two more axes, the rows and columns of patches.

    Notes
    -----
    Exact for quarter turns and mirrors, at every number of patches; other angles are up to interpolation. With d4 a
    linear layer needs 5.33 times fewer products and 8 times fewer parameters than an ordinary one of the same width.

    Examples
    --------
    >>> import torch
    >>> network = equivariant_vit("d4", 3, 10, 32, patch=4, depth=2, width=64)
    >>> network(torch.rand(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    >>> arrows = equivariant_vit("d4", 1, 1, 20, patch=4, depth=1, width=32, output="vector", dense=True)
    >>> arrows(torch.rand(2, 1, 20, 24)).shape
    torch.Size([2, 1, 2, 5, 6])
    """
    parsed = parse_point_group(group)
    size = as_image_size(image_size)
    check_positive(patch=patch, depth=depth, width=width)
    if any(side % patch for side in size):
        raise ValueError(f"patches of {patch} pixels do not fill an image of {size[0]} x {size[1]}; crop or pad it")
    until = depth if equivariant_until is None else equivariant_until
    if not 0 <= until <= depth:
        raise ValueError(f"equivariant_until must be between 0 and the depth, {depth}, got {until}")
    if until == 0:
        parsed = parse_point_group("c1")
    if output not in OUTPUTS:
        raise ValueError(f"output must be one of {', '.join(OUTPUTS)}, got {output!r}")
    if (output != "scalar" or dense) and until < depth:
        raise ValueError(f"dense or {output} answers need equivariant blocks to the end: leave equivariant_until out")
    if heads is None:
        heads = _default_heads(parsed, width)
    return EquivariantViT(
        parsed, in_channels, n_classes, size, patch=patch, depth=depth, width=width, heads=heads, mlp_ratio=mlp_ratio,
        equivariant_until=until, output=output, dense=dense,
    )  # fmt: skip


def _default_heads(group: FiniteGroup, width: int) -> int:
    """Heads of 96 channels or more, 64 for the trivial group, as ``docs/benchmarks/transformers.md`` measures them."""
    order, channels = group.order, width // group.order
    of_each = width // ((64 if order == 1 else 96) * order)
    if of_each == 0 and group.mirrored:
        return order // 2
    return order * next((n for n in range(of_each, 1, -1) if channels % (2 * n) == 0), 1)
