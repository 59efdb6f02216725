"""``python -m unpose`` is the command ``unpose``."""

from unpose.cli import main

main()
