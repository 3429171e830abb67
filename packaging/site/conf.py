"""Sphinx's settings for the site, whose sources packaging/site/pages.py lays out: `make docs`."""

import re

import sarlite

project, version, copyright = "sarlite", sarlite.__version__, "the authors of sarlite, BSD-3-Clause"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme, html_title = "furo", f"sarlite {version}"
html_show_sphinx = False
html_static_path, html_css_files = ["static"], ["wrapped.css"]
default_role, highlight_language = "code", "none"
pygments_style, pygments_dark_style = "friendly", "native"

myst_heading_anchors = 4
nb_custom_formats = {".py": ["jupytext.reads", {"fmt": "py:percent"}]}
nb_execution_mode, nb_execution_raise_on_error, nb_execution_timeout = "force", True, 120
nb_execution_in_temp = True
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # the docstrings say types, with shapes and units
python_maximum_signature_line_length = 100
napoleon_google_docstring = False
napoleon_use_rtype, napoleon_use_ivar = False, True
suppress_warnings = ["ref.python"]  # types in docstrings are words, such as `name`, that several classes have


def setup(app):
    app.connect("autodoc-process-docstring", as_plain, priority=400)  # before napoleon


def as_plain(app, what, name, obj, options, lines):
    """Handle Sphinx's event for a docstring: escape in `lines`, in place, all reStructuredText markup but `code`."""
    if what == "data" and obj.__doc__ == type(obj).__doc__:
        lines.clear()
    for i, line in enumerate(lines):
        pieces = re.split(r"(`[^`]*`)", line)
        pieces[::2] = [re.sub(r"([\\*|]|_\b(?! ))", r"\\\1", piece) for piece in pieces[::2]]
        lines[i] = "".join(pieces)
