"""Make the report that replay.md shows, and the pictures of reports in replay.md and find-the-right-limits.md.

The log of the sample is a public one, and is not part of the project: the repository elastic/examples has it in "Common
Data Formats/apache_logs". In the sample, other addresses stand in for those of its clients. The other log is generated.

    python -m docs.sample_report access.log.gz
"""

import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from ratelimit_mw.foresight.replay import Options, replay
from ratelimit_mw.foresight.report import page

FOLDER = Path(__file__).parent
REPORT = FOLDER / "sample-report.html"
PICTURE = FOLDER / "pictures" / "report.png"
GAP = FOLDER / "pictures" / "limits.png"


def report(log: str) -> str:
    """The report on this log, by the rules at the top of replay.md."""
    text = (FOLDER / "replay.md").read_text("utf-8")
    rules = yaml.safe_load(re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0])
    return page(replay(Options(logs=[log], rules=rules)), ["access.log.gz"])


def shop_report() -> str:
    """The report of find-the-right-limits.md, with its first rule alone."""
    from tests.cli.test_suggest import chance_log

    with TemporaryDirectory() as folder:
        log = Path(folder) / "access.log"
        chance_log(log)
        rule = {"name": "everything", "limit": "25 per minute", "shadow": True}
        return page(replay(Options(logs=[str(log)], rules={"domain": "app", "rules": [rule]})), ["access.log"])


def photograph(text: str, picture: Path, *, key: str, times: int) -> None:
    """Take a picture of the first curve of a report, after its slider was moved by a key."""
    from tests.support.browser import browser

    with browser() as chromium, TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        file.write_text(text, "utf-8")
        opened = chromium.new_page(viewport={"width": 1000, "height": 900}, device_scale_factor=1)
        opened.goto(file.as_uri())
        slider = opened.locator("article input").first
        for _ in range(times):
            slider.press(key)
        slider.blur()
        opened.locator("article").first.screenshot(path=picture)
        opened.close()


def write(log: str) -> None:
    """Write the report and the pictures."""
    REPORT.write_text(report(log), "utf-8")
    photograph(REPORT.read_text("utf-8"), PICTURE, key="ArrowLeft", times=5)
    photograph(shop_report(), GAP, key="ArrowRight", times=6)


if __name__ == "__main__":
    write(sys.argv[1])
