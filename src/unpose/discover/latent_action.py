"""Latent actions: a space in which an unknown transformation of images acts as a matrix, learnt from short films.

After Koyama et al., "Neural Fourier Transform: A General Approach to Equivariant Representation Learning" (ICLR 2024).
"""

import math
from collections.abc import Callable

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from unpose.images import as_batch

_RIDGE = 1e-4
"""Relative ridge of the least squares for the operator, against latent vectors that do not span their space."""


class LatentAction(nn.Module):
    """A latent space in which images move by matrices: its encoder and decoder, trained by :func:`fit_latent_action`.

    The latent of an image is a matrix Z of ``order`` rows. The operator between two images of a film is the matrix M
    that fits M Z0 = Z1 best, and the next image is decoded from M Z1. Nothing says what the transformation is: the
    encoder has to find coordinates in which it is linear. For rotations, these are the Fourier coefficients along the
    circle, and the eigenvalues of M have the angles k t for whole numbers k and the step t.

    Parameters
    ----------
    shape : tuple of int
        Channels, height and width of the images.
    order : int, default 7
        Rows of the latent, the size of the operators: for rotations, 2 k + 1 for frequencies up to k.
    columns : int, default 24
        Columns of the latent. At least as many as rows, for the operator to be determined.
    width : int, default 512
        Units of the hidden layers of encoder and decoder.

    Examples
    --------
    >>> action = LatentAction((1, 8, 8), order=3, columns=4, width=16)
    >>> first, second = torch.rand(2, 5, 1, 8, 8)
    >>> action.operators(first, second).shape, action(first, second).shape
    (torch.Size([5, 3, 3]), torch.Size([5, 1, 8, 8]))
    """

    def __init__(self, shape: tuple[int, int, int], order: int = 7, columns: int = 24, width: int = 512) -> None:
        super().__init__()
        if not 1 <= order <= columns:
            raise ValueError(f"order must be at least 1 and at most the number of columns, got {order} and {columns}")
        self.shape, self.order, self.columns = tuple(shape), order, columns
        size, latent = math.prod(shape), order * columns
        self.encoder = nn.Sequential(nn.Flatten(), *_perceptron(size, width, latent), nn.Unflatten(1, (order, columns)))
        self.decoder = nn.Sequential(nn.Flatten(), *_perceptron(latent, width, size), nn.Unflatten(1, self.shape))

    def operators(self, first: Tensor, second: Tensor) -> Tensor:
        """The matrices (n, order, order) that move latents of ``first`` to those of ``second``, (n, c, h, w) each."""
        return _least_squares(self.encoder(first), self.encoder(second))

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """The images that follow ``first`` and ``second``, (n, c, h, w) each: (n, c, h, w)"""
        start, end = self.encoder(first), self.encoder(second)
        predicted: Tensor = self.decoder(_least_squares(start, end) @ end)
        return predicted

    @torch.no_grad()
    def angles(self, first: Tensor, second: Tensor) -> Tensor:
        """Angles of the eigenvalues of the operators in radians, in rising order: (n, order)."""
        return torch.linalg.eigvals(self.operators(first, second)).angle().sort(1).values


def _perceptron(inputs: int, width: int, outputs: int) -> list[nn.Module]:
    return [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs)]


def _least_squares(start: Tensor, end: Tensor) -> Tensor:
    """The matrices M (n, a, a) for which M start is nearest to end, (n, a, m) each."""
    gram = start @ start.mT  # (n, a, a)
    ridge = _RIDGE * gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(1e-12)
    gram = gram + ridge[:, None, None] * torch.eye(gram.shape[1], dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(gram, start @ end.mT).mT


def fit_latent_action(
    films: ArrayLike | Tensor,
    *,
    order: int = 7,
    columns: int = 24,
    width: int = 512,
    steps: int = 6000,
    batch_size: int = 64,
    learning_rate: float = 1e-3,
    device: str | torch.device = "cpu",
    random_state: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> LatentAction:
    """Learn a latent action from films of three images each that move by a constant step, which may differ by film.

    Parameters
    ----------
    films : (n, 3, h, w) or (n, 3, h, w, c) array
        Three consecutive images of each film.
    order : int, default 7
        Size of the operators; see :class:`LatentAction`, also for the next two.
    columns : int, default 24
        Columns of a latent.
    width : int, default 512
        Units of the hidden layers.
    steps : int, default 6000
        Training steps.
    batch_size : int, default 64
        Films per step.
    learning_rate : float, default 1e-3
        Largest learning rate of AdamW; it falls as a cosine.
    device : str or torch.device, default "cpu"
        Where to train. The result stays there.
    random_state : int, default 0
        Seed of weights and batches.
    progress : callable, optional
        Called as ``progress(done, steps)``.

    Returns
    -------
    LatentAction
        In evaluation mode.

    Examples
    --------
    >>> import numpy as np
    >>> films = np.random.default_rng(0).random((10, 3, 8, 8))
    >>> fit_latent_action(films, order=3, columns=4, width=16, steps=2).order
    3
    """
    images = torch.as_tensor(films)
    if images.ndim not in (4, 5) or images.shape[1] != 3 or len(images) < 2:
        raise ValueError(
            f"films must be an array (n, 3, h, w) or (n, 3, h, w, c) of at least two, got {tuple(images.shape)}"
        )
    batch = as_batch(images.flatten(0, 1), dtype=torch.float32).unflatten(0, (-1, 3)).to(device)  # (n, 3, c, h, w)
    generator = torch.Generator().manual_seed(random_state)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(random_state)
        action = LatentAction(tuple(batch.shape[2:]), order, columns, width)
    action.to(device).train()
    optimizer = torch.optim.AdamW(action.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(steps, 1))
    for step in range(steps):
        chosen = torch.randint(len(batch), (batch_size,), generator=generator).to(batch.device)
        first, second, third = batch[chosen].unbind(1)
        loss = (action(first, second) - third).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if progress is not None:
            progress(step + 1, steps)
    return action.eval()
