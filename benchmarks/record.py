"""Run a benchmark and record what it prints, or write the recorded tables into the pages of the site.

    python benchmarks/record.py run sphere -- benchmarks/sphere.py --seeds 3
    python benchmarks/record.py pages [--check]

`run` calls a benchmark, shows its output, and stores it in docs/benchmarks/records with the command, the machine, the
date, the versions and the processor time. `pages` replaces what stands between ``<!-- record: NAME -->`` and
``<!-- end of record -->`` in the pages of docs/benchmarks by what was recorded under that name, so that no number there
is typed; ``--check`` only says whether the pages are up to date. Of the output, Markdown tables are shown as tables and
other lines as they were printed.
"""

import argparse
import datetime
import json
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
from itertools import groupby, takewhile
from pathlib import Path

PAGES = Path(__file__).parent.parent / "docs" / "benchmarks"
RECORDS = PAGES / "records"
MARKED = re.compile(r"(<!-- record: ([a-z0-9-]+) -->\n).*?(<!-- end of record -->\n)", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    run = parts.add_parser("run")
    run.add_argument("name", help="name of the record: small letters, digits and hyphens")
    run.add_argument("--folder", type=Path, default=RECORDS)
    run.add_argument("command", nargs="+", help="after --: a benchmark and its arguments")
    pages = parts.add_parser("pages")
    pages.add_argument("--check", action="store_true")
    options = parser.parse_args()
    if options.part == "run":
        record = run_and_record(options.command)
        options.folder.mkdir(parents=True, exist_ok=True)
        (options.folder / f"{options.name}.json").write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        return
    stale = [page.name for page in sorted(PAGES.glob("*.md")) if update(page, write=not options.check)]
    print(f"{'out of date' if options.check else 'updated'}: {', '.join(stale) or 'none'}")
    sys.exit(options.check and bool(stale))


def run_and_record(command: list[str]) -> dict[str, object]:
    """Run a benchmark in this interpreter's environment and return its output and where it came from."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True) as process:
        lines = []
        for line in process.stdout or ():
            print(line, end="", flush=True)
            lines.append(line.rstrip())
    if process.returncode:
        sys.exit(f"{command[0]} ended with status {process.returncode}; nothing was recorded")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "command": shlex.join(["python", *command]),
        "machine": machine("cuda" in command),
        "date": datetime.date.today().isoformat(),
        "versions": versions(),
        "commit": commit(),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "output": lines,
    }


def machine(has_gpu: bool) -> str:
    """Describe the processor, the cores in use and, if the benchmark used it, the GPU."""
    named = next((line.split(":")[1].strip() for line in _cpu_lines() if line.startswith("model name")), "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    described = f"{named or platform.machine()}, {cores} cores"
    if has_gpu:
        import torch

        described = f"{torch.cuda.get_device_name()}, {described}"
    return described


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    from unpose import __version__  # of the sources that are measured, which need not be installed

    found = {"python": platform.python_version(), "unpose": __version__}
    for name in ("torch", "numpy", "scikit-learn"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def commit() -> str:
    """The commit of the sources that are measured, with a + where files were changed since; empty outside of git."""
    described = subprocess.run(
        ["git", "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return described.stdout.strip()


def rendered(record: dict[str, object]) -> str:
    """The record as Markdown: its tables, its other lines, and where it came from.

    A table that goes on after other lines gets its header again.
    """
    blocks: list[str] = []
    kind, header = None, []
    lines = [*record["output"], ""]  # type: ignore[misc]
    languages = [language for block, rows in groupby(lines, _is_text) for language in _languages(list(rows), block)]
    for place, (line, following) in enumerate(zip(lines, [*lines[1:], ""], strict=True)):
        now = "table" if line.startswith("|") else languages[place] if line.strip() else None
        if kind not in (None, "table", now):
            blocks.append("```")
        if now is not None and now != kind:
            blocks.append("" if now == "table" else f"\n```{now}")
            if now == "table" and following.startswith("|---"):
                header = [line, following]
            elif now == "table":
                blocks += header
        if now is not None:  # a column of a table is not to be narrower than its figures
            blocks.append(line.replace(" ± ", "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}") if now == "table" else line)
        kind = now
    used = ", ".join(f"{name} {number}" for name, number in record["versions"].items())  # type: ignore[attr-defined]
    if record.get("commit"):
        used += f", commit {record['commit']}"
    source = f"*Printed by* `{record['command']}` *on {record['date']}: {record['machine']}; {used}"
    if record["cpu_seconds"] is not None:  # of a run that was ended from outside it is not known
        source += f"; {record['cpu_seconds']:,.0f} s of processor time"
    source += ".*"
    return "\n".join(blocks).strip("\n") + f"\n\n{source}\n"


def _is_text(line: str) -> bool:
    return bool(line.strip()) and not line.startswith("|")


def _languages(rows: list[str], is_text: bool) -> list[str]:
    """Tell columns, which a narrow screen must not wrap, from the sentences after them and from mixed blocks."""
    columns = sum(1 for _ in takewhile(lambda row: re.search(r"\S {2,}\S", row) and len(row) <= 84, rows))
    if not is_text or any("   " in row.strip() for row in rows[columns:]):
        columns = 0
    return ["none"] * columns + ["text"] * (len(rows) - columns)


def update(page: Path, *, write: bool, records: Path = RECORDS) -> bool:
    """Put the records of a folder into a page; returns whether it was out of date."""
    text = page.read_text()

    def fill(found: re.Match[str]) -> str:
        record = json.loads((records / f"{found[2]}.json").read_text())
        return f"{found[1]}{rendered(record)}{found[3]}"

    new = MARKED.sub(fill, text)
    if write and new != text:
        page.write_text(new)
    return new != text


if __name__ == "__main__":
    main()
