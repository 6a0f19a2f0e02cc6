"""Rate limiting for Python web apps: exact, shared through Redis, configured in YAML.

The middlewares are in `ratelimit_mw.asgi` and `ratelimit_mw.wsgi`.
"""

from ratelimit_mw.clock import ManualClock
from ratelimit_mw.errors import ConfigurationError
from ratelimit_mw.limiter import RateLimiter
from ratelimit_mw.logs import install
from ratelimit_mw.model import Decision, EntryList
from ratelimit_mw.operations import register

__all__ = ["ConfigurationError", "Decision", "EntryList", "ManualClock", "RateLimiter"]

install()
register()
