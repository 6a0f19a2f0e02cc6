"""What the tests of living rules have in common."""


def text(limit="5 per minute", *, domain="d", name="a", **more):
    """A file of one rule by ip; `more` are further sections, as flow mappings."""
    lines = [f"domain: {domain}", *(f"{key}: {value}" for key, value in more.items())]
    return "\n".join([*lines, "rules:", f"  - {{name: {name}, by: ip, limit: {limit}}}", ""])


def limit_of(limiter, **client):
    """The limit that holds for a client, by a look that charges nothing."""
    return limiter.peek(client or {"ip": "192.0.2.1"}).limit


# Apps whose rules are named by the variable RULES. They say their process, whether the newest rules are broken, and the
# rule that decided; each line of the log ends with the process and the time.
ASGI = """
import logging, os
from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware

logging.basicConfig(level="INFO", format="%(levelname)s %(name)s %(message)s | %(process)d %(created)f")
limiter = RateLimiter(os.environ["RULES"])

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        for word in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{word}.complete"})
        return
    body = f"{os.getpid()} {limiter.state.error is not None} {scope['ratelimit'].rule}".encode()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})

app = RateLimitMiddleware(app, limiter=limiter)
"""

WSGI = """
import logging, os
from ratelimit_mw import RateLimiter
from ratelimit_mw.wsgi import RateLimitMiddleware

logging.basicConfig(level="INFO", format="%(levelname)s %(name)s %(message)s | %(process)d %(created)f")
limiter = RateLimiter(os.environ["RULES"])

def app(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {limiter.state.error is not None} {environ['ratelimit.decision'].rule}".encode()]

app = RateLimitMiddleware(app, limiter=limiter)
"""
