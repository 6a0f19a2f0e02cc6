"""The sample of a report in the documentation is what the command makes."""

import importlib.util

import pytest

from tests.foresight.test_replay import SAMPLE
from tests.support.apps import ROOT

DOCS = ROOT / "docs"


def script():
    spec = importlib.util.spec_from_file_location("docs_sample_report", DOCS / "sample_report.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample log is not part of the project")
def test_the_sample_report_is_the_one_that_is_made_of_the_log():
    made = script()
    assert made.REPORT.read_text("utf-8") == made.report(str(SAMPLE)), "python -m docs.sample_report LOG"


def test_the_sample_report_and_its_picture_are_small_and_linked():
    made = script()
    assert made.REPORT.stat().st_size <= 150_000
    for picture, name in ((made.PICTURE, "replay.md"), (made.GAP, "find-the-right-limits.md")):
        assert 10_000 <= picture.stat().st_size <= 150_000
        assert f"](pictures/{picture.name})" in (DOCS / name).read_text("utf-8")
    page = (DOCS / "replay.md").read_text("utf-8")
    assert f'href="{made.REPORT.name}"' in page
    assert f'html_extra_path = ["{made.REPORT.name}"]' in (DOCS / "conf.py").read_text("utf-8")
