"""Collaborators of an engine: they keep, watch, interrupt, or work as another process would."""

import pickle
import sys
from contextlib import contextmanager


class Killed(BaseException):
    """Stands for a signal that no code handles."""


class InMemory(dict):
    """Checkpoints that are kept in memory."""

    load, store = dict.get, dict.__setitem__


class StopAt:
    """Progress that raises when a value is reached: a step of a training, or the n-th report of a search."""

    def __init__(self, step, error=Killed):
        self.step, self.error, self.reports = step, error, 0

    def __call__(self, moment, *_):
        self.reports += 1
        if getattr(moment, "step", self.reports) == self.step:
            raise self.error


_watchers = []


def _tell(event, arguments):
    for watch in _watchers:
        watch(event, arguments)


@contextmanager
def watching(watch):
    """Call ``watch(event, arguments)`` at each audit event, such as "open" or "os.rename", of this process.

    What it raises, the operation raises: so a test lets reading and writing fail without replacing a function. The
    events are those of ``sys.audit``.
    """
    if not hasattr(sys, "_tells_watchers"):
        sys.addaudithook(_tell)  # it cannot be removed
        sys._tells_watchers = True
    _watchers.append(watch)
    try:
        yield
    finally:
        _watchers.remove(watch)


class Elsewhere:
    """Computes blocks as another process would: from pickled work and arguments, with a copy of the shared object."""

    ahead = 3

    def __init__(self):
        self.submitted, self.under_way, self.most, self.sizes, self._copies = [], 0, 0, [], {}

    def submit(self, work, shared, arguments):
        self.submitted.append(work)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if id(shared) not in self._copies:
            written = pickle.dumps(shared)
            self.sizes.append(len(written))
            self._copies[id(shared)] = pickle.loads(written), shared
        sent = pickle.dumps((work, dict(arguments)))

        def result():
            self.under_way -= 1
            work, arguments = pickle.loads(sent)
            return work(self._copies[id(shared)][0], **arguments)

        return result


def without_seconds(history):
    """The rows of a history without what depends on the speed of the machine."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]
