"""What the apps of all frameworks do alike: the assertions that their tests share.

`client` is a client of an app with the rules of `tests.inside.rules`, `me` the headers of a client without requests.
"""

import time

import pytest
from starlette.websockets import WebSocketDisconnect
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.inside.rules import DENIED


def two_are_allowed(client, path, me):
    """Two of three requests are allowed, and all have the headers of a limit of two. Returns the responses."""
    answers = [client.get(path, headers=me) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    assert {answer.headers["X-RateLimit-Limit"] for answer in answers} == {"2"}
    assert 3500 <= int(answers[-1].headers["Retry-After"]) <= 3600
    assert answers[-1].headers["Cache-Control"] == "no-store"
    return answers


def two_are_allowed_and_the_third_is_denied_by_the_section(client, path, me):
    """As `two_are_allowed`, and the denial is that of the `response` section. Returns the responses."""
    answers = two_are_allowed(client, path, me)
    assert answers[-1].json() == DENIED
    assert answers[-1].headers["Content-Type"] == "application/json"
    return answers


def a_denied_head_request_has_the_length_of_get(client, path, me):
    """And no body."""
    answers = [client.head(path, headers=me) for _ in range(3)]
    assert [(answer.status_code, answer.content) for answer in answers] == [(200, b""), (200, b""), (429, b"")]
    assert answers[-1].headers["Content-Length"] == str(len('{"message": "2 of mail, that is all"}'))


def the_second_waits_for_its_turn(client, me):
    """The rule has ten turns a second."""
    began = time.monotonic()
    assert [client.get("/turns", headers=me).status_code for _ in range(2)] == [200, 200]
    assert time.monotonic() - began >= 0.09


def a_third_websocket_is_refused(client, path, me):
    """With a response, where the server can send one."""
    if not hasattr(client, "websocket_connect"):  # a client of a real server
        url = f"ws{str(client.base_url).removeprefix('http')}{path}"
        for left in ("1", "0"):
            with connect(url, additional_headers=me) as socket:
                assert socket.recv() == left
        with pytest.raises(InvalidStatus) as refused, connect(url, additional_headers=me):
            pass
        assert refused.value.response.status_code == 429
        assert refused.value.response.headers["Retry-After"]
        return
    for left in ("1", "0"):
        with client.websocket_connect(path, headers=me) as socket:
            assert socket.receive_text() == left
    with pytest.raises(WebSocketDisconnect) as closed, client.websocket_connect(path, headers=me):
        pass
    assert closed.value.status_code == 429
