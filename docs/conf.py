"""The site: `make docs` builds it into docs/_build/html, without a network and with warnings as errors."""

import os
from collections import Counter
from importlib import import_module

import unpose

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
exclude_patterns = ["_build", "gallery/**/*.ipynb", "gallery/**/*.py", "gallery/**/*.md5"]
templates_path = ["_templates"]
nitpicky = False
suppress_warnings = ["config.cache"]  # sphinx-gallery's functions cannot be kept in Sphinx's cache

# Markdown: headings are link targets, so that `page.md#heading` is checked.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_block", "attrs_inline", "colon_fence", "deflist", "fieldlist"]

# The reference: a page for each room and for each public name. Names that differ only in case (`Credit`, `credit`)
# would share a file on file systems that ignore case, so that functions are given another file name.
autosummary_generate = True
autosummary_ignore_module_all = False
autosummary_imported_members = True
autodoc_typehints = "none"  # types are in the docstrings, in words
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
numpydoc_class_members_toctree = False


def _file_names() -> dict[str, str]:
    names = [
        f"unpose.{room}.{name}"
        for room in unpose.__all__
        if hasattr(module := import_module("unpose"), room)
        for name in getattr(getattr(module, room), "__all__", ())
    ]
    shared = {name for name, count in Counter(name.lower() for name in names).items() if count > 1}
    return {name: f"{name}-function" for name in names if name.lower() in shared and name.rpartition(".")[2].islower()}


autosummary_filename_map = _file_names()

# The gallery. Examples are run in the folder of their file; `-D plot_gallery=0` leaves them out.
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
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
    "min_reported_time": 5,
    "matplotlib_animations": False,
    "remove_config_comments": True,
    "reset_modules": ("matplotlib",),
    "capture_repr": ("_repr_html_", "__repr__"),
    "parallel": int(os.environ.get("UNPOSE_DOCS_JOBS", "1")) if "UNPOSE_DOCS_JOBS" in os.environ else False,
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
    "show_nav_level": 1,
    "show_toc_level": 2,
    "navbar_end": ["theme-switcher"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "show_prev_next": False,
}
html_sidebars = {"index": []}
html_context = {"default_mode": "auto"}
