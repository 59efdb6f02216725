"""A search on a Dask cluster: the same bytes whatever happens to its processes, and errors that say what to do.

Most of these tests start processes that import torch, and are slow for that reason alone.
"""

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import CancelledError
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch

from kit.doubles import InMemory
from unpose.align import nearest
from unpose.align.dask_executor import DaskExecutor, dask_client
from unpose.cluster import InvariantClustering

pytestmark = pytest.mark.extra("scale")
KILLS = 20


@pytest.fixture(scope="module")
def neighbours(noisy, small_blocks):
    """Finds the neighbours of the noisy images in many small blocks, and returns their bytes."""

    def find(**options):
        found = nearest(noisy, 4, quick=True, max_shift=3.0, limits=small_blocks, **options)
        return [getattr(found, name).tobytes() for name in ("indices", "distances", "poses")]

    return find


@pytest.fixture(scope="module")
def alone(neighbours):
    """The neighbours that one process finds."""
    return neighbours()


@pytest.fixture(scope="module")
def client():
    with dask_client("local", 2) as client:
        yield client


class TestMessages:
    """Without any cluster: what the client raises, and what a user reads."""

    class Client:
        """A client whose workers have some version of unpose, and whose tasks end with some error."""

        scheduler = type("Scheduler", (), {"address": "tcp://there:8786"})

        def __init__(self, versions=None, error=None):
            self.versions, self.error = versions or {}, error

        def run(self, function, name, on_error):
            assert (name, on_error) == ("unpose:__version__", "return")
            return self.versions

        def nthreads(self):
            return {"tcp://one": 2, "tcp://two": 1}

        def submit(self, function, *arguments, **options):
            return self

        def result(self):
            raise self.error

    def test_workers_without_unpose_or_with_another_version(self):
        import unpose

        DaskExecutor(self.Client({"tcp://one": unpose.__version__}))
        with pytest.raises(ValueError, match=r"worker tcp://two has unpose 0\.0, but this process has unpose \d"):
            DaskExecutor(self.Client({"tcp://one": unpose.__version__, "tcp://two": "0.0"}))
        missing = ModuleNotFoundError("No module named 'unpose'")
        with pytest.raises(ValueError, match=r"tcp://one cannot import unpose \(No module.*pip install unpose=="):
            DaskExecutor(self.Client({"tcp://one": missing}))

    def test_a_worker_that_dies_while_it_is_asked_is_no_reason_to_stop(self):
        assert DaskExecutor(self.Client({"tcp://one": OSError("connection reset by peer")})).ahead == 12

    def test_a_lost_scheduler(self, noisy):
        executor = DaskExecutor(self.Client(error=CancelledError()))
        assert executor.ahead == 12
        with pytest.raises(
            ConnectionError, match=r"scheduler at tcp://there:8786 was lost.*the same command continues"
        ):
            nearest(noisy[:5], 2, quick=True, executor=executor)

    def test_a_block_that_kills_every_worker(self, noisy):
        import distributed

        dead = type("WorkerState", (), {"address": "tcp://one"})
        executor = DaskExecutor(self.Client(error=distributed.KilledWorker("block", dead, 3)))
        with pytest.raises(RuntimeError, match=r"lost with 4 workers.*more memory.*fewer workers"):
            nearest(noisy[:5], 2, quick=True, executor=executor)

    @pytest.mark.parametrize("address", ["host:8786", "remote", ""])
    def test_what_is_no_address(self, address):
        with (
            pytest.raises(ValueError, match="must be like tcp://host:8786, or the word local, got"),
            dask_client(address),
        ):
            pass

    def test_nobody_listens(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        with (
            pytest.raises(ConnectionError, match=f"no Dask scheduler answers at {address}"),
            dask_client(address, connect_seconds=0.5),
        ):
            pass

    def test_dask_is_not_installed(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "distributed", None)
        with pytest.raises(ValueError, match=r"pip install 'unpose\[scale\]'"), dask_client("local"):
            pass


class Inline:
    """A client of one worker that computes at once, and notes how many bytes it was sent."""

    def __init__(self):
        self.sent = 0

    def run(self, function, *arguments, **options):
        return {}

    def submit(self, function, *arguments, **options):
        self.sent += sum(len(each) for each in arguments if isinstance(each, bytes))
        arguments = [each.value if isinstance(each, Inline.Future) else each for each in arguments]
        return Inline.Future(function(*arguments))

    class Future:
        def __init__(self, value):
            self.value = value

        def result(self):
            return self.value


@pytest.fixture
def mapped(tmp_path):
    array = np.lib.format.open_memmap(tmp_path / "images.npy", "w+", np.float32, (300, 11, 13))
    array[:] = np.arange(array.size).reshape(array.shape)
    array.flush()
    return array


@pytest.mark.parametrize("first", [0, 5])
def test_a_mapped_array_is_sent_as_its_path_and_a_part_of_it_as_its_numbers(mapped, first):
    client, images = Inline(), mapped[first : first + 2] if first else mapped
    result = DaskExecutor(client).submit(total, Shared(images), {"rows": slice(0, 2)})
    assert np.array_equal(result()["total"], images[:2].sum((1, 2)))
    assert client.sent < 2000


def test_a_worker_of_this_process_uses_one_core_and_leaves_the_others_to_the_program(noisy):
    import distributed

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with distributed.Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None) as client:
            nearest(noisy[:14], 4, max_shift=3.0, executor=DaskExecutor(client))
            found = []
            thread = Thread(target=lambda: found.append(torch.get_num_threads()))
            thread.start()
            thread.join()
        assert found == [3]
    finally:
        torch.set_num_threads(before)


@pytest.mark.slow
class TestCluster:
    def test_two_workers_give_the_result_of_one_process(self, client, neighbours, alone):
        told = []
        executor = DaskExecutor(client)
        assert neighbours(executor=executor, progress=lambda *each: told.append(each)) == alone
        assert {stage for stage, _, _ in told} == {"search", "compare", "refine"}
        assert len(told) > 9

    def test_an_estimator_is_fitted_on_the_cluster(self, client, noisy):
        told = []
        one, many = InvariantClustering(6), InvariantClustering(6)
        one.fit(noisy)
        many.fit(noisy, client=client, progress=lambda stage, *_: told.append(stage))
        assert {"search", "compare", "refine"} <= set(told)
        for name in ("labels_", "poses_", "means_", "confidences_"):
            assert getattr(one, name).tobytes() == getattr(many, name).tobytes()

    def test_it_listens_on_the_loopback_interface_only(self, client):
        processes = [os.getpid(), *client.run(os.getpid).values()]
        addresses = [address for process in processes for address in listening(process)]
        assert len(addresses) >= 3  # the scheduler and two workers
        assert {address.rpartition(":")[0] for address in addresses} == {"0100007F"}

    def test_workers_that_cannot_see_the_images(self, client, tmp_path):
        array = np.lib.format.open_memmap(tmp_path / "images.npy", "w+", np.float32, (5, 7, 7))
        (tmp_path / "images.npy").unlink()
        waiting = DaskExecutor(client).submit(total, Shared(array), {"rows": slice(0, 2)})
        with pytest.raises(OSError, match=r"worker on .* cannot open.*images\.npy.*storage that all workers see"):
            waiting()

    def test_killed_workers_change_nothing(self, client, neighbours, alone):
        """A worker is killed at a random block, each time in a search of its own."""
        steps, chosen = [], random.Random(1)
        neighbours(executor=DaskExecutor(client), progress=lambda *each: steps.append(each))
        for _ in range(KILLS):
            client.wait_for_workers(2)
            kill = Kill(client, chosen.randrange(len(steps) - 1), [chosen.randrange(2)])
            assert neighbours(executor=DaskExecutor(client), progress=kill) == alone
            assert kill.done

    def test_both_workers_killed_at_once(self, client, neighbours, alone):
        client.wait_for_workers(2)
        kill = Kill(client, 4, [0, 1])
        assert neighbours(executor=DaskExecutor(client), progress=kill) == alone
        assert kill.done


@pytest.mark.slow
def test_each_worker_sees_one_gpu_also_after_it_was_killed(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")

    def seen(client):
        return sorted(client.run(os.getenv, "CUDA_VISIBLE_DEVICES").values())

    with dask_client("local", device="cuda") as client:
        assert seen(client) == ["3", "5"]
        before = set(client.scheduler_info()["workers"])
        os.kill(client.cluster.workers[1].pid, signal.SIGKILL)
        while len(workers := set(client.scheduler_info()["workers"])) < 2 or workers == before:
            time.sleep(0.1)
        assert seen(client) == ["3", "5"]


class Kill:
    """Kills some of the workers when so many blocks are done."""

    def __init__(self, client, moment, which):
        self.client, self.left, self.which, self.done = client, moment, which, False

    def __call__(self, stage, done, total):
        self.left -= 1
        if self.left < 0 and not self.done:
            workers = list(self.client.cluster.workers.values())
            for number in self.which:
                os.kill(workers[number].pid, signal.SIGKILL)
            self.done = True


class Shared:
    def __init__(self, array):
        self.array = array


def total(shared, rows):
    return {"total": shared.array[rows].sum((1, 2))}


def listening(process):
    """Addresses (hexadecimal) at which a process listens."""
    sockets = set()
    for link in Path(f"/proc/{process}/fd").iterdir():
        try:
            sockets |= set(re.findall(r"socket:\[(\d+)\]", os.readlink(link)))
        except OSError:
            continue  # closed in the meantime
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                yield fields[1]


@pytest.fixture
def scheduler(tmp_path):
    """A scheduler and two workers, each a process of its own: the process of the scheduler, and its address."""
    started, file = [], tmp_path / "scheduler.json"

    def start(*command):
        with (tmp_path / f"log{len(started)}.txt").open("w") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", "distributed.cli.dask_" + command[0], *command[1:]]
            started.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

    start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--dashboard-address", "127.0.0.1:0",
          "--scheduler-file", str(file))  # fmt: skip
    for _ in range(2):
        start("worker", "--scheduler-file", str(file), "--nthreads", "1", "--no-nanny", "--no-dashboard",
              "--host", "127.0.0.1", "--local-directory", str(tmp_path))  # fmt: skip
    try:
        while not file.exists() or not file.read_text().strip():
            assert started[0].poll() is None, (tmp_path / "log0.txt").read_text()
            time.sleep(0.1)
        yield started[0], re.search(r"tcp://[\d.:]+", file.read_text())[0]
    finally:
        for process in started:
            process.kill()
            process.wait()


@pytest.mark.slow
def test_a_lost_scheduler_stops_the_search_which_continues_on_another_number_of_workers(scheduler, neighbours, alone):
    process, address = scheduler
    stored = InMemory()

    def kill(stage, done, total):
        if stage == "compare":
            process.kill()

    # On a busy machine workers take minutes to begin.
    with dask_client(address, connect_seconds=3600, worker_seconds=3600) as lost:
        lost.wait_for_workers(2)
        with pytest.raises(ConnectionError, match=f"scheduler at {address} was lost.*same command continues"):
            neighbours(executor=DaskExecutor(lost), checkpoints=stored, progress=kill)
    finished = set(stored)
    assert finished
    with dask_client("local", 1) as another:
        assert neighbours(executor=DaskExecutor(another), checkpoints=stored) == alone
    assert finished < set(stored)
