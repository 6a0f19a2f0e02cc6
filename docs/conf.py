import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import commands  # beside this file; they need the line above
import pictures
import words
from django.conf import settings

commands.write()
words.write()
pictures.write()
settings.configure()  # Django REST framework reads them when it is imported

project = "ratelimit_mw"
author = copyright = "the ratelimit_mw authors"
version = release = installed("ratelimit_mw")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "ratelimit_mw"
html_extra_path = ["sample-report.html"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "both"  # the signature has the types, and so has the list of parameters
python_maximum_signature_line_length = 100
