"""Run folders: what ``unpose cluster`` and ``unpose align`` write, readable from Python.

``read_run("run")`` reads a finished clustering: labels, confidences, poses and means as arrays, the names and paths of
the images, the settings, and the table as dictionaries.

Which file to open:

- ``finished.py``: the finished run; what the results are, how they are stored, the table and the page
- ``from_python.py``: the page of an estimator that was fitted in Python
- ``naming.py``: groups and names that a person gave on the page, written into the run
- ``plan.py``: what a run will take, before it starts
- ``updates.py``: images that are added to a finished run

Doors of their own, for the commands:

- ``folder.py``: the folder while a run is in progress; the lock, checkpoints, and what may be replaced
- ``settings.py``: the settings of a run and ``config.toml``
- ``tables.py``: CSV that is safe in spreadsheets
- ``audits.py``: the audit of a whole model; with ``audited_images.py``, ``remembered_calls.py``, ``measures.py``,
  ``pairs.py`` and ``repairs.py``
- ``duplicates.py``: the folder of a search for duplicates; ``moves.py``: moves of files that can be undone
"""

from unpose.runs.finished import FinishedRun, read_run, write_run
from unpose.runs.from_python import write_report
from unpose.runs.naming import NamedGroups, apply_names, named_dataset, read_names
from unpose.runs.plan import Plan, check_run_memory, plan_run, readable_time
from unpose.runs.settings import RunError, RunSettings
from unpose.runs.updates import LEAST_P_VALUE, Update, joined, update_run

__all__ = [
    "LEAST_P_VALUE",
    "FinishedRun",
    "NamedGroups",
    "Plan",
    "RunError",
    "RunSettings",
    "Update",
    "apply_names",
    "check_run_memory",
    "joined",
    "named_dataset",
    "plan_run",
    "read_names",
    "read_run",
    "readable_time",
    "update_run",
    "write_report",
    "write_run",
]
