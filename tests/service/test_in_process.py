"""The life of the service inside the process of the tests, where the coverage of its lines is measured."""

import logging
import os
import queue
import re
import signal
import threading
from contextlib import contextmanager

import grpc
import httpx
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ratelimit_mw.service import serve
from ratelimit_mw.service.settings import Settings
from tests.support.patience import WITHIN, eventually
from tests.support.service import OK, OVER_LIMIT, asking, request, rules_at

RULES = """\
domain: shop
client: {secret: s, trusted_proxies: [127.0.0.1]}
storage: {timeout: 5s}
descriptors:
  - {key: user, rate_limit: {unit: year, requests_per_unit: 1, name: by_user}}
"""
TOKENS = "check 0123456789abcdef0123456789abcdef\n"
BEARER = "Bearer 0123456789abcdef0123456789abcdef"


class Lines(logging.Handler):
    """Collects what the service logs."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.found = queue.Queue()

    def emit(self, record):
        self.found.put(record.getMessage())

    def wait_for(self, beginning):
        while not (line := self.found.get(timeout=WITHIN)).startswith(beginning):
            pass
        return line


@contextmanager
def logged():
    lines, logger = Lines(), logging.getLogger("ratelimit_mw")
    level = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.setLevel(level)
        logger.removeHandler(lines)


def served(settings, client):
    """Serve in this thread while `client` runs in another one, and return what it returned."""
    results, errors = [], []

    def ask():
        try:
            addresses = dict(re.findall(r"(grpc|http|admin) at ([^\s,\"]+)", lines.wait_for("ready: ")))
            results.append(client(addresses, lines))
        except BaseException as error:  # noqa: BLE001 - it is raised in the main thread
            errors.append(error)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with logged() as lines:
        thread = threading.Thread(target=ask)
        thread.start()
        serve(settings)
        thread.join()
        lines.wait_for("stopped")
    if errors:
        raise errors[0]
    return results[0]


def read(rules, **texts):
    return Settings.read(rules=str(rules), grpc="0", http="0", admin="0", drain="0s", **texts)


def test_all_ports_are_served_until_a_signal(tmp_path):
    rules = rules_at(tmp_path, RULES)

    def client(addresses, lines):
        with grpc.insecure_channel(addresses["grpc"]) as channel:
            ask, health = asking(channel), health_pb2_grpc.HealthStub(channel)
            codes = [ask(request("shop", [("user", "one")]), timeout=WITHIN).overall_code for _ in range(2)]
            too_long = ask(request("shop", [("user", "x" * 5000)]), timeout=WITHIN).overall_code
            with pytest.raises(grpc.RpcError) as refused:
                ask(request("", [("user", "one")]), timeout=WITHIN)
            with pytest.raises(grpc.RpcError) as unknown:
                health.Check(health_pb2.HealthCheckRequest(service="other"), timeout=WITHIN)
            watch = health.Watch(health_pb2.HealthCheckRequest(service="ratelimit"))
            statuses = [health.Check(health_pb2.HealthCheckRequest(), timeout=WITHIN).status, next(watch).status]
            watch.cancel()
            rules.write_text(RULES.replace("requests_per_unit: 1", "requests_per_unit: 3"))
            os.kill(os.getpid(), signal.SIGHUP)
            lines.wait_for("rules: version")
            codes += [ask(request("shop", [("user", "one")]), timeout=WITHIN).overall_code for _ in range(3)]
        ready = httpx.get(f"http://{addresses['http']}/readyz", timeout=WITHIN)
        metrics = httpx.get(f"http://{addresses['admin']}/metrics", timeout=WITHIN).text
        return codes, too_long, refused.value.code(), unknown.value.code(), statuses, ready.text, metrics

    codes, too_long, refused, unknown, statuses, ready, metrics = served(read(rules), client)
    asked = len(codes) + 2
    assert f'ratelimit_service_requests_total{{endpoint="ShouldRateLimit"}} {asked:.1f}\n' in metrics
    assert codes == [OK, OVER_LIMIT, OK, OK, OVER_LIMIT]
    assert too_long == OVER_LIMIT
    assert (refused, unknown) == (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert statuses == [health_pb2.HealthCheckResponse.SERVING] * 2
    assert ready == "ready\n"
    assert "ratelimit_service_rate_limit_total_hits" in metrics


def test_the_server_does_not_take_the_address_of_a_client_for_that_of_its_proxy(tmp_path):
    """uvicorn would do so by itself, and `/auth` would no longer know which proxy asks."""
    rules = rules_at(tmp_path, RULES + "rules: [{name: all, by: ip, limit: 1 per year}]\n")

    def client(addresses, _lines):
        headers = {"X-Original-Method": "GET", "X-Original-URI": "/", "X-Forwarded-For": "203.0.113.7"}
        url = f"http://{addresses['http']}/auth"
        return [httpx.get(url, headers=headers, timeout=WITHIN).status_code for _ in range(2)]

    assert served(read(rules, strict_proxies="true"), client) == [200, 429]


def test_a_caller_needs_a_token_if_there_is_a_token_file(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS)
    tokens.chmod(0o600)

    def client(addresses, _lines):
        with grpc.insecure_channel(addresses["grpc"]) as channel:
            ask = asking(channel)
            with pytest.raises(grpc.RpcError) as refused:
                ask(request("shop", [("user", "one")]), timeout=WITHIN)
            passed = ask(request("shop", [("user", "one")]), timeout=WITHIN, metadata=[("authorization", BEARER)])
        return refused.value.code(), passed.overall_code

    settings = read(rules_at(tmp_path, RULES), token_file=str(tokens), max_connection_age="1h")
    assert served(settings, client) == (grpc.StatusCode.UNAUTHENTICATED, OK)


def test_a_hangup_reads_the_token_file_again(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(TOKENS)

    def client(addresses, lines):
        def put(text):
            tokens.write_text(text)
            os.kill(os.getpid(), signal.SIGHUP)

        def status(token):
            headers = {"Authorization": f"Bearer {token}-0123456789abcdef"}
            body = {"domain": "shop", "descriptors": [{"entries": [{"key": "other", "value": "one"}]}]}
            return httpx.post(f"http://{addresses['http']}/json", headers=headers, json=body).status_code

        put("check newest-0123456789abcdef\n")
        eventually(lambda: status("newest") == 200)
        put("nonsense\n")
        problem = lines.wait_for("the tokens can't be used")
        return status("newest"), status("0123456789abcdef"), problem

    newest, first, problem = served(read(rules_at(tmp_path, RULES), token_file=str(tokens)), client)
    assert (newest, first) == (200, 401)
    assert "the previous ones stay in force" in problem
    assert "nonsense" not in problem
