"""The blocks of a search on the workers of a Dask cluster (:mod:`unpose.align.blocks`).

Dask does the scheduling. What all blocks share, such as the images, is sent as one task that the others depend on, so
that Dask computes it again wherever it is lost; an array that is mapped from a file is sent as its path. A block whose
worker dies runs again on another one. Results come back to the process that asked for them, in order, and only that
process writes checkpoints.

Every block runs on one thread, and its bytes depend neither on the number of workers nor on which of them computes it,
if all of them have the same versions of unpose and torch and the same kind of processor.
"""

import io
import logging
import mmap
import os
import pickle
import pkgutil
import uuid
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unpose.align.blocks import Work
from unpose.align.checkpoints import Arrays
from unpose.compiled import worker_pool

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["DaskExecutor", "dask_client"]

_BLOCKS_PER_THREAD = 4
"""Blocks that are submitted for each thread of the cluster, so that no worker waits for the process that submits."""
_KEPT = 2
"""Shared objects that a worker keeps: those of the current stage, and of the one before, to which a search returns."""
_PATIENT = {
    "distributed.comm.timeouts.connect": "300s",
    "distributed.comm.timeouts.tcp": "300s",
    "distributed.deploy.lost-worker-timeout": "600s",
}
"""A worker on a busy machine may need longer to begin again than the 15 s after which Dask gives it up by default."""


class DaskExecutor:
    """Computes blocks on the workers of a Dask cluster.

    Parameters
    ----------
    client : distributed.Client
        A connected client. All workers need this version of unpose, and must see the files that the images are read
        from under the same paths.

    Raises
    ------
    ValueError
        If workers have no unpose or another version of it.

    Examples
    --------
    >>> import numpy as np
    >>> from distributed import Client
    >>> from unpose.align import nearest
    >>> bars = np.zeros((3, 12, 12), np.float32)
    >>> bars[0, 2:10, 5:7] = bars[1, 5:7, 2:10] = bars[2, 4:8, 4:8] = 1
    >>> with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=":0") as client:
    ...     nearest(bars, 1, executor=DaskExecutor(client)).indices.ravel()
    array([1, 0, 1])
    """

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._sent: dict[int, tuple[str, Future]] = {}
        _check_workers(client)

    @property
    def ahead(self) -> int:
        """Number of blocks that are submitted before the result of the first is asked for."""
        return _BLOCKS_PER_THREAD * max(1, sum(self._client.nthreads().values()))

    def submit(self, work: Work, shared: Any, arguments: Mapping[str, Any]) -> Callable[[], Arrays]:
        """Begin to compute ``work(shared, **arguments)`` on a worker; returns a function that waits for the result."""
        import dask

        name = getattr(work, "func", work).__name__.strip("_")
        # A slice of a tensor is pickled with the whole tensor, a copy of it is not.
        own = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in arguments.items()}
        try:
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "100GB"}):
                token, payload = self._send(shared)
                future = self._client.submit(
                    _run_block, work, token, payload, own, key=f"{name}-{uuid.uuid4().hex}", pure=False
                )
        except (OSError, CancelledError) as error:
            raise self._lost_scheduler(error) from error
        return partial(self._result, future, name)

    def _send(self, shared: Any) -> tuple[str, "Future"]:
        """A future of the pickled object on the cluster, and a name for it; sent only once."""
        if id(shared) not in self._sent:
            token = uuid.uuid4().hex
            payload = self._client.submit(_payload, _pickled(shared), key=f"shared-{token}", pure=False)
            self._sent[id(shared)] = token, payload
            weakref.finalize(shared, self._sent.pop, id(shared), None)  # Dask then forgets it, too
        return self._sent[id(shared)]

    def _result(self, future: "Future", name: str) -> Arrays:
        from distributed import KilledWorker
        from distributed.comm import CommClosedError

        try:
            found: Arrays = future.result()
        except KilledWorker as error:
            raise RuntimeError(
                f"a block of the stage {name!r} was lost with {error.allowed_failures + 1} workers, one after the "
                "other; they were probably killed because they need more memory than their machines have. Start fewer "
                "workers on each machine, and continue the run"
            ) from error
        except (CancelledError, TimeoutError, CommClosedError) as error:
            raise self._lost_scheduler(error) from error
        return found

    def _lost_scheduler(self, error: BaseException) -> ConnectionError:
        scheduler = self._client.scheduler
        where = f" at {scheduler.address}" if scheduler is not None else ""
        return ConnectionError(
            f"the connection to the Dask scheduler{where} was lost ({type(error).__name__}). Blocks that were finished "
            "are kept in the run folder, if there is one: the same command continues from them, with this scheduler or "
            "another, any number of workers, or without Dask"
        )


@contextmanager
def dask_client(
    address: str,
    n_workers: int | None = None,
    *,
    device: str = "cpu",
    connect_seconds: float = 10.0,
    worker_seconds: float = 60.0,
) -> Iterator["Client"]:
    """Connect to a Dask cluster, or start one on this machine, as a context manager.

    Parameters
    ----------
    address : str
        Address of a scheduler, such as ``"tcp://host:8786"``; ``"local"`` starts a scheduler and workers on this
        machine, which listen on the interface 127.0.0.1 only.
    n_workers : int, optional
        Number of workers for ``"local"``, one process each with one thread; as many as there are processors by default,
        or GPUs for the device ``"cuda"``.
    device : str, default "cpu"
        Device that the blocks will use. For ``"local"`` and ``"cuda"`` each worker sees one of the GPUs that this
        process sees. Workers of other clusters see those that they were started with.
    connect_seconds, worker_seconds : float
        How long to wait for the scheduler at an address, and for its first worker.

    Yields
    ------
    distributed.Client

    Raises
    ------
    ValueError
        If Dask is not installed, or the address is none.
    ConnectionError
        If no scheduler answers, or it has no workers.

    Examples
    --------
    >>> with dask_client("http//host") as client:
    ...     pass
    Traceback (most recent call last):
        ...
    ValueError: the address of a Dask scheduler must be like tcp://host:8786, or the word local, got 'http//host'
    """
    if address != "local" and not address.startswith(("tcp://", "tls://", "ucx://", "ws://", "wss://", "inproc://")):
        raise ValueError(
            f"the address of a Dask scheduler must be like tcp://host:8786, or the word local, got {address!r}"
        )
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise ValueError("many machines need the packages dask and distributed: pip install 'unpose[scale]'") from error
    if address == "local":
        gpus = _visible_gpus() if device.startswith("cuda") else []
        count = n_workers or len(gpus) or os.cpu_count() or 1
        local = partial(
            LocalCluster, n_workers=count, threads_per_worker=1, processes=True, host="127.0.0.1",
            dashboard_address="127.0.0.1:0", scheduler_kwargs={"dashboard": False}, silence_logs=logging.ERROR,
        )  # fmt: skip
        with dask.config.set(_PATIENT), local() as cluster, Client(cluster) as client:
            if gpus:
                _give_each_a_gpu(client, gpus)
            yield client
        return
    try:
        client = Client(address, timeout=connect_seconds)
    except OSError as error:
        raise ConnectionError(
            f"no Dask scheduler answers at {address} within {connect_seconds:g} s; start one with `dask scheduler`, "
            "or give the word local for workers on this machine"
        ) from error
    with client:
        try:
            client.wait_for_workers(1, timeout=worker_seconds)
        except TimeoutError as error:
            raise ConnectionError(
                f"the Dask scheduler at {address} has no workers; start some with `dask worker {address} --nthreads 1`"
            ) from error
        yield client


def _visible_gpus() -> list[str]:
    """The GPUs that this process sees, as CUDA names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def _give_each_a_gpu(client: "Client", gpus: list[str]) -> None:
    """Let each worker of a local cluster, also one that takes the place of a dead one, see a single GPU."""
    from distributed import WorkerPlugin

    class OneGpu(WorkerPlugin):
        name = "unpose: one GPU for each worker"

        def setup(self, worker: Any) -> None:  # before the worker has used CUDA
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus[worker.name % len(gpus)]

    client.register_plugin(OneGpu())


def _check_workers(client: "Client") -> None:
    """Refuse workers without unpose, or with another version of it."""
    # Functions of unpose cannot even be sent to a worker without it, a function of Python can.
    find = partial(client.run, pkgutil.resolve_name, on_error="return")
    here = pkgutil.resolve_name("unpose:__version__")
    for worker, there in find("unpose:__version__").items():
        # Any other error is that of a worker which is dying, and whose blocks Dask will give to others.
        if isinstance(there, str | ImportError) and there != here:
            what = f"has unpose {there}" if isinstance(there, str) else f"cannot import unpose ({there})"
            raise ValueError(
                f"the Dask worker {worker} {what}, but this process has unpose {here}; install the same version "
                f"there: pip install unpose=={here}"
            )


class _Pickler(pickle.Pickler):
    """Pickles an array that is mapped from a file as the path of the file."""

    def reducer_override(self, found: Any) -> Any:
        if not isinstance(found, np.memmap) or not isinstance(found.base, mmap.mmap) or found.filename is None:
            return NotImplemented  # a part of a mapped array does not know where in the file it begins
        order = "C" if found.flags.c_contiguous else "F"
        return np.memmap, (os.path.abspath(found.filename), found.dtype, "r", found.offset, found.shape, order)


def _pickled(shared: Any) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, protocol=5).dump(shared)
    return stream.getvalue()


def _payload(payload: bytes) -> bytes:
    """What a search shares, as a task: Dask computes it again where the worker that holds it is lost."""
    return payload


_SHARED: OrderedDict[str, Any] = OrderedDict()
_LOCK = Lock()


def _run_block(work: Work, token: str, payload: bytes, arguments: Mapping[str, Any]) -> Arrays:
    """Compute one block on a worker, on one core: torch would use all of them for each of the workers of a machine."""
    with worker_pool(1) as one:
        return one.submit(_compute_block, work, token, payload, arguments).result()


def _compute_block(work: Work, token: str, payload: bytes, arguments: Mapping[str, Any]) -> Arrays:
    """Compute one block with the shared object that the worker keeps from earlier blocks."""
    with _LOCK:
        if token not in _SHARED:
            _SHARED[token] = _unpickled(payload)
        _SHARED.move_to_end(token)
        while len(_SHARED) > _KEPT:
            _SHARED.popitem(last=False)
        shared = _SHARED[token]
    return work(shared, **arguments)


def _unpickled(payload: bytes) -> Any:
    try:
        return pickle.loads(payload)
    except (OSError, ValueError) as error:  # readers of formats raise a ValueError where a file is missing
        import socket

        raise OSError(
            f"a Dask worker on {socket.gethostname()} cannot open what it needs: {error}. The images and the run "
            "folder must lie in storage that all workers see under the same path"
        ) from error
