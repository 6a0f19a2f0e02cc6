"""Connections of the HTTP port that send no valid HTTP, or send it too slowly."""

import logging
import socket
from contextlib import contextmanager, suppress

import pytest

from ratelimit_mw.service import api, runner
from ratelimit_mw.service.api import http_app
from ratelimit_mw.service.runner import protocol_of
from tests.service.http_service import service, serving


@contextmanager
def connected(made):
    """Serve a service, and yield a raw connection and a client of it."""
    with (
        serving(http_app(made), protocol=protocol_of(made)) as client,
        socket.create_connection(("127.0.0.1", client.base_url.port), timeout=30) as raw,
    ):
        yield raw, client


@pytest.mark.parametrize("byte", [b"\0", b"\x0b", b"\x0c"])
def test_a_header_that_the_server_refuses_is_a_denial(byte):
    made = service()
    asked = b"GET /auth HTTP/1.1\r\nHost: x\r\nX-A: a%sb\r\n\r\n" % byte
    with connected(made) as (raw, client):
        raw.sendall(asked)
        answer = raw.makefile("rb").read()
        after = client.get("/livez").status_code
    made.limiter.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 403 Forbidden\r\n")
    assert b"\r\nx-ratelimit-status: 400\r\n" in head
    assert (body, after, made.refused) == (b"The request is not valid HTTP.\n", 200, {"malformed_http": 1})


@pytest.mark.parametrize("begin", [b"", b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"])
def test_a_connection_that_does_not_end_the_head_of_a_request_is_closed(begin, monkeypatch):
    monkeypatch.setattr(runner, "_FIRST_HEAD", 0.5)
    monkeypatch.setattr(runner, "_NEXT_HEAD", 0.5)
    made = service()
    with connected(made) as (raw, _), suppress(ConnectionResetError):
        raw.sendall(begin + b"GET /livez HTTP/1.1\r\n")
        while raw.recv(1000):
            pass
    made.limiter.close()
    assert made.refused == {"slow_http": 1}


def test_a_body_that_does_not_arrive_is_a_408(monkeypatch):
    monkeypatch.setattr(api, "BODY_WITHIN", 0.5)
    made = service()
    with connected(made) as (raw, _):
        raw.sendall(b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        answer = raw.makefile("rb").read()
    made.limiter.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert made.refused == {"slow_body": 1}


def test_clients_cannot_fill_the_log_with_what_is_not_http(caplog):
    made = service()
    with serving(http_app(made), protocol=protocol_of(made)) as client, caplog.at_level(logging.WARNING):
        for asked in (b"not http", b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c") * 12:
            with socket.create_connection(("127.0.0.1", client.base_url.port), timeout=30) as raw:
                raw.sendall(asked + b"\r\n\r\n")
                assert raw.recv(1000)
    made.limiter.close()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["a caller of --http or --admin sent what is not valid HTTP"] * 10


def test_errors_of_the_server_are_logged_each_time_and_its_warnings_never(caplog):
    made = service()
    protocol_of(made)
    made.limiter.close()
    for level in (logging.WARNING, logging.ERROR):
        for _ in range(2):
            logging.getLogger("uvicorn.error").log(level, "of the test")
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
