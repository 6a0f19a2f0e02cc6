"""Connections of the HTTP port that send no valid HTTP, or send too much of it, or too slowly."""

import json
import logging
import socket
from contextlib import contextmanager, suppress
from itertools import repeat

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
    assert body.startswith(b"The request is not valid HTTP/1.1")
    assert (after, made.refused) == (200, {"malformed_http": 1})


CHUNKED = b"POST /auth HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
LIVE = b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"
LAST = b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "piece"),
    [
        (b"", b"G"),
        (b"GET /", b"a"),
        (b"GET /auth HTTP/1.1\r\nX-A: ", b"a"),
        (b"GET /auth HTTP/1.1\r\n", b"X-A: a\r\n"),
        (b"GET /auth HTTP/1.1\r\n", b"a"),
        (CHUNKED + b"\r\n1;", b"a"),
        (CHUNKED + b"\r\n", b"1;abcdefgh\r\na\r\n"),
        (CHUNKED + b"\r\n0\r\n", b"X-A: a\r\n"),
        (CHUNKED + b"\r\n0\r\nX-A: ", b"a"),
    ],
    ids=["method", "path", "value", "headers", "name", "extension", "extensions", "trailers", "trailer"],
)
def test_a_request_that_does_not_end_is_refused(begin, piece):
    made = service()
    with connected(made) as (raw, client):
        raw.sendall(LIVE + begin)
        read = 0
        with suppress(ConnectionError):
            for each in repeat(piece * (65_536 // len(piece)), 1_000):
                raw.sendall(each)
                read += 1
        after = client.get("/livez").status_code
    made.limiter.close()
    assert (read < 1_000, after, made.refused["malformed_http"]) == (True, 200, 1)


def test_a_long_body_is_no_long_head():
    made = service()
    body = json.dumps({"attributes": {"ip": "203.0.113.7"}, "checks": "a" * 60_000}).encode()
    with connected(made) as (raw, _):
        for _ in range(10):
            raw.sendall(b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
            for start in range(0, len(body), 1_000):
                raw.sendall(body[start : start + 1_000])
        raw.sendall(b"POST /auth HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n" + bytes(1_000_000) + LAST)
        answers = raw.makefile("rb").read()
    made.limiter.close()
    assert (answers.count(b"HTTP/1.1 "), made.refused["malformed_http"]) == (12, 0)


def test_requests_that_wait_for_the_answers_to_earlier_ones_are_bounded():
    made = service()
    with connected(made) as (raw, client):
        with suppress(ConnectionError):
            raw.sendall(LIVE * 5_000)
            while raw.recv(65_536):
                pass
        after = client.get("/livez").status_code
    made.limiter.close()
    assert (after, made.refused) == (200, {"too_many_waiting": 1})


def test_the_service_reads_on_when_no_request_waits():
    """uvicorn reads on after each answer, so that ever more of these requests would wait."""
    made = service()
    body = b'{"attributes": {"ip": "203.0.113.7"}%s}' % (b" " * 8_000)
    asked = b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    with connected(made) as (raw, _):
        raw.sendall(asked * 2_000 + LAST)
        answers = raw.makefile("rb").read()
    made.limiter.close()
    assert (answers.count(b"HTTP/1.1 200 OK"), made.refused) == (2_001, {})


def test_trailers_are_no_headers():
    made = service()
    with connected(made) as (raw, _):
        raw.sendall(CHUNKED + b"\r\n0\r\nX-Original-Method: GET\r\nX-Original-URI: /\r\nConnection: close\r\n\r\n")
        answer = raw.recv(65_536)
    made.limiter.close()
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert made.refused == {"no_original_request": 1}


FRAMED = {
    "two lengths": b"Content-Length: 0\r\nContent-Length: 41",
    "a list of lengths": b"Content-Length: 0, 41",
    "a signed length": b"Content-Length: +0",
    "a length and chunks": b"Content-Length: 41\r\nTransfer-Encoding: chunked",
    "chunks and a length": b"Transfer-Encoding: chunked\r\nContent-Length: 41",
    "an unknown encoding": b"Transfer-Encoding: xchunked",
    "chunks that are not last": b"Transfer-Encoding: chunked, identity",
    "a space before a colon": b"Transfer-Encoding : chunked",
    "a folded line": b"Transfer-Encoding:\r\n chunked",
    "a bare line feed": b"X-A: a\nTransfer-Encoding: chunked",
    "a bare carriage return": b"X-A: a\rTransfer-Encoding: chunked",
    "an upgrade and a length": b"Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 41",
    "an upgrade and chunks": b"Connection: upgrade\r\nUpgrade: h2c\r\nTransfer-Encoding: chunked",
}


@pytest.mark.parametrize("lines", FRAMED.values(), ids=FRAMED)
def test_a_request_whose_end_readers_see_in_different_places_ends_its_connection(lines):
    """A proxy that sees it elsewhere would take a body for the request of another client, or the reverse."""
    made = service()
    with connected(made) as (raw, _):
        raw.sendall(b"POST /auth HTTP/1.1\r\nHost: x\r\n" + lines + b"\r\n\r\n0\r\n\r\n" + LIVE)
        answers = raw.makefile("rb").read()
    made.limiter.close()
    assert answers.startswith(b"HTTP/1.1 403 ")
    assert (answers.count(b"HTTP/1.1 "), made.refused["malformed_http"]) == (1, 1)


@pytest.mark.parametrize("length", [b"", b"Content-Length: 0\r\n"])
def test_a_request_without_a_body_that_asks_for_an_upgrade_is_the_last_of_its_connection(length):
    made = service()
    with connected(made) as (raw, _):
        raw.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: websocket\r\n%b\r\n" % length)
        answer = raw.makefile("rb").read()
    made.limiter.close()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nconnection: close\r\n" in answer
    assert made.refused == {}


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


@pytest.mark.parametrize("length", [b"65537", b"0" * 5000 + b"65537", b"18446744073709551615"], ids=len)
def test_a_client_that_waits_for_100_continue_is_told_at_once_that_its_body_is_too_long(length):
    made = service()
    with connected(made) as (raw, _):
        expecting = b"POST /v1/check HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        raw.sendall(expecting + b"Content-Length: " + length + b"\r\n\r\n")
        answer = raw.makefile("rb").read()
    made.limiter.close()
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert made.refused == {"body_too_long": 1}


def test_clients_cannot_fill_the_log_with_what_is_not_http(caplog):
    made = service()
    with serving(http_app(made), protocol=protocol_of(made)) as client, caplog.at_level(logging.WARNING):
        for asked in (b"not http", b"GET /livez HTTP/1.1\r\nHost: x\r\nConnection: upgrade\r\nUpgrade: h2c") * 12:
            with socket.create_connection(("127.0.0.1", client.base_url.port), timeout=30) as raw:
                raw.sendall(asked + b"\r\n\r\n")
                assert raw.recv(1000)
    made.limiter.close()
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["a caller of --http or --admin sent an invalid or too long HTTP request"] * 10


def test_errors_of_the_server_are_logged_each_time_and_its_warnings_never(caplog):
    made = service()
    protocol_of(made)
    made.limiter.close()
    for level in (logging.WARNING, logging.ERROR):
        for _ in range(2):
            logging.getLogger("uvicorn.error").log(level, "of the test")
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
