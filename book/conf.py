"""Sphinx configuration: everything a page needs is beside it, so that the book reads offline."""

from pathlib import Path

import tpulab
from tpulab.classroom.book import write_pages
from tpulab.commands.parser import verbs

HERE = Path(__file__).resolve().parent

project = "tpulab"
author = "the tpulab authors"
project_copyright = "the tpulab authors"
version = release = tpulab.__version__
language = "en"

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "sphinx_book_theme"
html_title = "tpulab"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_copy_source = False
html_use_index = False
html_theme_options = {
    "use_download_button": False,
    "use_fullscreen_button": False,
    "show_navbar_depth": 1,
    # the sidebar has a search field
    "navbar_persistent": [],
}

# the labs bring the outputs of their executed solutions; the tests run those notebooks
nb_execution_mode = "off"
# a static page shows every picture's own SVG; the widgets' script would come from elsewhere
nb_ipywidgets_js = {}
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
myst_heading_anchors = 3

# attributes are told in the docstring of their class
napoleon_use_ivar = True
napoleon_numpy_docstring = False
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_use_unqualified_type_names = True
# several classes have an attribute of the same name; a docstring that names one links to neither
suppress_warnings = ["ref.python"]


def setup(app):
    """Write the pages that are read from elsewhere, before Sphinx looks for sources."""
    write_pages(HERE.parent, HERE / "pages", verbs())
