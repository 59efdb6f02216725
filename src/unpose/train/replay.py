"""Work on CUDA that is recorded once and played back: thousands of launches become one.

A step of a group network launches thousands of short kernels, and Python takes longer to launch them than the GPU to
run them. A CUDA graph keeps the launches with their addresses. So whatever a step reads and writes stays where it is:
inputs are copied into buffers, and numbers that change from step to step are tensors.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

_WARM_UPS = 2
"""Steps before the one that is watched: kernels are compiled and chosen, libraries take their memory."""


class Replayed:
    """A function of tensors and numbers that changes other tensors: recorded at its first call, then played back.

    The first call and all others do the same, once each. The function gets numbers as float64 tensors without axes.
    Where it cannot be recorded, a warning says why and it is called each time.

    Parameters
    ----------
    work : the function; it returns nothing
    changing : lists every tensor that ``work`` writes to; those it makes on its first run must start at zero
    device : of all tensors

    Notes
    -----
    Random numbers are those of the device's generator at the time of the call: a graph reads seed and offset from
    there when it is played.
    """

    def __init__(
        self, work: Callable[..., None], changing: Callable[[], list[Tensor]], device: torch.device | str
    ) -> None:
        self._work, self._changing, self._device = work, changing, torch.device(device)
        self._inputs: list[Tensor] = []
        self._play: Callable[[], None] | None = None

    def __call__(self, *given: Tensor | float) -> None:
        """Run the function on tensors of the device and numbers; the same shapes each time."""
        if self._play is None:
            self._inputs = [
                value.detach().clone()
                if isinstance(value, Tensor)
                else torch.full((), value, dtype=torch.float64, device=self._device)
                for value in given
            ]
            graph = record(self._run, self._changing, self._device)
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


def record(
    work: Callable[[], None], changing: Callable[[], list[Tensor]], device: torch.device
) -> torch.cuda.CUDAGraph | None:
    """The launches of ``work`` as a graph, or None with a warning where they cannot be recorded.

    To record them ``work`` is run a few times. Afterwards the tensors that are ``changing`` hold what they held before,
    at the same addresses, and so do the generators; tensors that were made meanwhile are zero.
    """
    before = {id(tensor): (tensor, tensor.detach().clone()) for tensor in changing()}
    graph = torch.cuda.CUDAGraph()
    # One stream for all of it, and not the usual one: gradients are gathered on the stream where a weight was used.
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.random.fork_rng(devices=[device]), torch.cuda.stream(side), warnings.catch_warnings():
        # An optimizer that is made to be recorded warns when it first runs without that, and only then.
        warnings.filterwarnings("ignore", message=".*capturable=True")
        for _ in range(_WARM_UPS):
            work()
        obstacle = _recorded(graph, work, side)
    torch.cuda.current_stream(device).wait_stream(side)
    with torch.no_grad():
        for tensor in changing():
            if id(tensor) in before:
                tensor.copy_(before[id(tensor)][1])
            else:
                tensor.zero_()
    if obstacle is None:
        return graph
    warnings.warn(
        f"the steps of this run cannot be recorded as a CUDA graph and are launched one by one, which is slower: "
        f"{obstacle}",
        RuntimeWarning,
        stacklevel=3,
    )
    return None


def _recorded(graph: torch.cuda.CUDAGraph, work: Callable[[], None], side: torch.cuda.Stream) -> str | None:
    """Record into a graph; what stands in the way where that is not possible."""
    host = torch.get_rng_state()
    try:
        # What waits for the device cannot be recorded. To find that out in a plain run leaves nothing half recorded.
        with _waiting_is_an_error():
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
        _leave_recording(pool, side.device)
        return _first_line(error.__context__ or error)  # the end of the recording fails too, and says less
    return None


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _leave_recording(pool: Any, device: torch.device) -> None:
    """End a recording that failed: torch leaves its allocator and its generator in the midst of it.

    The allocator could not give memory back any more, and the generator would refuse every draw.
    """
    with suppress(RuntimeError):  # where torch has cleared up by itself
        torch._C._cuda_endAllocateToPool(device.index, pool)
    scratch, graph = torch.zeros(1, device=device), torch.cuda.CUDAGraph()
    graph.capture_begin()  # a recording that succeeds ends the generator's part as well
    scratch.zero_()
    graph.capture_end()


@contextmanager
def _waiting_is_an_error() -> Iterator[None]:
    """Within it torch raises where the host would wait for the device."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode does not find every place
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
