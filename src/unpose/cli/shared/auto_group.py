"""``--group auto``: the group is found from the images."""

from typing import TYPE_CHECKING, Any

import click

from unpose.cli.shared.errors import UserError
from unpose.cli.shared.progress import progress

if TYPE_CHECKING:
    from unpose.discover import Discovery

AUTO = "auto"
_FAMILIES = ("turns", "mirror", "half turn", "quarter turn", "scale")


def discovered(images: Any, labels: Any = None, *, quiet: bool = False) -> "Discovery":
    """Find the symmetries of images, and say on stderr what was found and why."""
    from unpose.discover import FEWEST, discover

    if len(images) < FEWEST:
        raise UserError(f"--group auto needs at least {FEWEST} images, got {len(images)}; name a group instead")
    with progress(quiet=quiet) as report:
        found = discover(images, labels, families=_FAMILIES, progress=report)
    if not quiet:
        for finding in found.findings:
            click.echo(f"--group auto: {finding}", err=True)
    return found
