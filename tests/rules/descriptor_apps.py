"""What Lyft's rules protect: an ASGI and a WSGI app that say hello to whoever comes through."""

from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi

MESSAGES = {
    "domain": "messaging",
    "attributes": {"message_type": "header:X-Message-Type", "to_number": "header:X-To-Number"},
    "client": {"secret": "hush"},
    "descriptors": [
        {"key": "message_type", "value": "marketing", "rate_limit": {"unit": "day", "requests_per_unit": 5}},
        {"key": "to_number", "rate_limit": {"unit": "day", "requests_per_unit": 3}},
    ],
}

LOGIN = {
    "domain": "auth",
    "attributes": {"auth_type": "header:X-Auth-Type"},
    "descriptors": [
        {"key": "auth_type", "value": "login", "rate_limit": {"unit": "minute", "requests_per_unit": 5}},
    ],
}


async def _hello(scope, receive, send):
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


def _greet(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hello"]


asgi_messages = Asgi(_hello, MESSAGES)
wsgi_login = Wsgi(_greet, LOGIN)
