"""The command as a user meets it: words in; status, output and files out."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from click.testing import CliRunner


class Answer(NamedTuple):
    """How a command ended, and what it wrote to both streams."""

    status: int
    out: str
    err: str

    @property
    def output(self):
        """Both streams, as a terminal shows them."""
        return self.out + self.err

    @property
    def words(self):
        """Both streams without line breaks and frames, so that a sentence can be looked for."""
        return " ".join(self.output.replace("│", " ").split())

    @property
    def json(self):
        return json.loads(self.out)


def unpose(*words, input=None, **environment):
    """Run a command in this process. An error that the command does not handle is raised."""
    from unpose.cli import main

    done = CliRunner(env=environment).invoke(main, [str(word) for word in words], input=input)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Answer(done.exit_code, done.stdout, done.stderr)


def started(*words, program=("-m", "unpose"), **options):
    """Start a command as a process of its own, which can be killed; ``options`` go to ``subprocess.Popen``.

    ``program`` is what Python runs: the command, or a text that prepares something before it calls it.
    """
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))  # and the kit
    fixed = {"OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONPATH": path}
    environment = {**os.environ, **fixed, **options.pop("env", {})}
    command = [sys.executable, *program, *map(str, words)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment, **pipes | options)


def unpose_process(*words, **options):
    """Run a command as a process of its own and wait for it. There is no time limit: the machine may be busy."""
    process = started(*words, **options)
    out, err = process.communicate()
    return Answer(process.returncode, out, err)


def named(words):
    """The command that the first words of a call name, its context, and the other words."""
    import click

    from unpose.cli import main

    command, context = main, click.Context(main, info_name="unpose")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, words = words[0], words[1:]
        command = command.get_command(context, name)
        assert command is not None, f"there is no command {name}"
        context = click.Context(command, parent=context, info_name=name)
    return command, context, list(words)


def refused(answer, *messages):
    """Check that a command ended with status 2 and one sentence, in which there are some messages."""
    assert answer.status == 2, answer.output
    assert "Traceback" not in answer.output
    assert sum(line.startswith("Error: ") for line in answer.err.splitlines()) == 1, answer.err
    for message in messages:
        assert message in answer.words


def table(text):
    """The rows of a CSV table, each as a dictionary, with or without the mark by which Excel knows UTF-8."""
    return list(csv.DictReader(io.StringIO(text.removeprefix("\ufeff"), newline="")))


def contents(folder, exempt=()):
    """The bytes of all files below a folder by their relative paths, but for some names."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in exempt
    }
