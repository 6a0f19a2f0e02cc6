"""What the middlewares are made of; they themselves are `ratelimit_mw.asgi` and `ratelimit_mw.wsgi`."""
