"""Who may ask the service.

This module is internal: its names may change in any release.
"""

from typing import Literal

from ratelimit_mw.service.settings import Settings

Right = Literal["check", "admin"]


class Access:
    """Who may ask.

    With a token file, each caller needs a token. Without it, the ports are on loopback or require client certificates
    (`Settings.read` refuses other ports), and all callers may ask.

    Args:
        settings: The settings.

    Raises:
        ConfigurationError: The token file cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self.by_token = settings.token_file is not None
        """Whether callers need a token. If not, `allows` need not be asked."""

    def allows(self, right: Right, authorization: str | None) -> bool:  # noqa: ARG002 - no tokens yet
        """Return True if a caller with this header `authorization` (as in `Bearer TOKEN`) has this right."""
        return not self.by_token
