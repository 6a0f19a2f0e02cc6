"""Make the report that replay.md shows: the sample of `--html`, and a picture of it.

The log is a public one, and is not part of the project: the repository elastic/examples has it, as the log of
semicomplete.com in "Common Data Formats/apache_logs". In the sample, other addresses stand in for those of its clients.

    python -m docs.sample_report access.log.gz
"""

import re
import sys
from pathlib import Path

import yaml

from ratelimit_mw.foresight.replay import Options, replay
from ratelimit_mw.foresight.report.html import page

FOLDER = Path(__file__).parent
REPORT = FOLDER / "sample-report.html"
PICTURE = FOLDER / "pictures" / "report.png"


def report(log: str) -> str:
    """The report on this log, by the rules at the top of replay.md."""
    (rules, *_) = re.findall(
        r"^```yaml\n(.*?)^```$", (FOLDER / "replay.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    return page(replay(Options(logs=[log], rules=yaml.safe_load(rules))), ["access.log.gz"])


def photograph() -> None:
    """Take a picture of the first curve, after its slider was moved to a lower limit."""
    from tests.support.browser import browser  # what the report alone does not need

    with browser() as chromium:
        opened = chromium.new_page(viewport={"width": 1000, "height": 900}, device_scale_factor=1.5)
        opened.goto(REPORT.as_uri())
        slider = opened.locator("article input").first
        for _ in range(5):
            slider.press("ArrowLeft")
        opened.locator("h1").click()  # the slider has no frame then
        opened.locator("article").first.screenshot(path=PICTURE)
        opened.close()


if __name__ == "__main__":
    REPORT.write_text(report(sys.argv[1]), "utf-8")
    photograph()
