"""The site: `make docs` builds it into docs/_build/html, without a network and with warnings as errors."""

import contextlib
import inspect
import logging
import re
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

import click
from sphinx.errors import PycodeError
from sphinx.pycode import ModuleAnalyzer

import unpose
from unpose.cli import COMMANDS, main

project = "unpose"
author = "The unpose developers"
copyright = author
version = release = unpose.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "**/sg_execution_times.rst", "gallery/**/*.ipynb", "gallery/**/*.py", "gallery/**/*.md5"]
templates_path = ["_templates"]
highlight_language = "none"  # blocks that name no language are commands
suppress_warnings = ["config.cache"]  # sphinx-gallery's functions cannot be kept in Sphinx's cache

# Markdown: headings are link targets, so that `page.md#heading` is checked.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "fieldlist"]

# The reference: a page for each room and for each public name.
autosummary_generate = True
autosummary_ignore_module_all = False
autosummary_imported_members = True
autodoc_typehints = "none"  # types are in the docstrings, in words
autodoc_preserve_defaults = True
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False


def public_names() -> dict[str, object]:
    """Return every name that a room lists in ``__all__``: "unpose.room.name" and the object."""
    rooms = {room: getattr(unpose, room) for room in unpose.__all__ if inspect.ismodule(getattr(unpose, room))}
    return {f"unpose.{room}.{name}": getattr(rooms[room], name) for room in rooms for name in rooms[room].__all__}


def file_names() -> dict[str, str]:
    """Give functions such as `credit` another file than the class `Credit`, for file systems that ignore case."""
    count = Counter(name.lower() for name in public_names())
    return {
        name: f"{name}-function"
        for name in public_names()
        if count[name.lower()] > 1 and name.rpartition(".")[2].islower()
    }


def homes() -> dict[str, str]:
    """Map the names that a room only passes on to their names in the room that defines them."""
    names = public_names()
    home = {
        id(value): name
        for name, value in names.items()
        if getattr(value, "__module__", "").startswith(name.rpartition(".")[0])
    }
    return {name: home[id(value)] for name, value in names.items() if home.get(id(value), name) != name}


def summaries() -> dict[str, str]:
    """Return the first paragraph of the docstring of every room that the reference lists, by its name."""
    text = (Path(__file__).parent / "reference" / "index.md").read_text()
    rooms = re.findall(r"^   (unpose[\w.]+)$", text, re.M)
    return {room: " ".join(inspect.getdoc(import_module(room)).partition("\n\n")[0].split()) for room in rooms}


autosummary_filename_map = file_names()
autosummary_context = {"homes": homes(), "summaries": summaries()}


def constant_docstring(app, what, name, value, options, lines):
    """Replace the docstring of a constant's type by the string below its assignment, in whichever file that is."""
    if what != "data":
        return
    room, _, constant = name.rpartition(".")
    for module in sorted(module for module in sys.modules if module == room or module.startswith(f"{room}.")):
        with contextlib.suppress(PycodeError):
            if text := ModuleAnalyzer.for_module(module).find_attr_docs().get(("", constant)):
                lines[:] = text
                return
    raise ValueError(f"the constant {name} has no docstring: write one below its assignment")


def module_docstring(app, what, name, value, options, lines):
    """On the page of a module, leave out the first paragraph of its docstring, with which the page begins."""
    if what == "module" and app.env.docname != "reference/index":  # whose list of modules shows these paragraphs
        rest = lines[lines.index("") + 1 :] if "" in lines else []
        lines[:] = [".. rubric:: About this module", "", *rest] if any(rest) else []


def skip_foreign_methods(app, what, name, value, skip, options):
    """Leave out methods whose docstring is not ours: what scikit-learn adds to an estimator, torch's of ``forward``."""
    is_foreign = (getattr(value, "__module__", "") or "").startswith("sklearn.")
    inherits_it = what == "class" and inspect.isfunction(value) and not value.__doc__
    return True if is_foreign or inherits_it else None


def write_commands(app):
    """Write reference/commands.md: the help of every command, with a link to its page."""
    parts = ["# Commands", "What `unpose COMMAND --help` prints."]
    for name in main.list_commands(click.Context(main)):
        page = COMMANDS[name][1]
        parts += [f"## unpose {name}", f"[Page of this command](../{page}.md)", help_text(name)]
        group = main.get_command(click.Context(main), name)
        parts += [help_text(name, each) for each in getattr(group, "commands", {})]
    Path(app.srcdir, "reference", "commands.md").write_text("\n\n".join(parts) + "\n")


def help_text(*words):
    context = click.Context(main, info_name="unpose", terminal_width=80, **main.context_settings)
    for word in words:
        context = click.Context(context.command.get_command(context, word), context, info_name=word)
    return f"```\n{context.get_help().partition(chr(10) + '  Documentation')[0].rstrip()}\n```"


def setup(app):
    app.connect("builder-inited", write_commands)
    app.connect("autodoc-process-docstring", constant_docstring)
    app.connect("autodoc-process-docstring", module_docstring, priority=900)  # after numpydoc
    app.connect("autodoc-skip-member", skip_foreign_methods)


def hide_progress(gallery_conf, file_name):
    """Keep progress lines and the note on compilation, which names a folder of this machine, out of the examples."""
    progress = import_module("unpose.cli.shared.progress")
    progress._Lines = progress._Nothing
    logging.getLogger("unpose").setLevel(logging.ERROR)


# The gallery. Examples are run in the folder of their file; `-D plot_gallery=0` leaves them out.
SECTIONS = ("find", "learn", "adapt", "audit", "groups", "other_worlds")
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "subsection_order": [f"../examples/{name}" for name in SECTIONS],
    "within_subsection_order": "ExampleTitleSortKey",  # "unpose COMMAND: ..." comes after what is used from Python
    "filename_pattern": r"[\\/]plot_",
    "ignore_pattern": r"__init__\.py",
    "doc_module": ("unpose",),
    "backreferences_dir": "reference/backreferences",
    "reference_url": {"unpose": None},
    "abort_on_example_error": False,
    "only_warn_on_example_error": False,
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 3600,  # the time of an example here says more about the machine than about the example
    "parallel": True,  # as many examples at a time as `-j` says
    "matplotlib_animations": False,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib", hide_progress),
    "capture_repr": ("_repr_html_", "__repr__"),
}

html_theme = "pydata_sphinx_theme"
html_title = "unpose"
html_static_path = ["_static"]
html_css_files = ["unpose.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "navigation_depth": 3,
    "collapse_navigation": True,
    "show_nav_level": 1,
    "show_toc_level": 2,
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
}
# Pages that lie in no section have no other pages to list.
html_sidebars = {name: [] for name in ("index", "start", "glossary", "changelog", "contributing", "conventions")}
html_context = {"default_mode": "auto"}
