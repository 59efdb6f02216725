"""unpose: learning that does not depend on pose."""

__version__ = "0.1.0"
