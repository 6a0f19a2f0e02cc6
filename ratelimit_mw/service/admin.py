"""The admin app of the service.

This module is internal: its names may change in any release.
"""

from starlette.applications import Starlette

from ratelimit_mw.service.state import Service


def admin_app(service: Service) -> Starlette:  # noqa: ARG001 - no routes yet
    """Return the app that is served at `--admin`."""
    return Starlette()
