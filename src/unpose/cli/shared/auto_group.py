"""``--group auto``: the group is found from the images."""

from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.progress import progress

if TYPE_CHECKING:
    from unpose.discover import Discovery

AUTO = "auto"  # unpose.discover has it too, but imports torch, which `unpose --help` must not wait for


def discovered(images: Any, labels: Any = None, *, quiet: bool = False) -> "Discovery":
    """Find the symmetries of images, and say on stderr what was found and why."""
    from unpose.discover import discover_group

    with progress(quiet=quiet) as report:
        found = discover_group(images, labels, progress=report)
    if not quiet:
        for finding in found.findings:
            click.echo(f"--group auto: {finding}", err=True)
    return found
