"""``unpose docs``: open the documentation that lies on this computer."""

import webbrowser

import click

from unpose.cli.shared.errors import UserError
from unpose.cli.shared.site import find_page, folders

_BUILD = "in a copy of the repository, `make docs` builds the pages, and `pip install .` after it installs them"


@click.command(
    epilog="""\b
    Examples:
      unpose docs                      the first page
      unpose docs audit                the page of a command
      unpose docs howto/train          a page by its name
    """
)
@click.argument("page", default="index")
@click.pass_obj
def command(pages: dict[str, str], page: str) -> None:
    """Open the documentation in a browser, and print its address.

    PAGE is the name of a command, or of a page such as `start`, `glossary` or `howto/train`. Nothing is downloaded: the
    pages come with the package, or are built by `make docs` in a copy of the repository.

    `unpose docs howto/completion` tells how the shell completes the names of commands and options.
    """
    path = find_page(pages.get(page, page))
    if path is None and folders():
        raise UserError(
            f"the documentation has no page {page!r}; `unpose docs` opens its first page, which has a search"
        )
    if path is None:
        raise click.ClickException(f"the documentation is not on this computer: {_BUILD}")
    click.echo(path.as_uri())
    if path.suffix == ".md":
        click.echo(f"This is the source of the page; {_BUILD}.", err=True)
    elif not webbrowser.open(path.as_uri()):
        click.echo("No browser could be started here; open this address in one.", err=True)
