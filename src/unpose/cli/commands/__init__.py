"""One file for each command of ``unpose``; the file has the command's name and defines ``command``."""
