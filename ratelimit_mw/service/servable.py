"""Rules that a service cannot serve, because they need the response or the body.

This module is internal: its names may change in any release.
"""

from ratelimit_mw.rules.domains import Rules


def require_servable(rules: Rules) -> None:
    """Check that a service can serve these rules.

    Args:
        rules: The rules.

    Raises:
        ConfigurationError: A rule cannot be served. The error has every problem with its line.
    """
    del rules
