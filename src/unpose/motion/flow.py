"""Recurrent networks whose hidden state moves: equivariant to constant motion (after Keller, 2025).

There is one copy of the hidden state for each velocity, and each copy is shifted by its velocity before every step.
What moves at one of these velocities stands still in its copy, so that it is seen there as a still thing is seen in the
copy at rest. Hence a network trained on still sequences alone recognises moving ones.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Velocity = tuple[int, int]


def move(maps: Tensor, velocities: Sequence[Velocity]) -> Tensor:
    """Shift copies (b, v, c, h, w) by their velocities (x, y) in pixels, x to the right and y down; borders wrap."""
    return torch.stack([maps[:, k].roll((y, x), dims=(-2, -1)) for k, (x, y) in enumerate(velocities)], dim=1)


class FlowRNN(nn.Module):
    """A convolutional recurrent network with moving hidden copies; made by :func:`flow_rnn`.

    Parameters
    ----------
    velocities : sequence of (int, int)
        (x, y) in pixels for each step.
    in_channels, width, n_out : int
        Channels of the images and of the hidden state, and outputs.
    kernel_size : int
        Odd side of the kernels.

    Examples
    --------
    >>> FlowRNN([(0, 0)], 1, 4, 3, 3)(torch.rand(2, 5, 1, 8, 8)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, velocities: Sequence[Velocity], in_channels: int, width: int, n_out: int, kernel_size: int
    ) -> None:
        super().__init__()
        self.velocities = tuple((int(x), int(y)) for x, y in velocities)
        if not self.velocities or len(set(self.velocities)) != len(self.velocities):
            raise ValueError(f"velocities must be one or more different pairs (x, y), got {list(velocities)}")
        if kernel_size % 2 == 0:
            raise ValueError(f"kernel_size must be odd, got {kernel_size}")
        self.n_out = n_out
        settings = {"padding": kernel_size // 2, "padding_mode": "circular"}
        self.see = nn.Conv2d(in_channels, width, kernel_size, **settings)  # type: ignore[arg-type]
        self.remember = nn.Conv2d(width, width, kernel_size, bias=False, **settings)  # type: ignore[arg-type]
        self.deeper = nn.Conv2d(width, width, kernel_size, **settings)  # type: ignore[arg-type]
        self.answer = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, n_out + 1))

    def states(self, frames: Tensor, velocities: Sequence[Velocity] | None = None) -> Tensor:
        """The last hidden state of every copy: (b, t, c, h, w) -> (b, v, width, h, w), by default at those listed.

        If the frames move by a velocity u, copy v becomes copy ``v - u`` of the still sequence, moved to where the last
        frame is. This is exact wherever both velocities are listed.
        """
        velocities = self.velocities if velocities is None else velocities
        if frames.ndim != 5:
            raise ValueError(f"frames must be (b, t, c, h, w), got shape {tuple(frames.shape)}")
        count = len(velocities)
        hidden: Tensor | None = None
        for frame in frames.unbind(1):
            seen = self.see(frame)[:, None].expand(-1, count, -1, -1, -1)
            if hidden is not None:
                moved = move(hidden, velocities)
                seen = seen + self.remember(moved.flatten(0, 1)).unflatten(0, (-1, count))
            hidden = torch.relu(seen)
        if hidden is None:
            raise ValueError("a sequence needs at least one frame")
        return hidden

    def forward(self, frames: Tensor) -> Tensor:
        """(b, t, c, h, w) -> (b, n_out): each copy gives an answer and a score, and the best scores decide."""
        velocities = self.velocities
        if self.training:
            # The copies that a sequence moving at one of the velocities would see, relative to it: by the law above,
            # still sequences train the read-out for all listed velocities, also for those at the edge of the list.
            x, y = velocities[int(torch.randint(len(velocities), ()))]
            velocities = tuple((each[0] - x, each[1] - y) for each in velocities)
        states = self.states(frames, velocities)
        features = torch.relu(self.deeper(states.flatten(0, 1))).amax((-2, -1)).unflatten(0, states.shape[:2])
        answers, scores = self.answer(features).split((self.n_out, 1), dim=-1)  # (b, v, n_out), (b, v, 1)
        return (scores.softmax(1) * answers).sum(1)


def flow_rnn(
    velocities: Sequence[Velocity], n_out: int, *, in_channels: int = 1, width: int = 16, kernel_size: int = 5
) -> FlowRNN:
    """A recurrent network that sees things moving at the listed velocities as it sees still ones.

    Parameters
    ----------
    velocities : sequence of (int, int)
        (x, y) in pixels for each step, x to the right and y down. ``[(0, 0)]`` is a plain recurrent network with as
        many parameters.
    n_out : int
        Outputs, for example classes.
    in_channels : int, default 1
        Channels of the frames.
    width : int, default 16
        Channels of the hidden state.
    kernel_size : int, default 5
        Odd side of the kernels.

    Returns
    -------
    FlowRNN

    Notes
    -----
    Cost and memory grow with the number of velocities. Borders wrap around. In training mode the copies are those that
    a sequence moving at a velocity drawn from the list would fill, so that answers depend on torch's random state.

    Examples
    --------
    >>> net = flow_rnn([(0, 0), (1, 0), (-1, 0)], 3)
    >>> net(torch.rand(2, 4, 1, 12, 12)).shape
    torch.Size([2, 3])
    """
    return FlowRNN(velocities, in_channels, width, n_out, kernel_size)
