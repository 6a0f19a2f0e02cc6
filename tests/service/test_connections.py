"""How many connections a port takes, and what happens if the process has no descriptors left."""

import asyncio
import re
import resource
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest

from ratelimit_mw.service import grpc_server
from ratelimit_mw.service.messages import METHOD
from ratelimit_mw.service.settings import Address
from tests.service.http_service import service
from tests.support.patience import WITHIN, eventually
from tests.support.proxy import Proxy
from tests.support.service import ASK_WITHIN, OK, RULES, Serving, request, rules_at


def connected(stack, address):
    host, _, port = address.rpartition(":")
    return stack.enter_context(socket.create_connection((host, int(port)), timeout=WITHIN))


def is_closed(connection):
    """Whether the service has closed a connection on which it has nothing to say."""
    connection.settimeout(0.01)
    with suppress(TimeoutError):
        try:
            while connection.recv(1000):
                pass
        except ConnectionError:
            pass
        return True
    return False


def test_a_grpc_connection_that_says_nothing_is_closed(monkeypatch):
    monkeypatch.setattr(grpc_server, "_HANDSHAKE", 0.5)
    made = service({"domain": "shop", "client": {"secret": "s"}, "rules": [{"name": "a", "limit": "1 per year"}]})

    async def run():
        server = grpc_server.GrpcServer(made, Address())
        address = await server.start()
        reader, writer = await asyncio.open_connection(address.host, address.port)
        async with asyncio.timeout(WITHIN):
            await reader.read()  # until the end
        writer.close()
        await server.stop(0)
        return reader.at_eof()

    assert asyncio.run(run())
    made.limiter.close()


@pytest.mark.parametrize("port", ["grpc", "http"])
def test_a_port_closes_the_connections_above_its_number_and_takes_new_ones_later(tmp_path, port):
    with Serving(rules_at(tmp_path, RULES), "--max-connections", "3") as service, ExitStack() as stack:
        connections = [connected(stack, service.addresses[port]) for _ in range(8)]
        eventually(lambda: sum(map(is_closed, connections)) == 5)
        for each in connections:
            each.close()
        if port == "grpc":
            eventually(lambda: passes(service))
        else:
            eventually(lambda: status(f"{service.http}/readyz") == 200)
            assert any("--max-connections" in line for line in service.lines)


def passes(service):
    with suppress(Exception):
        return service.ask(request("shop", [("user", "ann")])).overall_code == OK


def status(url):
    with suppress(httpx.TransportError):
        return httpx.get(url, timeout=WITHIN).status_code


def test_the_process_may_open_as_many_descriptors_as_it_takes_connections(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))  # the service begins with it
    try:
        with Serving(rules_at(tmp_path, RULES), "--max-connections", "500", "--http", "off") as service:
            allowed, _ = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert allowed == 2 * 500 + 512


def exhausted(operator, service):
    """How often the service could not accept a connection."""
    found = re.search(r'reason="no_descriptors"} (\S+)', operator.get(f"{service.admin}/metrics").text)
    return float(found[1]) if found else 0


@pytest.mark.parametrize("port", ["grpc", "http"])
def test_a_process_without_descriptors_logs_little_and_serves_again_when_it_has_some(tmp_path, port):
    """uvloop closes what it can't keep without a word. grpc writes a line each second."""
    tokens = tmp_path / "tokens"
    tokens.write_text("admin vT2cVb8yWq0Lr7Zd\n")
    headers = {"Authorization": "Bearer vT2cVb8yWq0Lr7Zd"}
    with (
        Serving(rules_at(tmp_path, RULES), "--allow-anyone", "--token-file", str(tokens)) as service,
        ExitStack() as stack,
        httpx.Client(timeout=WITHIN, headers=headers) as operator,
    ):
        exhausted(operator, service)  # this connection stays open
        before = len(service.lines)
        pid = service.process.pid
        _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 5, most))
        connections = [connected(stack, service.addresses[port]) for _ in range(15)]
        eventually(lambda: exhausted(operator, service) >= 2)
        assert any("no descriptors are left" in line for line in service.lines[before:])
        assert len(service.lines) - before <= 20
        for each in connections:
            each.close()
        eventually(lambda: status(f"{service.http}/readyz") == 200)
        assert passes(service)
        assert not any("the tokens" in line for line in service.lines)  # they could not be read, but did not change


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
NOTHING_MAY_BE_SENT = b"\x00\x04\x00\x00\x00\x00"  # the initial window of each request is 0
HEAD = (
    *((b":method", b"POST"), (b":scheme", b"http"), (b":path", METHOD.encode()), (b":authority", b"x")),
    *((b"content-type", b"application/grpc"), (b"te", b"trailers")),
)


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def test_a_client_that_leaves_without_reading_its_answers_leaves_no_trace_in_the_log(tmp_path):
    head = b"".join(b"".join((b"\0", *(bytes((len(text),)) + text for text in pair))) for pair in HEAD)
    message = request("shop", [("user", "ann")]).SerializeToString()
    body = b"\0" + len(message).to_bytes(4, "big") + message
    with Serving(rules_at(tmp_path, RULES)) as service:
        for _ in range(5):
            with ExitStack() as stack:
                connection = connected(stack, service.addresses["grpc"])
                connection.sendall(PREFACE + frame(4, 0, 0, NOTHING_MAY_BE_SENT))
                asked = (frame(1, 4, stream, head) + frame(0, 1, stream, body) for stream in range(1, 40, 2))
                connection.sendall(b"".join(asked))
                eventually(lambda: answered(service) % 20 == 0 and answered(service) > 0)
        assert eventually(lambda: answered(service) == 100)
    assert not [line for line in service.lines if "ExecuteBatchError" in line]


def answered(service):
    lines = httpx.get(f"{service.admin}/metrics").text.splitlines()
    count = next((line for line in lines if line.startswith("ratelimit_service_response_time_seconds_count")), "0")
    return float(count.split()[-1])


def test_a_body_that_has_not_arrived_when_the_service_ends_is_a_408_without_a_trace_in_the_log(tmp_path):
    with Serving(rules_at(tmp_path, RULES), "--grace", "1s") as service, ExitStack() as stack:
        connection = connected(stack, service.http.removeprefix("http://"))
        connection.sendall(b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        eventually(lambda: 'endpoint="/v1/check"' in httpx.get(f"{service.admin}/metrics").text)
        service.signal(signal.SIGTERM)
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert not [line for line in service.lines if "Traceback" in line]


def test_a_request_that_waits_for_its_turn_is_let_pass_when_the_service_ends(tmp_path):
    rule = "{name: bucket, limit: 2 per minute, algorithm: leaky_bucket, max_wait: 1m}"
    rules = f"domain: shop\nclient: {{secret: s, trusted_proxies: 127.0.0.1}}\nrules: [{rule}]\n"
    asked = b"GET /auth HTTP/1.1\r\nHost: x\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Uri: /\r\n\r\n"
    with Serving(rules_at(tmp_path, rules), "--grace", "1s") as service, ExitStack() as stack:
        first, second = (connected(stack, service.http.removeprefix("http://")) for _ in range(2))
        first.sendall(asked)
        assert first.recv(1000).startswith(b"HTTP/1.1 200 ")
        second.sendall(asked)
        eventually(lambda: 'endpoint="/auth"} 2' in httpx.get(f"{service.admin}/metrics").text)
        service.signal(signal.SIGTERM)
        answer = second.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert not [line for line in service.lines if "Traceback" in line]


def test_requests_that_the_store_has_not_decided_when_the_service_ends_are_503_without_a_trace(tmp_path, any_server):
    forwarded = {"X-Forwarded-Method": "GET", "X-Forwarded-Uri": "/"}
    checked = {"attributes": {"remote_address": "203.0.113.7"}}
    asked = {"/auth": {"headers": forwarded}, "/v1/check": {"json": checked}, "/v1/reset": {"json": checked}}
    with Proxy(any_server.port) as store, ThreadPoolExecutor() as threads:
        rule = "{name: all, by: ip, limit: 9 per minute}"
        storage = f"{{url: 'redis://127.0.0.1:{store.port}/0', timeout: 30s}}"
        client = "{secret: s, trusted_proxies: 127.0.0.1}"
        rules = rules_at(tmp_path, f"domain: shop\nclient: {client}\nstorage: {storage}\nrules: [{rule}]\n")
        with Serving(rules, "--grace", "1s") as service:
            store.black_hole()
            answers = [
                threads.submit(httpx.post, service.http + path, timeout=ASK_WITHIN, **parts)
                for path, parts in asked.items()
            ]
            for path in asked:
                eventually(lambda path=path: f'endpoint="{path}"}} 1' in httpx.get(f"{service.admin}/metrics").text)
            service.signal(signal.SIGTERM)
            assert [answer.result().status_code for answer in answers] == [503] * len(asked)
            assert service.ended() == 0
        assert not [line for line in service.lines if "Traceback" in line]


def test_answers_that_are_not_read_until_the_service_ends_leave_no_trace_in_the_log(tmp_path):
    checked = b'{"checks": [%s]}' % b",".join([b'{"attributes": {"a": "b"}}'] * 100)
    asked = b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(checked), checked)
    with Serving(rules_at(tmp_path, RULES), "--grace", "1s") as service, ExitStack() as stack:
        connection = connected(stack, service.http.removeprefix("http://"))
        connection.settimeout(0.5)
        with suppress(TimeoutError):  # the service no longer reads
            while True:
                connection.sendall(asked)
        service.signal(signal.SIGTERM)
        assert service.ended() == 0
    assert [line for line in service.lines if "Cancel 1 running task" in line]
    assert not [line for line in service.lines if "Traceback" in line]
