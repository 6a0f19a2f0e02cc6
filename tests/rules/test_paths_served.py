"""Unusual targets, sent over raw sockets to real servers: the fourth request within the limit's day is denied."""

import socket
from urllib.parse import urlsplit

import pytest

from tests.support.apps import ROOT, gunicorn, hypercorn, uvicorn

SERVED = """
from ratelimit_mw.{kind} import RateLimitMiddleware
from tests.support import routers

COUNTED = [("/login", "path"), ("/items/{{id:int}}", "path:id")]
RULES = [
    {{"name": f"r{{n}}", "match": {{"path": path}}, "by": by, "limit": "3 per day"}}
    for n, (path, by) in enumerate(COUNTED)
]
app = RateLimitMiddleware(routers.{table}["{name}"](), {{"domain": "d", "rules": RULES}})
"""
CASES = [
    (uvicorn, "quart", "", ["http://h/login", "foo:/login", "%0A/login", "/login"]),
    (hypercorn, "quart", "/api", ["/apilogin", "/api/login", "http://h/api/login", "/api//login"]),
    (uvicorn, "litestar", "/api", ["login", "/login", "//login", "/login/"]),
    (uvicorn, "litestar", "", ["/items/+7", "/items/07", "/items/%D9%A7", "/items/7%20"]),
    (uvicorn, "starlette", "", ["/items/7", "/items/07", "/items/007", "/items/0007"]),
    (gunicorn, "flask", "", ["/items/%EF%BC%97", "/items/7", "/items/07", "//items/%D9%A7"]),
    (gunicorn, "bottle", "", ["/login%FF", "/%C3login", "/login", "/lo%FFgin"]),
]


@pytest.mark.parametrize(
    ("serve", "name", "root", "targets"), CASES, ids=[f"{s.__name__} {n} {r} {t[0]}" for s, n, r, t in CASES]
)
def test_every_spelling_that_runs_the_handler_uses_up_one_limit(serve, name, root, targets, tmp_path):
    kind = "wsgi" if serve is gunicorn else "asgi"
    (tmp_path / "served.py").write_text(SERVED.format(kind=kind, table=kind.upper(), name=name))
    args = ["--root-path", root] if root else []
    with serve("served:app", cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, args=args) as app:
        address = urlsplit(app.url)
        statuses = [_status(address.hostname, address.port, target) for target in targets]
    assert statuses == [200, 200, 200, 429]


def _status(host, port, target):
    with socket.create_connection((host, port), timeout=30) as connection:
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
        answer = b""
        while b"\r\n" not in answer:
            more = connection.recv(4096)
            if not more:
                break
            answer += more
    return int(answer.split(b" ", 2)[1])
