"""Words of a rules file, combined at random: what loads works alike in every shell and store, and never fails.

The rules come from a table of words; what does not go together is refused with a sentence. What is left is asked for
the same requests in the same time in each shell over each store, and has to come to the same answers and counters.
"""

import asyncio
from random import Random
from wsgiref.util import setup_testing_defaults

import pytest

from ratelimit_mw import ConfigurationError, ManualClock, RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware as Asgi
from ratelimit_mw.wsgi import RateLimitMiddleware as Wsgi
from tests.shells.asking import START, exchange, http_scope

SEEDS = 30
"""The files tried. `tests/load/test_combinations_fuzzed.py` tries a thousand."""

ALGORITHMS = (
    "fixed_window",
    "sliding_window",
    "sliding_log",
    "bucketed_window",
    "token_bucket",
    "leaky_bucket",
)

WORDS = {
    "limit": [
        "2 per minute",
        "3 per 10 seconds",
        ["2 per 10 seconds", "5 per minute"],
        ["1 concurrent", "3 per minute"],
        {"default": "2 per minute", "gold": "5 per minute"},
        {"default": ["1 concurrent", "3 per minute"], "gold": "unlimited"},
        "1 concurrent",
        "0 per hour",
        "unlimited",
    ],
    "algorithm": [*ALGORITHMS],
    "by": ["ip", "user|ip", ["ip", "user"], "ip+user", "global", "tier", "header:X-Plan"],
    "throttle": [{"soft": "50%"}, {"elastic": {"up_to": "200%", "below": 0.7}}],
    "burst": [3, 5],
    "max_wait": ["1ms"],
    "count": [{"status": [401, 500]}, {"status": "4xx"}],
    "cost": [2, 0, "header:X-Cost", "query:cost", "response:X-Cost", "python:tests.test_combinations:cost_of"],
    "ban": [
        {"after": "1 denial", "for": "30 seconds"},
        {"after": "2 denials in 1 minute", "for": "1 minute", "growing": "2x up to 1 hour"},
    ],
    "priority": ["low", "critical"],
    "messages": ["close", "drop"],
    "shadow": [True],
    "on_error": ["allow", "deny", "local"],
    "replaces": ["first"],
    "on_demand": [True],
    "response": [{"status": 423, "message": "Locked for {retry_after} s"}, {"hidden": True}, {"status": 404}],
    "consistency": ["lease", "write_back"],
    "match": [{"path": "/a"}, {"methods": ["GET"]}, {"header:X-Plan": "x"}, {"tier": "gold"}, {"ip": "203.0.113.0/24"}],
}
FILE = {
    "shadow": [True],
    "exempt": [[{"path": "/b"}], [{"ip": "203.0.113.9"}]],
    "overrides": [
        [{"client": {"ip": "203.0.113.8"}, "rule": "first", "limit": "1 per minute"}],
        [{"client": {"user": "u1"}, "block": True}],
        [{"client": {"ip": "203.0.113.9"}, "exempt": True}],
    ],
    "descriptors": [
        [{"key": "ip", "rate_limit": {"unit": "minute", "requests_per_unit": 4}}],
    ],
}
FRAME = {
    "domain": "d",
    "storage": {"timeout": "5s"},
    "client": {"user": "header:X-User", "tier": "header:X-Tier", "secret": "s"},
    "load": "python:tests.test_combinations:load",
}


def cost_of(_):
    return "2"


def files(random):
    """A rules file, as likely to load as not."""
    rules = []
    for name in ("first", "second", "third")[: random.choice((1, 2, 2, 3))]:
        words = random.sample(sorted(WORDS.keys() - {"limit"}), random.choice((0, 1, 2, 2, 3, 4)))
        if name == "first":
            words = [word for word in words if word != "replaces"]
        rules.append(
            {
                "name": name,
                "algorithm": "fixed_window",
                **{word: random.choice(WORDS[word]) for word in ("limit", *words)},
            }
        )
        if rules[-1]["algorithm"] == "leaky_bucket":
            rules[-1]["max_wait"] = "1ms"  # for what waits does so in real time
    sections = {word: random.choice(FILE[word]) for word in FILE if random.random() < 0.1}
    return {**FRAME, **sections, "rules": rules}


def load():
    return 0.1


def history(random):
    """Steps: how far the clock moves, the request, and what the app does with it."""
    for _ in range(12):
        yield (
            random.choice((0, 0, 0, 1, 4, 12, 65)),
            {
                "path": random.choice(("/a", "/a", "/b")),
                "method": random.choice(("GET", "GET", "POST", "HEAD", "OPTIONS")),
                "ip": random.choice(("203.0.113.7", "203.0.113.7", "203.0.113.8", "203.0.113.9")),
                "headers": {
                    name: random.choice(values)
                    for name, values in {
                        "x-user": ("u1", "u2"),
                        "x-tier": ("gold", "none"),
                        "x-plan": ("x", "y"),
                        "x-cost": ("3", "bad"),
                    }.items()
                    if random.random() < 0.4
                },
                "query": random.choice(("", "cost=2", "cost=99999999999")),
            },
            random.choice((200, 200, 401, 404, 500, "raise")),
            random.choice(("2", "0", "bad", None)),
        )


class Broken(Exception):
    """What the app raises."""


def asked_asgi(engine):
    def ask(request, outcome, cost):
        async def app(scope, receive, send):
            if outcome == "raise":
                raise Broken
            headers = [] if cost is None else [(b"x-cost", cost.encode())]
            await send({"type": "http.response.start", "status": outcome, "headers": headers})
            await send({"type": "http.response.body", "body": b"hello"})

        fields = [(name.encode(), value.encode()) for name, value in request["headers"].items()]
        scope = http_scope(
            request["path"],
            method=request["method"],
            ip=request["ip"],
            headers=fields,
            query_string=request["query"].encode(),
        )
        try:
            start, *bodies = asyncio.run(exchange(Asgi(app, limiter=engine), scope))
        except Broken:
            return "raised"
        fields = sorted((name.decode(), value.decode()) for name, value in start["headers"])
        return start["status"], fields, b"".join(body["body"] for body in bodies)

    return ask


def asked_wsgi(engine):
    def ask(request, outcome, cost):
        said = []

        def app(environ, start_response):
            if outcome == "raise":
                raise Broken
            start_response(f"{outcome} X", [] if cost is None else [("x-cost", cost)])
            return [b"hello"]

        environ = {
            "PATH_INFO": request["path"],
            "REQUEST_METHOD": request["method"],
            "REMOTE_ADDR": request["ip"],
            "QUERY_STRING": request["query"],
            "wsgi.multithread": True,  # the only thread of a server may not wait, and then denials count for no ban
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in request["headers"].items()},
        }
        setup_testing_defaults(environ)
        try:
            response = Wsgi(app, limiter=engine)(environ, lambda *arguments: said.append(arguments))
            try:
                body = b"".join(response)
            finally:
                if hasattr(response, "close"):
                    response.close()
        except Broken:
            return "raised"
        status, fields = said[0][:2]
        return int(status[:3]), sorted((name.lower(), value) for name, value in fields), body

    return ask


def given(request):
    names = {"x-user": "user", "x-tier": "tier"}
    headers = {names.get(name, f"header:{name}"): value for name, value in request["headers"].items()}
    query = {"query:cost": request["query"].removeprefix("cost=")} if request["query"] else {}
    plain = {"ip": request["ip"], "path": request["path"], "method": request["method"]}
    return {**plain, **headers, **query, "header:x-plan": request["headers"].get("x-plan", "")}


def told(config, shell, storage, seed):
    """What becomes of each request of a history, and whether a peek had said so."""
    clock, answers = ManualClock(START), []
    with RateLimiter(config, storage=storage, clock=clock) as engine:
        ask = shell(engine)
        for wait, request, outcome, cost in history(Random(seed)):
            clock.advance(wait)
            peeked = engine.peek(given(request))
            assert engine.explain(given(request)).decision == peeked, (seed, config)
            answers.append((peeked, _certain(ask(request, outcome, cost))))
    return answers


def _certain(answer):
    """An answer, less what a denial out of a process's memory does not tell: what remains of other counters."""
    if answer == "raised" or "cache-control" not in dict(answer[1]):
        return answer
    status, fields, body = answer
    return status, [(name, value) for name, value in fields if not name.startswith("x-ratelimit")], body


def loaded(seed):
    """The file of a seed, None where it is refused, which is by a sentence."""
    config = files(Random(seed))
    try:
        RateLimiter(config, storage="memory://", clock=ManualClock(START)).close()
    except ConfigurationError:
        return None
    return config


def test_what_loads_is_answered_alike_by_each_shell_over_each_store(any_server):
    tried = 0
    for seed in range(SEEDS):
        config = loaded(seed)
        if config is None:
            continue
        tried += 1
        expected = told(config, asked_asgi, "memory://", seed)
        for shell, storage in ((asked_wsgi, any_server.url), (asked_asgi, any_server.url)):
            any_server.flush()
            assert told(config, shell, storage, seed) == expected, (seed, config)
    assert tried > SEEDS / 5


def test_with_the_store_away_each_rule_does_what_its_on_error_says_and_nothing_fails():
    for seed in range(SEEDS):
        config = loaded(seed)
        if config is None:
            continue
        policies = {rule.get("on_error", "allow") for rule in config["rules"]}
        for shell in (asked_asgi, asked_wsgi):
            with RateLimiter(config, storage="redis://127.0.0.1:1", clock=ManualClock(START)) as engine:
                ask = shell(engine)
                for _, request, outcome, cost in history(Random(seed)):
                    answer = ask(request, outcome, cost)
                    denied = answer != "raised" and answer[0] != outcome
                    if policies == {"allow"} and "overrides" not in config:
                        assert not denied, (seed, config, answer)
                    if denied:
                        assert answer[0] in (403, 404, 423, 429, 503), (seed, config, answer)


@pytest.mark.parametrize("word", ["off", "shadow"])
def test_a_switch_that_is_thrown_lets_everything_pass(monkeypatch, word):
    monkeypatch.setenv("RATELIMIT_MW", word)
    for seed in range(SEEDS):
        config = loaded(seed)
        if config is None:
            continue
        for shell in (asked_asgi, asked_wsgi):
            with RateLimiter(config, storage="memory://", clock=ManualClock(START)) as engine:
                ask = shell(engine)
                for _, request, outcome, cost in history(Random(seed)):
                    answer = ask(request, outcome, cost)
                    assert answer == "raised" if outcome == "raise" else answer[0] == outcome, (seed, config, answer)
