"""Rate limits in a Django project: a middleware that knows who is logged in, and a decorator. Its extra is `django`."""

from ratelimit_mw.django.decorator import limited
from ratelimit_mw.django.engine import limiter
from ratelimit_mw.django.middleware import RateLimitMiddleware

__all__ = ["RateLimitMiddleware", "limited", "limiter"]
