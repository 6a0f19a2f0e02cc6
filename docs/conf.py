from importlib.metadata import version as installed

project = "ratelimit_mw"
author = copyright = "the ratelimit_mw authors"
version = release = installed("ratelimit_mw")

extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "ratelimit_mw"

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
