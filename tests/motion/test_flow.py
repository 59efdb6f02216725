"""Moving hidden copies: a sequence that moves at a listed velocity gives the states of the still one, moved."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kit.tensors import uniform
from unpose.motion import flow_rnn

pytestmark = pytest.mark.equivariance

VELOCITIES = [(x, y) for x in (-1, 0, 1) for y in (-2, 0, 2)]


def moving(frames, velocity):
    """Frame t shifted by t times the velocity."""
    x, y = velocity
    return torch.stack([frame.roll((t * y, t * x), dims=(-2, -1)) for t, frame in enumerate(frames.unbind(1))], dim=1)


@settings(max_examples=5, deadline=None)
@given(u=st.sampled_from(VELOCITIES), steps=st.integers(1, 5), h=st.integers(5, 9), double=st.booleans())
def test_states_move_with_the_sequence(u, steps, h, double):
    dtype = torch.float64 if double else torch.float32
    torch.manual_seed(1)
    net, frames = flow_rnn(VELOCITIES, 3, width=4, kernel_size=3).to(dtype), uniform(2, steps, 1, h, 7, dtype=dtype)
    still, found = net.states(frames), net.states(moving(frames, u))
    gone = ((steps - 1) * u[1], (steps - 1) * u[0])
    compared = 0
    for k, (x, y) in enumerate(VELOCITIES):
        if (x - u[0], y - u[1]) in VELOCITIES:
            source = VELOCITIES.index((x - u[0], y - u[1]))
            expected = still[:, source].roll(gone, dims=(-2, -1))
            torch.testing.assert_close(
                found[:, k], expected, rtol=1e-12 if double else 1e-4, atol=1e-12 if double else 1e-5
            )
            compared += 1
    assert compared >= 4
    if steps > 2 and u != (0, 0):  # the control: a copy that does not move along sees something else
        rest = VELOCITIES.index((0, 0))
        assert (found[:, rest] - still[:, rest].roll(gone, dims=(-2, -1))).abs().max() > 1e-3


def test_still_sequences_train_the_network_for_moving_ones():
    torch.manual_seed(1)
    net = flow_rnn(VELOCITIES, 3, width=4, kernel_size=3).double()
    frames = uniform(2, 4, 1, 7, 9, dtype=torch.float64)
    for seed in range(3):
        torch.manual_seed(seed)
        trained = net.train()(frames)
        torch.manual_seed(seed)
        u = VELOCITIES[int(torch.randint(len(VELOCITIES), ()))]  # the velocity that was drawn
        torch.testing.assert_close(trained, net.eval()(moving(frames, u)), rtol=1e-10, atol=1e-10)
        assert (net(frames) - trained).abs().max() > 1e-5 or u == (0, 0)  # the control


def test_what_leaves_the_canvas_comes_back_unless_frames_are_padded():
    torch.manual_seed(2)
    net = flow_rnn(VELOCITIES, 3, width=4, kernel_size=3)
    frames = torch.zeros(1, 6, 1, 7, 9)
    for t in range(6):
        frames[0, t, 0, 2:4, 5 + t : 7 + t] = 1  # cut off at the border, gone in the last two frames
    copy = VELOCITIES.index((1, 0))

    def seen(frames):
        return (net.states(frames) - net.states(torch.zeros_like(frames)))[0, copy].detach().abs().amax((0, 1))

    assert seen(frames)[:2].max() > 1e-3  # remembered, and moved in at the left
    padded = torch.nn.functional.pad(frames, (12,) * 4)  # five steps of one pixel, and as many kernels
    assert seen(padded)[12:14].max() == 0
    assert seen(padded)[22:24].max() > 1e-3  # remembered outside of the canvas


def test_bad_calls():
    for velocities in ([], [(0, 0), (0, 0)]):
        with pytest.raises(ValueError, match="velocities"):
            flow_rnn(velocities, 2)
    with pytest.raises(ValueError, match="odd"):
        flow_rnn([(0, 0)], 2, kernel_size=4)
    with pytest.raises(ValueError, match=r"\(b, t, c, h, w\)"):
        flow_rnn([(0, 0)], 2)(uniform(2, 1, 8, 8))
