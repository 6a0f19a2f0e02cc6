"""The live page: what limits do now, in a browser. `Page` is an ASGI app and a WSGI app."""

from ratelimit_mw.operations.page.app import Page

__all__ = ["Page"]
