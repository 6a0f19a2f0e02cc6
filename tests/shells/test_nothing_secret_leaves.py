"""A token goes through the middlewares, and nothing that leaves the process holds a piece of it."""

import logging

import pytest

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.shells.asking import http_scope, serve

TOKEN = "tok-4f9d1c-secret"  # what python:tests.identity.functions:raises holds in its message
PIECES = (TOKEN, TOKEN[:8], TOKEN[-8:], TOKEN.upper())
RULES = {
    "domain": "shop",
    "storage": {"timeout": "5s"},
    "client": {"user": "header:Authorization", "tier": "python:tests.identity.functions:raises"},
    "attributes": {"session": "cookie:session"},
    "response": {"message": "{ip} {rule} {limit} {retry_after}", "body": "problem"},
    "rules": [
        {
            "name": "secrets",
            "match": {"path": "/reset/{token}"},
            "by": ["user", "session", "query:token", "header:X-Api-Key", "path:token", "path", "tier"],
            "limit": {"default": "1 per minute", "premium": "2 per minute"},
        },
        {"name": "addresses", "by": "ip", "limit": "1 per minute"},
    ],
}


def ask_asgi(engine):
    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    lines = [("authorization", f"Bearer {TOKEN}"), ("cookie", f"session={TOKEN}"), ("x-api-key", TOKEN)]
    headers = [(name.encode(), value.encode()) for name, value in (*lines, ("x-forwarded-for", TOKEN))]
    scope = http_scope(f"/reset/{TOKEN}", ip=TOKEN, headers=headers, query_string=f"token={TOKEN}".encode())
    return str(serve(Asgi(app, limiter=engine), scope))


def ask_wsgi(engine):
    def app(_environ, start_response):
        start_response("200 OK", [])
        return []

    said = []
    environ = {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": f"/reset/{TOKEN}",
        "QUERY_STRING": f"token={TOKEN}",
        "REMOTE_ADDR": TOKEN,
        "HTTP_AUTHORIZATION": f"Bearer {TOKEN}",
        "HTTP_COOKIE": f"session={TOKEN}",
        "HTTP_X_API_KEY": TOKEN,
        "HTTP_X_FORWARDED_FOR": TOKEN,
    }
    body = Wsgi(app, limiter=engine)(environ, lambda *arguments: said.append(arguments))
    return f"{said} {body}"


@pytest.mark.parametrize("ask", [pytest.param(ask_asgi, id="ASGI"), pytest.param(ask_wsgi, id="WSGI")])
@pytest.mark.parametrize("secret", ["", "a secret"])
def test_neither_the_store_nor_the_log_nor_the_answer_holds_the_token(ask, secret, any_server, caplog):
    caplog.set_level(logging.DEBUG)
    monitored = any_server.client().monitor()
    rules = {**RULES, "client": {**RULES["client"], "secret": secret}}
    with monitored as monitor, RateLimiter(rules, storage=any_server.url) as engine:
        answers = [ask(engine) for _ in range(3)]
        any_server.admin.echo("last-command-4711")  # words that no script has
        commands = []
        while "last-command-4711" not in (command := monitor.next_command()["command"]):
            commands.append(command)
    assert "429" in answers[1]
    assert any("secrets" in command for command in commands), "the counters were asked"
    assert any("RuntimeError" in message for message in caplog.messages), "the function's failure was told"
    for piece in PIECES:
        assert piece not in "".join(answers)
        assert piece not in caplog.text
        assert piece not in "".join(commands)
        assert piece not in "".join(any_server.keys())
