"""Take the picture of the live page in watch-it.md: `python docs/live_page.py` (Chromium: tests/support/browser.py).

The page is real, and so are its numbers: a limiter decides on 15 minutes of simulated requests, on a clock that this
script moves.
"""

import logging
import random
import sys
import threading
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, make_server

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for tests.support

from ratelimit_mw import ManualClock, RateLimiter  # noqa: E402
from ratelimit_mw.operations.page import Page  # noqa: E402
from tests.support.browser import browser  # noqa: E402

PICTURE = ROOT / "docs" / "pictures" / "live-page.png"
MINUTES = 15
TOKEN = "the token of the picture"  # noqa: S105  of a page that lives for a second
RULES = {
    "domain": "shop",
    "client": {"secret": "of the picture", "user": "header:X-User"},
    "rules": [
        {"name": "everything", "by": "ip", "limit": "120 per minute"},
        {
            "name": "login",
            "match": {"path": "/login"},
            "by": "ip",
            "limit": ["5 per minute", "20 per hour"],
            "ban": {"after": "10 denials in 1 minute", "for": "20 minutes"},
        },
        {"name": "search", "match": {"path": "/search"}, "by": "ip", "limit": "30 per minute"},
        {"name": "export", "match": {"path": "/export"}, "by": "ip", "limit": "3 per minute", "shadow": True},
    ],
}


class Quiet(WSGIRequestHandler):
    """Logs no requests."""

    def log_message(self, *_: object) -> None:
        """Do nothing."""


def simulate(limiter: RateLimiter, clock: ManualClock, page: Page) -> None:
    """Let 15 minutes of requests pass: 200 ordinary clients, two that guess passwords, and a busy script."""
    chance = random.Random(7)
    paths = ("/", "/items", "/items", "/search", "/search", "/export")
    for second in range(MINUTES * 60):
        for _ in range(chance.randrange(6, 12)):
            limiter.check({"ip": f"198.51.100.{chance.randrange(200)}", "path": chance.choice(paths)})
        if 300 < second < 420 or second > 840:
            for _ in range(chance.randrange(4)):
                limiter.check({"ip": "203.0.113.9", "path": "/login"})
        if second % 240 > 150:
            for _ in range(chance.randrange(1, 3)):
                limiter.check({"ip": "192.0.2.77", "path": "/search"})
        if second > 880:
            limiter.check({"ip": "2001:db8:4:2::9", "path": "/login"})
        clock.advance(1)
        page(_environ("/state.json"), lambda *_: None)  # the data are sampled each second


def _environ(path: str) -> dict[str, object]:
    authorization = {"HTTP_AUTHORIZATION": f"Bearer {TOKEN}"}
    return {"REQUEST_METHOD": "GET", "SCRIPT_NAME": "", "PATH_INFO": path, "wsgi.url_scheme": "http", **authorization}


def main() -> None:
    """Take the picture."""
    logging.disable()  # it would say that a client is banned
    clock = ManualClock(1_700_000_000)
    with RateLimiter(RULES, clock=clock) as limiter:
        page = Page(limiter, token=TOKEN)
        simulate(limiter, clock, page)
        server = make_server("127.0.0.1", 0, page, handler_class=Quiet)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with browser() as chromium:
            tab = chromium.new_page(
                viewport={"width": 1100, "height": 720}, http_credentials={"username": "", "password": TOKEN}
            )
            tab.goto(f"http://127.0.0.1:{server.server_port}/")
            tab.wait_for_selector("#rules tbody tr")
            tab.screenshot(path=PICTURE, full_page=True)
        server.shutdown()
        page.close()


if __name__ == "__main__":
    main()
