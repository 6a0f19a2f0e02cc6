"""What a decision costs on a hostile path, counted in steps of the interpreter and not in time.

A step is a bytecode. No bytecode does more than one pass of a C function over the path.
"""

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.identity.http_request import AsgiRequest, WsgiRequest
from tests.support.routers import environs, scopes
from tests.support.steps import steps_of_a_decision

TEMPLATES = [
    *("/login", "/static/*", "/v{a}-{b}/x", "/f/{p:path}/e/{i:int}", "/{f:float}", "/{a}.{i}", "/{a}.{b}.x"),
    *("/{a}/{b}/{c}", "/u/{u:uuid}", "/i/{a:int}/{b:int}/{c:float}"),
]
CONFIG = {
    "domain": "d",
    "client": {"secret": "s"},
    "exempt": [{"path": "/health/{n:int}"}],
    "rules": [
        *({"name": f"r{n}", "match": {"path": each}, "limit": "5/d"} for n, each in enumerate(TEMPLATES)),
        {"name": "all", "by": "path", "limit": "5 per day"},
    ],
}
REPEATED = {
    "one segment": ("/", "a"),
    "segments": ("", "/a"),
    "slashes": ("", "/"),
    "dot segments": ("", "/."),
    "dot segments that lead back": ("", "/a/.."),
    "everything at once": ("/api", "/a//./b/.."),
    "what divides two parameters": ("/v", "-"),
    "digits": ("/", "1"),
    "almost a number": ("/", "1."),
    "a long number with a sign": ("/i/1/1/+1.", "9"),
    "what ends a tail": ("/f", "/e/1"),
    "bytes that are not UTF-8": ("/", "\ufffd"),
    "bytes that are not UTF-8 among slashes": ("", "//\ufffd/."),
    "line feeds": ("/.", "\n"),
    "an absolute target": ("http://h", "//./a"),
    "a scheme": ("", "a:"),
    "no slash at the start": ("", "a/."),
    "prefixes": ("", "/api"),
    "prefixes among dot segments": ("", "/api/./"),
}


@pytest.fixture(scope="module")
def limiter():
    with RateLimiter(CONFIG, clock=ManualClock(1_700_000_000)) as made:
        yield made


def contexts(path, root):
    scope = {**next(iter(scopes(b"/"))), "path": path, "root_path": root}
    environ = {**next(iter(environs(b"/"))), "PATH_INFO": path.replace("\ufffd", "\xff")}
    return (AsgiRequest, scope), (WsgiRequest, environ)


@pytest.mark.parametrize(("start", "repeated"), REPEATED.values(), ids=REPEATED)
@pytest.mark.parametrize("root", ["", "/api"])
def test_a_hostile_path_costs_few_steps_whatever_its_length(limiter, start, repeated, root):
    for place in (0, 1):
        plain = steps_of_a_decision(limiter, *contexts("/a/b/c", root)[place])
        short, long = (
            steps_of_a_decision(limiter, *contexts(start + repeated * (size // len(repeated)), root)[place])
            for size in (8 * 1024, 64 * 1024)
        )
        assert short <= 6 * plain
        assert long <= 2 * short, "the interpreter takes no step for each character"
