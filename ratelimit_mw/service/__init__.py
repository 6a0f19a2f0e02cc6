"""The limiter as a service for Envoy, nginx and apps in any language. It needs the extra `serve`.

`ratelimit-mw serve` runs it. `serve(Settings.read(rules=…))` does the same from Python.
The modules of this package are internal.
"""

from ratelimit_mw.errors import extra
from ratelimit_mw.service.settings import Address, Settings

__all__ = ["Address", "Settings", "serve"]


def serve(settings: Settings) -> None:
    """Serve until a SIGTERM or SIGINT, and then until all requests under way are answered.

    A second signal ends the process at once. SIGHUP looks at once for newer rules, certificates and tokens.

    Args:
        settings: The settings.

    Raises:
        ConfigurationError: The service cannot start. The error has every reason. No port was opened.
        StoreUnavailable: The rules are in a database that does not answer.
    """
    with extra("serve"):
        from ratelimit_mw.service.workers import run  # late: the command line reads the settings without the extra

    run(settings)
