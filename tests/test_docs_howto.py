"""What the guides on clients, proxies, CORS, logins and failures show is what happens."""

import asyncio
import importlib.util
import logging
import math
import re
import subprocess
import sys
from types import ModuleType

import httpx
import pytest
import yaml
from werkzeug.test import Client as WsgiClient

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.algorithms import for_rules
from ratelimit_mw.asgi import RateLimitMiddleware
from tests.shells.asking import exchange, http_scope
from tests.support.apps import ROOT, uvicorn

DOCS = ROOT / "docs"
RULE = {"name": "all", "by": "ip", "limit": "9 per day"}
CLIENT, FORGED = "203.0.113.7", "198.51.100.9"


def page(name):
    return (DOCS / f"{name}.md").read_text("utf-8")


def blocks(name, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL)


def run(text, name="example"):
    """A module with this text."""
    module = ModuleType(name)
    exec(compile(text, name, "exec"), module.__dict__)
    return module


@pytest.mark.parametrize("name", ["cors", "failure", "identity", "login-protection"])
def test_a_snippet_runs(name, tmp_path):
    if name == "identity":
        pytest.importorskip("jwt")
    for text in blocks(name, "python"):
        command = [sys.executable, "-W", "error", "-c", text]
        done = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 0, done.stderr


# ----------------------------------------------------------------------------------------- algorithms.md


def pictures():
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["pictures"] = module
    spec.loader.exec_module(module)
    return module


def test_the_pictures_are_those_that_the_limiter_draws():
    drawn = pictures().pictures()
    stored = {path.name: path.read_text("utf-8") for path in (DOCS / "pictures").glob("*.svg")}
    assert stored == drawn, "python docs/pictures.py"
    assert {f"pictures/{name}" for name in stored} == set(re.findall(r"\((pictures/\w+\.svg)\)", page("algorithms")))


def test_the_text_has_the_figures_of_the_pictures():
    module = pictures()
    most = {algorithm: module.most_in_a_minute(module.decided(algorithm)) for algorithm in module.RULES}
    found = re.findall(r"!\[(\w+)[^]]* admits (?:up to )?(\d+) requests", page("algorithms"))
    said = {name: int(number) for name, number in found}
    assert {name: most[name] for name in said} == said
    assert len(said) == 5
    assert len(module.ARRIVALS) == 49


# --------------------------------------------------------------------------------------------- proxies.md

BEHIND = re.findall(r"^\| ([^|]+) \| `({[^`]+})` \|$", page("proxies"), re.MULTILINE)
REQUESTS = {
    "nginx on the same machine": ("127.0.0.1", "X-Forwarded-For", "198.51.100.9, 203.0.113.7"),
    "nginx on a unix socket": ("no address", "X-Forwarded-For", "198.51.100.9, 203.0.113.7"),
    "Envoy in your network": ("10.0.3.4", "X-Forwarded-For", "198.51.100.9,203.0.113.7"),
    "AWS load balancer (ALB)": ("10.0.1.20", "X-Forwarded-For", "198.51.100.9, 203.0.113.7"),
    "CloudFront, then an ALB": ("10.0.1.20", "X-Forwarded-For", "198.51.100.9, 203.0.113.7, 130.176.1.1"),
    "Google Cloud load balancer": ("35.191.0.5", "X-Forwarded-For", "198.51.100.9,203.0.113.7,192.0.2.80"),
    "Cloudflare": ("173.245.48.9", "CF-Connecting-IP", "203.0.113.7"),
    "Cloudflare, then nginx": ("127.0.0.1", "X-Forwarded-For", "198.51.100.9, 203.0.113.7, 173.245.48.9"),
    "Heroku": ("10.1.22.3", "X-Forwarded-For", "198.51.100.9, 203.0.113.7"),
    "Fly.io": ("172.16.9.2", "Fly-Client-IP", "203.0.113.7"),
    "Azure App Service": ("169.254.130.1", "X-Forwarded-For", "198.51.100.9, 203.0.113.7:51234"),
}
"""A request of CLIENT behind each proxy, with FORGED in its header: its peer, and the name and value of the header."""


@pytest.mark.parametrize(("proxy", "client"), BEHIND)
def test_the_settings_of_a_proxy_find_the_client(proxy, client):
    peer, header, value = REQUESTS[proxy]
    rules = {
        "domain": "shop",
        "client": yaml.safe_load(client),
        "rules": [{"name": "all", "by": "ip", "limit": "9/day"}],
    }
    seen = []

    async def app(scope, receive, send):
        seen.append(scope["ratelimit"].remaining)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with RateLimiter(rules, storage="memory://") as limiter:
        scope = http_scope(
            "/", ip=None if peer == "no address" else peer, headers=[(header.lower().encode(), value.encode())]
        )
        asyncio.run(exchange(RateLimitMiddleware(app, limiter=limiter), scope))
        assert seen == [8]
        assert limiter.peek({"ip": CLIENT}).remaining == 8


def test_the_proxies_were_found():
    assert [proxy for proxy, _ in BEHIND] == list(REQUESTS)


APP = """
from ratelimit_mw.asgi import RateLimitMiddleware

async def answer(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})

rules = {"domain": "shop", "client": CLIENT, "rules": [{"name": "all", "by": "ip", "limit": "9/day"}]}
app = RateLimitMiddleware(answer, config=rules)
"""
LISTED, HOPS = {"trusted_proxies": ["127.0.0.1"]}, {"trusted_hops": 1}


@pytest.mark.parametrize(
    ("flags", "settings", "correct"),
    [
        pytest.param(["--no-proxy-headers"], LISTED, True, id="ignored by uvicorn"),
        pytest.param([], LISTED, True, id="read by uvicorn"),
        pytest.param(["--forwarded-allow-ips", "*"], LISTED, False, id="any header is believed"),
        pytest.param(["--forwarded-allow-ips", "*"], HOPS, True, id="any header is believed, hops are counted"),
    ],
)
def test_uvicorn_lets_a_client_choose_its_address_only_where_the_page_says_so(tmp_path, flags, settings, correct):
    (tmp_path / "behind.py").write_text(APP.replace("CLIENT", repr(settings), 1))
    with uvicorn("behind:app", cwd=tmp_path, args=flags) as running, httpx.Client(base_url=running.url) as client:
        left = [
            client.get("/", headers={"X-Forwarded-For": f"{forged}, {CLIENT}"}).headers["X-RateLimit-Remaining"]
            for forged in (FORGED, "198.51.100.10")
        ]
    assert left == (["8", "7"] if correct else ["8", "8"])


# ------------------------------------------------------------------------------------------------ cors.md


def asgi_client(app):
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop.example")


async def asked(app, times, **options):
    async with asgi_client(app) as client:
        return [await client.get("/", **options) for _ in range(times)]


def test_a_browser_can_read_a_429_in_starlette():
    starlette, *_ = blocks("cors", "python")
    last = asyncio.run(asked(run(starlette).app, 3, headers={"Origin": "https://shop.example"}))[-1]
    assert last.status_code == 429
    assert last.headers["Access-Control-Allow-Origin"] == "https://shop.example"
    assert "Retry-After" in last.headers["Access-Control-Expose-Headers"]


def test_a_browser_can_read_a_429_in_flask():
    flask = blocks("cors", "python")[-1]
    client = WsgiClient(run(flask).app)
    for origin, allowed in (("https://shop.example", "https://shop.example"), ("https://evil.example", None)):
        responses = [client.get("/", headers={"Origin": origin}) for _ in range(3)]
        assert responses[-1].status_code == 429
        assert responses[-1].headers.get("Access-Control-Allow-Origin") == allowed


# -------------------------------------------------------------------------------------------- identity.md


def test_two_tokens_of_one_user_share_a_counter_and_a_tier_comes_from_the_token():
    jwt = pytest.importorskip("jwt")
    (text,) = [text for text in blocks("identity", "python") if text.startswith("# jwt_main.py")]
    module = run(text)

    def statuses(times, **claims):
        token = jwt.encode({"exp": 4_000_000_000, **claims}, module.SECRET, algorithm="HS256")
        headers = {"Authorization": f"Bearer {token}"}
        return [response.status_code for response in asyncio.run(asked(module.app, times, headers=headers))]

    assert statuses(1, sub="ann", jti="1") + statuses(2, sub="ann", jti="2") == [200, 200, 429]
    assert statuses(5, sub="grace", plan="premium") == [200] * 4 + [429]
    forged = {"Authorization": f"Bearer {jwt.encode({'sub': 'x', 'exp': 4_000_000_000}, 'k' * 32, algorithm='HS256')}"}
    assert [response.status_code for response in asyncio.run(asked(module.app, 3, headers=forged))] == [400] * 3


def test_the_functions_read_a_key_and_a_plan():
    (text,) = [text for text in blocks("identity", "python") if text.startswith("# shop_auth.py")]
    module = run(text)
    assert module.api_key({"headers": [(b"x-api-key", b"k1")]}) == module.api_key_wsgi({"HTTP_X_API_KEY": "k1"}) == "k1"
    assert module.api_key({"headers": []}) is module.api_key_wsgi({}) is None
    assert asyncio.run(module.plan({"user": "grace"})) == "premium"


# ------------------------------------------------------------------------------------ login-protection.md


def test_the_fourth_try_against_an_account_is_denied_and_another_account_is_not():
    client = WsgiClient(run(blocks("login-protection", "python")[0]).app)

    def tries(account, number, password="wrong"):
        form = {"account": account, "password": password}
        return [client.post("/login", data=form).status_code for _ in range(number)]

    assert tries("ann", 2) + tries(" Ann ", 2) == [401, 401, 401, 429]
    assert tries("ben", 1) == [401]


def test_failed_logins_are_denied_and_then_banned(tmp_path):
    (tmp_path / "ratelimits.yaml").write_text(blocks("login-protection", "yaml")[0])
    with RateLimiter(tmp_path / "ratelimits.yaml", storage="memory://") as limiter:
        tried = {"ip": CLIENT, "method": "POST", "path": "/login"}
        decisions = [limiter.check(tried) for _ in range(15)]
        assert [decision.allowed for decision in decisions] == [True] * 5 + [False] * 10
        assert [decision.banned for decision in decisions].index(True) == 14
        assert limiter.check(tried | {"ip": FORGED}).allowed


# --------------------------------------------------------------------------------------------- failure.md


def test_the_log_says_what_the_page_shows(caplog):
    caplog.set_level(logging.INFO, "ratelimit_mw")
    away = blocks("failure", "text")[0].splitlines()[0]
    rules = {"domain": "shop", "rules": [RULE]}
    with RateLimiter(rules, storage="redis://127.0.0.1:1/0") as limiter:
        assert limiter.check({"ip": CLIENT}).allowed
    assert re.search(re.escape(away).replace("…", ".*"), caplog.text)


# ---------------------------------------------------------------------------------- headers-and-bodies.md

RESETS = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \| ", page("headers-and-bodies"), re.MULTILINE)


@pytest.mark.parametrize(("algorithm", "retry_after", "reset"), RESETS)
def test_a_denial_has_the_times_that_the_page_shows(algorithm, retry_after, reset):
    clock = ManualClock(1_700_000_040)  # the beginning of a minute
    rule = {"name": "all", "by": "ip", "limit": "10 per minute", "algorithm": algorithm}
    with RateLimiter({"domain": "shop", "rules": [rule]}, storage="memory://", clock=clock) as limiter:
        for _ in range(10):
            assert limiter.check({"ip": CLIENT}).allowed
            clock.advance(1)
        while (denied := limiter.check({"ip": CLIENT})).allowed:
            pass
    assert (math.ceil(denied.retry_after), math.ceil(denied.reset_after)) == (int(retry_after), int(reset))


def test_the_times_of_every_algorithm_are_shown():
    assert {algorithm for algorithm, _, _ in RESETS} == set(for_rules()) - {"concurrency"}
