"""Writes down how an old version of a framework reads unusual requests, for `tests/identity/test_frameworks.py`.

The package admits versions that cannot be installed beside the newest ones. Run this in an environment that has one of
them, and nothing of this package; it adds to `tests/vectors/frameworks.json`:

    python tests/load/record_frameworks.py starlette | django | werkzeug
"""

import json
import random
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import Any

VECTORS = Path(__file__).parents[1] / "vectors" / "frameworks.json"
CASES = 150

PIECES = [
    *("s=REAL", "s=1", "s=", "s", " s = 2 ", "t=3", "s=a b", "s=x%41", "s=a,b", "=s=4", "$Version=1", "path=/", "ss=5"),
    *(";", "; ", " ;", ",", '"', 's="q"', 's="a;s=6"', '"\\"', '"\\101\\303\\251"', "\\", "\x1f", "\t", "\xa0", "\x85"),
    *("\xc2\xa0", "\xc3\xa9", "\xff", "%"),
]
QUERIES = ["s=1", "s=2", "s=", "s", "t=3", "s=a+b", "s=%41", "%73=4", "s=%FF", "s=\xc3\xa9", ";", "&", "&&", "="]
HOSTS = [
    *("api.example.com", "API.example.com", "api.example.com:80", "api.example.com:x", "api.example.com:80:1"),
    *("api.example.com.", "api.example.com.:80", "api.example.com:", "api.example.com:80@evil", "u@api.example.com"),
    *("api.example.com,evil", "evil,api.example.com", "[::1]", "[::1]:80", "evil", "", "api.example.com:443"),
]
SERVED = "api.example.com"


def cases() -> list[dict[str, Any]]:
    """The same requests for every framework. Texts are bytes read as latin-1."""
    chosen = random.Random(10)
    made: list[dict[str, Any]] = [
        {
            "cookies": [
                "".join(chosen.choices(PIECES, k=chosen.randint(1, 7))) for _ in range(chosen.choice([1, 1, 2, 3]))
            ],
            "query": "&".join(chosen.choices(QUERIES, k=chosen.randint(1, 5))),
            "host": chosen.choice(HOSTS),
        }
        for _ in range(CASES)
    ]
    return [*made, *({"cookies": [], "query": "", "host": host} for host in HOSTS)]


def scope(case: Mapping[str, Any]) -> dict[str, Any]:
    """The request of a case under ASGI."""
    lines = [
        ("host", case["host"]),
        *(("cookie", line) for line in case["cookies"]),
        ("x_user", "low"),
        ("x-user", "1"),
    ]
    return {
        "type": "http",
        "method": "GET",
        "path": "/",
        "root_path": "",
        "query_string": case["query"].encode("latin-1"),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in lines],
        "client": ("192.0.2.9", 50000),
        "server": ("127.0.0.1", 8000),
    }


def environ(case: Mapping[str, Any]) -> dict[str, Any]:
    """The request of a case under WSGI, as gunicorn makes it."""
    cookies = {"HTTP_COOKIE": ",".join(case["cookies"])} if case["cookies"] else {}
    return {
        "REQUEST_METHOD": "GET",
        "PATH_INFO": "/",
        "QUERY_STRING": case["query"],
        "HTTP_HOST": case["host"],
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": "8000",
        "wsgi.url_scheme": "http",
        "wsgi.input": BytesIO(),
        **cookies,
    }


def starlette(case: Mapping[str, Any]) -> dict[str, Any]:
    """Starlette, and its `Host` route."""
    from starlette.requests import Request
    from starlette.routing import Host, Match

    request = Request(scope(case))
    served = Host(SERVED, app=lambda *_: None).matches(scope(case))[0] == Match.FULL  # type: ignore[arg-type, return-value]
    return {"cookie": request.cookies.get("s"), "query": request.query_params.get("s"), "served": served}


def _django() -> None:
    from django.conf import settings

    if not settings.configured:
        settings.configure(USE_TZ=True)


def _read_by_django(request: Any) -> dict[str, Any]:
    from django.core.exceptions import DisallowedHost
    from django.test import override_settings

    try:
        with override_settings(ALLOWED_HOSTS=[SERVED]):
            served = bool(request.get_host())
    except DisallowedHost:
        served = False
    return {
        "cookie": request.COOKIES.get("s"),
        "query": request.GET.get("s"),
        "served": served,
        "header": request.headers.get("X-User"),
    }


def django_asgi(case: Mapping[str, Any]) -> dict[str, Any]:
    """Django's ASGI handler, and ALLOWED_HOSTS."""
    _django()
    from django.core.handlers.asgi import ASGIRequest

    return _read_by_django(ASGIRequest(scope(case), BytesIO()))


def django_wsgi(case: Mapping[str, Any]) -> dict[str, Any]:
    """Django's WSGI handler, and ALLOWED_HOSTS."""
    _django()
    from django.core.handlers.wsgi import WSGIRequest

    return _read_by_django(WSGIRequest(environ(case)))


def werkzeug(case: Mapping[str, Any]) -> dict[str, Any]:
    """Werkzeug, with host matching as in Flask."""
    from werkzeug.exceptions import HTTPException
    from werkzeug.routing import Map, Rule
    from werkzeug.wrappers import Request

    request = Request(environ(case))
    rules = Map([Rule("/", host=SERVED, endpoint="served")], host_matching=True)
    try:
        served = rules.bind_to_environ(environ(case)).match()[0] == "served"
    except HTTPException:
        served = False
    return {"cookie": request.cookies.get("s"), "query": request.args.get("s"), "served": served}


READERS: dict[str, dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "starlette": {"starlette": starlette},
    "django": {"django asgi": django_asgi, "django wsgi": django_wsgi},
    "werkzeug": {"werkzeug": werkzeug},
}


def main(package: str) -> None:
    """Record what the installed version of a package reads."""
    known = json.loads(VECTORS.read_text()) if VECTORS.exists() else {}
    known["cases"] = cases()
    for name, read in READERS[package].items():
        known[f"{name} {version(package)}"] = [read(case) for case in known["cases"]]
    VECTORS.write_text(
        json.dumps(known, indent=None, separators=(",", ":"), sort_keys=True).replace("},{", "},\n{") + "\n"
    )


if __name__ == "__main__":
    main(sys.argv[1])
