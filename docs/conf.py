"""Settings of Sphinx for the documentation site; ``make docs`` builds it. What the site does by itself is in ``tools/docs_site``."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

project = "Millstream"
version = release = version_of("millstream")
author = "the Millstream authors"
copyright = author  # noqa: A001  # the name that Sphinx wants

# The source directory is the repository, so README.md and docs/ link to each other as they do there.
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "docs/**.rst"]
exclude_patterns = [".*", "bench", "build", "examples", "src", "tests", "tools"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "docs_site"]

myst_heading_anchors = 6
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "inherited-members": "Exception,tuple,Sequence"}
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
nitpicky = True  # a role in a docstring that leads nowhere is a warning; types that are not public are not
nitpick_ignore = [("py:exc", "KafkaException")]  # of confluent-kafka
nitpick_ignore_regex = [("py:class", r"(collections|datetime|millstream\.(core|drivers|edge|testing))\..*")]

html_theme = "furo"
html_title = f"Millstream {release}"
html_copy_source = False
html_show_sourcelink = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]
