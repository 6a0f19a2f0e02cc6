"""A real headless Chromium, from `install_browser.py` or from PATH.

    with browser() as chromium:
        page = chromium.new_page(color_scheme="dark")

playwright runs an event loop in the thread that starts it. `asyncio.run` therefore fails in this thread until the
browser is closed.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.support.install_browser import FOLDER

_NAMES = ("chromium", "chromium-browser", "google-chrome")
_QUIET = (  # nothing but the pages of a test is loaded
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


def _program() -> tuple[Path, dict[str, str]] | None:
    """Return the program and what it needs in its environment. None if there is no browser."""
    own = FOLDER / "chromium"
    if own.exists():
        folder = str(FOLDER)
        needs = {"LD_LIBRARY_PATH": f"{folder}/lib", "FONTCONFIG_FILE": f"{folder}/fonts.conf", "HOME": folder}
        return own, needs
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    return None if found is None else (Path(found), {})


@contextmanager
def browser() -> Iterator[Browser]:
    """Yield a browser. The test is skipped if the machine has none."""
    found = _program()
    if found is None:
        pytest.skip("no Chromium is installed")
    program, needs = found
    with sync_playwright() as playwright:
        # A container has no user namespaces for Chromium's sandbox, and the pages are our own.
        chromium = playwright.chromium.launch(
            executable_path=program, env={**os.environ, **needs}, args=["--no-sandbox", "--disable-gpu", *_QUIET]
        )
        try:
            yield chromium
        finally:
            chromium.close()
