"""Django: the middleware, the decorator for single views, and the limiter of the project."""

from ratelimit_mw.errors import extra

with extra("django"):
    from ratelimit_mw.django.middleware import RateLimitMiddleware
    from ratelimit_mw.django.project import limiter
    from ratelimit_mw.django.views import limited

__all__ = ["RateLimitMiddleware", "limited", "limiter"]
