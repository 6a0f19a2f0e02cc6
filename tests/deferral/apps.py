"""Apps whose requests are put off: an ASGI and a WSGI one that note what reaches them in the Redis beside the queue."""

import asyncio
import json
import os
import time

import redis

from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi

RULES = os.environ.get("RULES", "")
NOTES = "notes"


def note(method, target, headers, body, address):
    """Note a request, and the status that it asks for by its body."""
    said = json.loads(body) if body[:1] == b"{" else {}
    seen = {"method": method, "target": target, "headers": dict(headers), "body": body.decode(), "address": address}
    with redis.Redis.from_url(os.environ["REDIS_URL"], protocol=2) as store:
        store.rpush(NOTES, json.dumps(seen))
        while said.get("hold") and not store.exists("go"):  # until the test lets it go
            time.sleep(0.05)
    if said.get("kill"):
        os.kill(os.getpid(), 9)
    return int(said.get("status", 200))


async def plain_asgi(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body")
    query = scope["query_string"].decode()
    target = scope["path"] + (f"?{query}" if query else "")
    headers = [(name.decode(), value.decode()) for name, value in scope["headers"]]
    address = scope["client"] and scope["client"][0]
    status = await asyncio.to_thread(note, scope["method"], target, headers, body, address)
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"made " + body})


def plain_wsgi(environ, start_response):
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    query = environ["QUERY_STRING"]
    target = environ["PATH_INFO"] + (f"?{query}" if query else "")
    headers = [(key[5:].replace("_", "-").lower(), value) for key, value in environ.items() if key[:5] == "HTTP_"]
    status = note(environ["REQUEST_METHOD"], target, headers, body, environ.get("REMOTE_ADDR"))
    start_response(f"{status} Fine", [("Content-Type", "text/plain")])
    return [b"made " + body]


asgi = Asgi(plain_asgi, RULES) if RULES else plain_asgi
wsgi = Wsgi(plain_wsgi, RULES) if RULES else plain_wsgi
