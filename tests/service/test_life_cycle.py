"""The life of the service: readiness, drain, signals, reload, and how callers are let in."""

import http.client
import json
import signal
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request

import grpc
import httpx
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc
from typer.testing import CliRunner

from ratelimit_mw.cli.app import app
from tests.support.service import ASK_WITHIN, OK, OVER_LIMIT, Serving, asking, request, rules_at

RULES = """\
domain: shop
client: {secret: s}
storage: {timeout: 5s}
reload: 1h
descriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]
"""


def wait_until(holds):
    """Wait until `holds()` is true."""
    until = time.monotonic() + ASK_WITHIN
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.02)


def status_of(url):
    try:
        with urllib.request.urlopen(url, timeout=ASK_WITHIN) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


SHADOW = (
    RULES
    + """\
rules:
  - {name: dark, by: header:X, limit: 0 per year, shadow: true}
  - {name: closed, match: {path: /closed}, by: ip, limit: 0 per year}
"""
)


def denials_of(service, *fields):
    """What the log, as JSON, has of the records of denials, once it has that of the last request."""
    entry = json.dumps({"attributes": {"header:X": "SECRET", "path": "/closed", "ip": "192.0.2.1"}})
    answers = [httpx.post(f"{service.http}/v1/check", content=entry).json()["allowed"] for _ in range(12)]
    records = [json.loads(line) for line in service.lines]
    assert "SECRET" not in str(service.lines)
    denials = [each for each in records if each["logger"] == "ratelimit_mw.denials"]
    return answers, [tuple(each[name] for name in fields) for each in denials]


@pytest.mark.parametrize(
    ("words", "closed"), [pytest.param([], [], id="usually"), pytest.param(["--log-denials"], [1], id="--log-denials")]
)
def test_the_log_has_what_shadow_rules_would_deny_and_the_denials_on_request(tmp_path, words, closed):
    with Serving(rules_at(tmp_path, SHADOW), "--log-format", "json", *words) as service:
        answers, found = denials_of(service, "rule", "shadow", "reason", "route")
    assert answers == [False] * 12
    assert (
        sorted(found)
        == [("closed", False, "limited", "/closed")] * 10 * len(closed) + [("dark", True, "limited", None)] * 10
    )


@pytest.mark.parametrize("word", ["off", "shadow"])
def test_the_log_says_at_start_that_the_switch_is_not_on(tmp_path, word):
    with Serving(rules_at(tmp_path, SHADOW), "--log-format", "json", RATELIMIT_MW=word) as service:
        answers, found = denials_of(service, "rule", "shadow")
    assert answers == [True] * 12
    assert sorted(found) == ([] if word == "off" else [("closed", True)] * 10 + [("dark", True)] * 10)
    assert f'"message": "RATELIMIT_MW={word} is set: no request is denied"' in "\n".join(service.lines[:3])


MARK = "marked-by-the-client"
BY = ("host", "tier", "method", "user", "path", "shop", "header:X", "cookie:c", "query:q")
KEYS = ("host", "tier", "method", "user", "other")
NONE = {"limit": "0 per year"}
EVERYTHING = {
    "domain": "shop",
    "client": {
        "secret": "s",
        "trusted_proxies": ["127.0.0.0/8"],
        "user": "header:Authorization",
        "tier": "header:X-Plan",
    },
    "storage": {"timeout": "5s"},
    "attributes": {"shop": "query:shop"},
    "rules": [
        *(
            {"name": f"r {by}", "by": by, **NONE, "ban": {"after": "2 denials in 1 minute", "for": "1 hour"}}
            for by in BY
        ),
        *({"name": f"s {by}", "by": by, **NONE, "shadow": True} for by in BY),
    ],
    "descriptors": [{"key": key, "rate_limit": {"unit": "year", "requests_per_unit": 0}} for key in KEYS],
}


def test_no_log_and_no_metric_has_a_text_of_a_client(tmp_path):
    with Serving(rules_at(tmp_path, json.dumps(EVERYTHING)), "--log-denials", "--log-format", "json") as service:
        headers = {
            "X-Original-Method": MARK,
            "X-Original-URI": f"/{MARK}?shop={MARK}&q={MARK}",
            "Host": MARK,
            "X-Plan": MARK,
            "Authorization": MARK,
            "Cookie": f"c={MARK}",
            "X": MARK,
            "X-Forwarded-For": MARK,
        }
        assert httpx.get(f"{service.http}/auth", headers=headers).status_code == 429
        for name in BY:
            found = httpx.post(f"{service.http}/v1/check", json={"attributes": {name: MARK}}).json()
            assert (name, found["allowed"]) == (name, False)
        for key in KEYS:
            assert service.ask(request("shop", [(key, MARK)])).overall_code == OVER_LIMIT
        sent = request("shop", [(MARK, MARK)])
        sent.descriptors[0].limit.requests_per_unit, sent.descriptors[0].limit.unit = 0, 1
        assert service.ask(sent).overall_code == OVER_LIMIT
        assert service.ask(request(MARK, [(MARK, MARK)])).overall_code == OK  # an unknown domain
        pages = [httpx.get(f"{service.admin}/{page}").text for page in ("metrics", "stats", "rlconfig")]
        rules = {json.loads(line).get("rule") for line in service.lines}
    assert {"(sent)", "other", "r host", "s host"} <= rules
    assert [line for line in [*service.lines, *"\n".join(pages).splitlines()] if MARK in line] == []


def test_a_drain_says_not_ready_and_answers_new_requests_until_a_second_signal_ends_it_at_once(tmp_path):
    with Serving(rules_at(tmp_path, RULES), "--drain", "1h") as service:
        assert (status_of(f"{service.http}/livez"), status_of(f"{service.http}/readyz")) == (200, 200)
        with grpc.insecure_channel(service.grpc) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="ratelimit"))
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            service.signal(signal.SIGTERM)
            assert next(watch).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert (status_of(f"{service.http}/livez"), status_of(f"{service.http}/readyz")) == (200, 503)
            assert asking(channel)(request("shop", [("user", "ann")]), timeout=ASK_WITHIN).overall_code == OK
            probe = CliRunner().invoke(app, ["ask", "--grpc", service.grpc, "--health"])
            assert (probe.exit_code, probe.stdout) == (1, "not serving\n")
            service.signal(signal.SIGTERM)
            assert service.ended() == 128 + signal.SIGTERM


def test_a_drain_under_load_loses_no_request_and_charges_each_once(tmp_path):
    """Two processes share no counters; clients go to the one that is ready, as a proxy with health checks does."""
    rules = rules_at(tmp_path, RULES.replace("requests_per_unit: 3", "requests_per_unit: 1000000"))
    with Serving(rules, "--drain", "3s") as first, Serving(rules) as second:
        stop = threading.Event()
        answers, failures, watched = [], [], threading.Event()

        def ask():
            with grpc.insecure_channel(first.grpc) as one, grpc.insecure_channel(second.grpc) as two:
                while not stop.is_set():
                    try:
                        way = two if watched.is_set() else one
                        answers.append(asking(way)(request("shop", [("user", "load")]), timeout=ASK_WITHIN))
                    except grpc.RpcError as error:
                        failures.append(error)

        def watch():
            with grpc.insecure_channel(first.grpc) as channel:
                for told in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()):
                    if told.status == health_pb2.HealthCheckResponse.NOT_SERVING:
                        watched.set()

        threads = [threading.Thread(target=each) for each in (ask, ask, ask, ask, watch)]
        for each in threads:
            each.start()
        wait_until(lambda: len(answers) > 50)
        first.signal(signal.SIGTERM)
        assert first.ended() == 0
        stop.set()
        for each in threads:
            each.join()
    assert failures == []
    left = sorted(1_000_000 - answer.statuses[0].limit_remaining for answer in answers)
    assert len(answers) > 50
    assert max(left) <= len(answers)  # nothing was charged twice


@pytest.fixture(scope="module")
def reloading(tmp_path_factory):
    """A service, and a function that gives it other rules."""
    path = rules_at(tmp_path_factory.mktemp("reloading"), RULES)
    with Serving(path) as service:

        def put(text):
            path.write_text(text, "utf-8")
            service.signal(signal.SIGHUP)

        yield service, put


def limit_now(service, user):
    return service.ask(request("shop", [("user", user)])).statuses[0].current_limit.requests_per_unit


def test_a_hangup_puts_newer_rules_in_force_at_once_but_no_broken_ones(reloading):
    service, put = reloading
    put(RULES.replace("unit: 3", "unit: 4"))
    wait_until(lambda: limit_now(service, "a") == 4)
    put(RULES + "nonsense: true\n")
    wait_until(lambda: any("can't be used" in line for line in service.lines))
    assert limit_now(service, "b") == 4


def test_reloads_under_load_fail_no_request(reloading):
    service, put = reloading
    stop, limits = threading.Event(), []

    def ask():
        while not stop.is_set():
            limits.append(limit_now(service, str(len(limits))))

    thread = threading.Thread(target=ask)
    thread.start()
    for limit in range(10, 16):
        put(RULES.replace("unit: 3", f"unit: {limit}"))
        wait_until(lambda: limits[-1:] == [limit])  # noqa: B023 - it is called in this round
    stop.set()
    thread.join()
    assert limits == sorted(limits)
    assert {10, 11, 12, 13, 14, 15} <= set(limits)


def test_variables_set_what_flags_do_not_and_unix_sockets_go_with_the_service(tmp_path):
    """The log is JSON, and an open watch of the health does not delay the end."""
    paths = {name: tmp_path / name for name in ("grpc", "http")}
    variables = {f"RATELIMIT_{name.upper()}": f"unix:{path}" for name, path in paths.items()}
    variables |= {"RATELIMIT_LOG_FORMAT": "json", "RATELIMIT_HEADERS": "go"}
    with Serving(rules_at(tmp_path, RULES), "--admin", "off", "--grace", "1h", **variables) as service:
        answer = service.ask(request("shop", [("user", "ann")]))
        assert [header.key for header in answer.response_headers_to_add][:1] == ["RateLimit-Limit"]
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(paths["http"]))
            client.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        with grpc.insecure_channel(service.grpc) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
            service.signal(signal.SIGTERM)
            assert [told.status for told in watch] == [health_pb2.HealthCheckResponse.NOT_SERVING]
        assert service.ended() == 0
        assert [path.exists() for path in paths.values()] == [False, False]
    records = [json.loads(line) for line in service.lines]
    told = [each["message"].partition(":")[0] for each in records if each["level"] == "info"]
    assert told == ["ready", "draining", "stopped"]
    assert {each["logger"] for each in records} <= {"ratelimit_mw", "ratelimit_mw.service"}


def code_of(channel, metadata=()):
    try:
        asking(channel)(request("shop", [("user", "x")]), timeout=ASK_WITHIN, metadata=metadata)
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def test_with_a_token_file_each_caller_needs_a_token_and_health_does_not(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("check abcdefghijklmnop\nadmin ABCDEFGHIJKLMNOP\n", "utf-8")
    with Serving(rules_at(tmp_path, RULES), "--token-file", str(tokens), "--grpc", "0.0.0.0:0") as service:
        target = service.grpc.replace("0.0.0.0", "127.0.0.1")
        with grpc.insecure_channel(target) as channel:
            assert code_of(channel) == "UNAUTHENTICATED"
            assert code_of(channel, [("authorization", "Bearer wrong")]) == "UNAUTHENTICATED"
            assert code_of(channel, [("authorization", "Bearer abcdefghijklmnop")]) == "OK"
            assert code_of(channel, [("authorization", "Bearer ABCDEFGHIJKLMNOP")]) == "OK"
            health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=ASK_WITHIN)
            assert health.status == health_pb2.HealthCheckResponse.SERVING
        words = ["ask", "--grpc", target, "--domain", "shop", "user=y"]
        assert CliRunner().invoke(app, words).exit_code == 3
        assert CliRunner().invoke(app, [*words, "--token", "abcdefghijklmnop"]).exit_code == 0


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A folder with an authority, the certificate of the service, and those of two clients."""
    folder = tmp_path_factory.mktemp("tls")
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued = {
        "server": authority.issue_cert("127.0.0.1", "localhost"),
        "client": authority.issue_cert("envoy.test"),
        "stranger": other.issue_cert("envoy.test"),
    }
    for name, each in issued.items():
        each.private_key_pem.write_to_path(str(folder / f"{name}.key"))
        each.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
    return folder


def test_a_unix_socket_never_speaks_tls(tmp_path, certificates):
    words = ["--tls-cert", certificates / "server.pem", "--tls-key", certificates / "server.key", "--grpc", "off"]
    path = tmp_path / "admin.sock"
    socket_of = httpx.HTTPTransport(uds=str(path))
    with (
        Serving(rules_at(tmp_path, RULES), *map(str, words), "--admin", f"unix:{path}"),
        httpx.Client(transport=socket_of, base_url="http://admin") as client,
    ):
        assert client.get("/readyz", timeout=ASK_WITHIN).text == "ready\n"


def test_with_a_client_ca_only_its_clients_are_served(tmp_path, certificates):
    words = "--tls-cert", "server.pem", "--tls-key", "server.key", "--client-ca", "ca.pem"
    words = [word if word.startswith("--") else str(certificates / word) for word in words]
    with Serving(rules_at(tmp_path, RULES), *words, "--admin", "off") as service:
        ask = ["ask", "--grpc", service.grpc, "--domain", "shop", "user=x", "--timeout", "3"]
        own = ["--server-ca", str(certificates / "ca.pem")]

        def code(*more):
            return CliRunner().invoke(app, [*ask, *more]).exit_code

        def shown(name):
            return ["--cert", str(certificates / f"{name}.pem"), "--key", str(certificates / f"{name}.key")]

        assert code(*own, *shown("client")) == 0
        assert code(*own, *shown("stranger")) == 3
        assert code(*own) == 3
        assert code() == 3

        def livez(*shown):
            context = ssl.create_default_context(cafile=certificates / "ca.pem")
            if shown:
                context.load_cert_chain(*shown)
            url = f"https://{service.addresses['http']}/livez"
            with urllib.request.urlopen(url, timeout=ASK_WITHIN, context=context) as response:
                return response.status

        assert livez(certificates / "client.pem", certificates / "client.key") == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            livez()


def test_a_connection_is_asked_to_end_at_its_age_and_no_request_is_lost(tmp_path):
    with Serving(rules_at(tmp_path, RULES), "--max-connection-age", "300ms", "--http", "off") as service:
        states = []
        with grpc.insecure_channel(service.grpc) as channel:
            channel.subscribe(states.append)
            wait_until(lambda: code_of(channel) == "OK" and grpc.ChannelConnectivity.IDLE in states[1:])
            assert code_of(channel) == "OK"


LEASED = """\
domain: shop
client: {{secret: s}}
storage: {{url: '{url}', timeout: 5s}}
rules: [{{name: leased, by: user, limit: 100 per year, consistency: lease}}]
"""


def test_leases_are_returned_when_the_service_ends(tmp_path, any_server):
    """What a process has leased and not used is there for the next one."""
    path = rules_at(tmp_path, LEASED.format(url=any_server.url))
    with Serving(path, "--admin", "off") as service:
        assert service.ask(request("shop", [("user", "lease")])).overall_code == OK
        service.signal(signal.SIGTERM)
        assert service.ended() == 0
    with Serving(path, "--admin", "off") as service:
        codes = [service.ask(request("shop", [("user", "lease")])).overall_code for _ in range(100)]
    assert codes == [OK] * 99 + [OVER_LIMIT]
