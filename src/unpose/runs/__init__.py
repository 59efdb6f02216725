"""Run folders: what ``unpose cluster`` and ``unpose align`` write, readable from Python.

``read_run("run")`` reads a finished clustering: labels, confidences, poses and means as arrays, the names and paths of
the images, the settings, and the table as dictionaries.

Which file to open:

- ``finished.py``: the finished run; what the results are, how they are stored, the table and the page
- ``folder.py``: the folder while a run is in progress; the lock, checkpoints, and what may be replaced
- ``from_python.py``: the page of an estimator that was fitted in Python
- ``naming.py``: groups and names that a person gave on the page, written into the run
- ``page.py``: which images the page shows, and their thumbnails
- ``plan.py``: what a run will take, before it starts
- ``updates.py``: images that are added to a finished run
- ``settings.py``: the settings of a run and ``config.toml``
- ``tables.py``: CSV that is safe in spreadsheets, and poses as readable numbers
"""

from unpose.runs.finished import FinishedRun, cluster_name, read_run, write_run
from unpose.runs.folder import RunFolder, fingerprint, folder_lock
from unpose.runs.from_python import write_report
from unpose.runs.naming import NamedGroups, apply_names, named_dataset, read_names
from unpose.runs.plan import Calibration, Plan, plan_run, readable_time
from unpose.runs.settings import RunConfig, RunError, RunSettings, read_settings
from unpose.runs.tables import csv_text, pose_parts
from unpose.runs.updates import LEAST_P_VALUE, Update, joined, update_run

__all__ = [
    "LEAST_P_VALUE",
    "Calibration",
    "FinishedRun",
    "NamedGroups",
    "Plan",
    "RunConfig",
    "RunError",
    "RunFolder",
    "RunSettings",
    "Update",
    "apply_names",
    "cluster_name",
    "csv_text",
    "fingerprint",
    "folder_lock",
    "joined",
    "named_dataset",
    "plan_run",
    "pose_parts",
    "read_names",
    "read_run",
    "read_settings",
    "readable_time",
    "update_run",
    "write_report",
    "write_run",
]
