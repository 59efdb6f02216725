"""Capture a training step as a CUDA graph and replay it: one launch instead of thousands.

A step of a group network launches thousands of short kernels, and launching them from Python takes longer than running
them. A CUDA graph fixes the addresses it reads and writes, so inputs are copied into static buffers and numbers that
change from step to step are tensors.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from unpose.train.limits import Capture

_WARM_UPS = 2
"""Runs before capture, in which kernels are compiled and chosen and libraries allocate their workspaces."""


class GraphedFunction:
    """A function with side effects on tensors that is captured at its first call and replayed afterwards.

    Every call, the first included, has the effect of one run. The function receives numbers as 0-d float64 tensors.
    If capture fails, a warning says why and the function is called normally each time.

    Parameters
    ----------
    work : callable
        The function; it returns nothing.
    changing : callable
        Lists every tensor that ``work`` writes to; those created in its first run must start at zero.
    device : torch.device or str
        The device of all tensors.
    capture : callable
        Records the function: :func:`capture`, or one that takes and gives the same.

    Notes
    -----
    Random numbers come from the device's generator at the time of the call: a replayed graph reads seed and offset
    from there.
    """

    def __init__(
        self,
        work: Callable[..., None],
        changing: Callable[[], list[Tensor]],
        device: torch.device | str,
        capture: Capture,
    ) -> None:
        self._work, self._changing, self._device, self._capture = work, changing, torch.device(device), capture
        self._inputs: list[Tensor] = []
        self._play: Callable[[], None] | None = None

    def __call__(self, *given: Tensor | float) -> None:
        """Run the function on tensors of the device and numbers, with the same shapes each time."""
        if self._play is None:
            self._inputs = [
                value.detach().clone()
                if isinstance(value, Tensor)
                else torch.full((), value, dtype=torch.float64, device=self._device)
                for value in given
            ]
            graph = self._capture(self._run, self._changing, self._device)
            self._play = self._run if graph is None else graph.replay
        else:
            for kept, value in zip(self._inputs, given, strict=True):
                if isinstance(value, Tensor):
                    kept.copy_(value)
                else:
                    kept.fill_(value)
        self._play()

    def _run(self) -> None:
        self._work(*self._inputs)


def capture(
    work: Callable[[], None], changing: Callable[[], list[Tensor]], device: torch.device
) -> torch.cuda.CUDAGraph | None:
    """Capture the launches of ``work`` as a graph; return None, with a warning, where that is impossible.

    Capture runs ``work`` a few times. Afterwards the tensors in ``changing`` and the generators are restored, at the
    same addresses; tensors created meanwhile are set to zero.
    """
    before = {id(tensor): (tensor, tensor.detach().clone()) for tensor in changing()}
    graph = torch.cuda.CUDAGraph()
    # Capture needs a side stream, and gradients accumulate on the stream where a weight was used: use one for all.
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.random.fork_rng(devices=[device]), torch.cuda.stream(side), warnings.catch_warnings():
        # A capturable optimizer warns once when it first runs outside of a capture.
        warnings.filterwarnings("ignore", message=".*capturable=True")
        for _ in range(_WARM_UPS):
            work()
        reason = _try_capture(graph, work, side)
    torch.cuda.current_stream(device).wait_stream(side)
    with torch.no_grad():
        for tensor in changing():
            if id(tensor) in before:
                tensor.copy_(before[id(tensor)][1])
            else:
                tensor.zero_()
    if reason is None:
        return graph
    warnings.warn(
        f"training steps cannot be captured as a CUDA graph and are launched one by one, which is slower: {reason}",
        RuntimeWarning,
        stacklevel=3,
    )
    return None


def _try_capture(graph: torch.cuda.CUDAGraph, work: Callable[[], None], side: torch.cuda.Stream) -> str | None:
    """Capture into a graph; return the reason where that is impossible, else None."""
    host = torch.get_rng_state()
    try:
        # Synchronisation cannot be captured. Detecting it in a plain run leaves no half-captured graph behind.
        with _error_on_synchronisation():
            work()
    except RuntimeError as error:
        return _first_line(error)
    if not torch.equal(torch.get_rng_state(), host):
        return "random numbers are drawn on the host, and a graph would repeat them"
    pool = torch.cuda.graph_pool_handle()
    try:
        with torch.cuda.graph(graph, pool=pool, stream=side):
            work()
    except RuntimeError as error:
        _end_failed_capture(pool, side.device)
        return _first_line(error.__context__ or error)  # ending the capture fails too, with a less specific message
    return None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _end_failed_capture(pool: Any, device: torch.device) -> None:
    """Clean up after a failed capture, which leaves torch's allocator and generator in capture mode.

    Otherwise the allocator could not free memory and the generator would refuse to draw.
    """
    with suppress(RuntimeError):  # torch may have cleaned up by itself
        torch._C._cuda_endAllocateToPool(device.index, pool)
    scratch, graph = torch.zeros(1, device=device), torch.cuda.CUDAGraph()
    graph.capture_begin()  # a capture that succeeds resets the generator
    scratch.zero_()
    graph.capture_end()


@contextmanager
def _error_on_synchronisation() -> Iterator[None]:
    """Make torch raise where the host would synchronise with the device."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that the mode does not find every synchronisation
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
