"""Write the table of suggest.md: what proposals do to traffic of which each request has a known class.

python -m docs.laboratory
"""

import re
from pathlib import Path

PAGE = Path(__file__).parent / "suggest.md"
BLOCK = re.compile(r"(<!-- measured: laboratory -->\n).*?(<!-- end of measured -->)", re.DOTALL)


def filled(text: str) -> str:
    """Return the text of the page with the table as it is measured now."""
    from tests.foresight.laboratory import table

    return BLOCK.sub(lambda found: found[1] + table() + found[2], text)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text("utf-8")), "utf-8")
