"""What is kept of one denial for the next: nothing that another one would word otherwise."""

import json
from functools import partial

from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.http.answers import LatestAnswers
from tests.shells.asking import http_scope, limiter, serve

LINK = "https://example.com/limits"
RULES = [
    {"name": "first", "match": {"path": "/a"}, "limit": "0/s", "response": {"status": 403}},
    {"name": "second", "match": {"path": "/b"}, "limit": "0/s", "response": {"message": "Never"}},
    {"name": "third", "match": {"path": "/c"}, "limit": "0/s"},
    {"name": "fourth", "match": {"path": "/d"}, "limit": "0/s", "response": {"hidden": True}},
    {"name": "fifth", "match": {"path": "/e"}, "limit": "0/s", "response": {"message": "Not {ip}"}},
]


async def nobody(_scope, _receive, _send):
    raise AssertionError("every request is denied")


def test_denials_in_turn():
    middleware = RateLimitMiddleware(
        nobody, limiter=limiter(rules=RULES, response={"documentation_url": LINK, "body": ["json", "html"]})
    )

    def ask(path, ip="192.0.2.1", accept=b"*/*"):
        start, body = serve(middleware, http_scope(path, ip=ip, headers=[(b"accept", accept)]))
        return start["status"], body["body"]

    for ip in ("192.0.2.1", "192.0.2.2"):
        answers = [(status, *json.loads(body).values()) for status, body in (ask(f"/{path}", ip) for path in "abcde")]
        assert answers == [
            (403, "Too many requests", LINK),
            (429, "Never", LINK),
            (429, "Too many requests", LINK),
            (429, "Too many requests"),
            (429, f"Not {ip}", LINK),
        ]
        pages = [ask(f"/{path}", ip, b"text/html")[1].decode() for path in "abcde"]
        assert ["<p>Never</p>" in page for page in pages] == [False, True, False, False, False]
        assert ["<h1>Forbidden</h1>" in page for page in pages] == [True, False, False, False, False]
        assert f"<p>Not {ip}</p>" in pages[-1]


def test_templates_and_pages_that_hold_an_address():
    template = {"error": {"of": ["{ip}"]}}
    response = {"body": [template, "html", "json"], "message": "Not {ip}"}  # of two JSON formats, the first is sent
    middleware = RateLimitMiddleware(nobody, limiter=limiter("0/s", response=response))
    for ip in ("192.0.2.1", "192.0.2.2"):
        for accept, said in ((b"*/*", json.dumps({"error": {"of": [ip]}})), (b"text/html", f"<p>Not {ip}</p>")):
            _, body = serve(middleware, http_scope("/", ip=ip, headers=[(b"accept", accept)]))
            assert said.encode() in body["body"]


def test_answers_are_made_again_only_after_a_reload(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text("domain: d\nrules: [{name: a, limit: 1 per hour}]\n", "utf-8")
    latest = LatestAnswers(name=str, value=str)
    with RateLimiter(path) as limiter:
        first = latest.of(limiter.rules)
        assert latest.of(limiter.rules) is first
        path.write_text("domain: d\nresponse: {status: 420}\nrules: [{name: a, limit: 1 per hour}]\n", "utf-8")
        limiter.reload()
        assert latest.of(limiter.rules) is not first


def test_a_message_has_the_address_by_the_proxies_of_now(tmp_path):
    path, forwarded = tmp_path / "r.yaml", "203.0.113.7"
    rule = "{name: a, by: path, limit: 0/s, response: {message: '{ip}'}}"
    scope = partial(http_scope, "/", ip="192.0.2.1", headers=[(b"x-forwarded-for", forwarded.encode())])
    path.write_text(f"domain: d\nclient: {{trusted_proxies: [198.51.100.1]}}\nrules: [{rule}]\n", "utf-8")
    with RateLimiter(path) as limiter:
        middleware = RateLimitMiddleware(nobody, limiter=limiter)
        assert b"192.0.2.1" in serve(middleware, scope())[1]["body"]
        path.write_text(f"domain: d\nclient: {{trusted_proxies: [192.0.2.1]}}\nrules: [{rule}]\n", "utf-8")
        limiter.reload()
        assert forwarded.encode() in serve(middleware, scope())[1]["body"]
