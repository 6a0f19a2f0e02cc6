import sys
from importlib.metadata import version as installed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pages  # beside this file; they need the line above
import pictures

pages.write()
pictures.write()

project = "ratelimit_mw"
author = copyright = "the ratelimit_mw authors"
version = release = installed("ratelimit_mw")

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "ratelimit_mw"
html_extra_path = ["sample-report.html"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
