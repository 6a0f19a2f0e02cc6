"""The HTML documents of the live page: the page itself and the login. Each is one file without external parts.

This module is internal: its names may change in any release.
"""

import secrets
from functools import cache
from html import escape
from importlib import resources

from ratelimit_mw.operations.page.visits import Answer

SECURITY_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""The headers of all answers. A document has a Content-Security-Policy of its own."""

_POLICY = (
    "default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; img-src data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


def page(*, logout: bool) -> Answer:
    """Return the page. It has no data: its script fetches them.

    Args:
        logout: Show the button to log out.
    """
    return _document(200, _text("page.html").replace("{{hidden}}", "" if logout else "hidden"))


def login(status: int, message: str = "", *headers: tuple[str, str]) -> Answer:
    """Return the form that asks for the token.

    Args:
        status: The status of the answer.
        message: What was wrong before, or "".
        headers: More headers.
    """
    return _document(status, _text("login.html").replace("{{message}}", escape(message)), *headers)


def _document(status: int, html: str, *headers: tuple[str, str]) -> Answer:
    """Put the style and the script into a document, under a nonce that no other answer has."""
    nonce = secrets.token_urlsafe(16)
    html = html.replace("{{nonce}}", nonce)
    html = html.replace("{{style}}", _text("page.css")).replace("{{script}}", _text("page.js"))
    kind = [("Content-Type", "text/html; charset=utf-8"), ("Content-Security-Policy", _POLICY.format(nonce))]
    return Answer(status, [*kind, *headers], html.encode())


@cache
def _text(name: str) -> str:
    """Return a file of this package."""
    return resources.files("ratelimit_mw.operations.page").joinpath(name).read_text("utf-8")
