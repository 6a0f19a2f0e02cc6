"""The limiter as a service for Envoy, nginx and apps in any language. It needs the extra `serve`.

`ratelimit-mw serve` runs it. `serve(Settings.read(rules=…))` does the same from Python.
The modules of this package are internal.
"""

from ratelimit_mw.service.runner import serve
from ratelimit_mw.service.settings import Address, Settings

__all__ = ["Address", "Settings", "serve"]
