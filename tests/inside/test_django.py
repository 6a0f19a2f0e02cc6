"""The middleware and the decorator in a Django project: in this process on memory, and under two servers on Redis."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from tests.inside.alike import (
    the_second_waits_for_its_turn,
    two_are_allowed,
    two_are_allowed_and_the_third_is_denied_by_the_section,
)
from tests.inside.clients import client_of, in_process
from tests.inside.rules import DENIED
from tests.support.patience import eventually

WSGI = "tests.inside.django_app:application"


client = client_of(
    lambda: in_process(WSGI),
    gunicorn={"app": WSGI, "args": ["--threads", "4"]},
    uvicorn={"app": "tests.inside.django_app:asgi"},
)


@pytest.fixture
def name():
    """A user whom nobody has seen before."""
    return uuid4().hex[:15]


@pytest.mark.parametrize("path", ["/mail", "/awaited/ann"])
def test_a_decorated_view(client, me, path):
    two_are_allowed_and_the_third_is_denied_by_the_section(client, path, me)


def test_the_middleware_s_own_denial(client, me):
    answers = [client.get("/free", headers=me) for _ in range(10)]
    assert [answer.status_code for answer in answers] == [200] * 9 + [429]
    assert [int(answer.headers["X-RateLimit-Remaining"]) for answer in answers] == [8, 7, 6, 5, 4, 3, 2, 1, 0, 0]
    assert answers[-1].json() == {"message": "9 of everything, that is all"}
    head = client.head("/free", headers=me)
    assert (head.status_code, head.content) == (429, b"")


def test_a_cost_times_the_rule_s(client, me):
    assert [client.get("/export", headers=me).status_code for _ in range(3)] == [200, 200, 429]


def test_a_class_of_views_waits_for_its_turn(client, me):
    the_second_waits_for_its_turn(client, me)


@pytest.mark.parametrize("path", ["/by-hand", "/awaited-by-hand"])
def test_by_hand(client, me, path):
    answer = client.get(path, headers=me)
    assert (answer.json(), answer.headers["X-RateLimit-Remaining"]) == ({"left": 1}, "7")


def test_a_view_that_fails_is_counted(client, me):
    assert client.get("/fails", headers=me).status_code == 500
    assert client.get("/free", headers=me).headers["X-RateLimit-Remaining"] == "7"


def test_what_counts_by_its_status(client, me):
    statuses = [200, 401, 200, 401, 200, 401]
    answers = [client.get("/login", params={"status": status}, headers=me) for status in statuses]
    assert [answer.status_code for answer in answers] == [200, 401, 200, 401, 429, 429]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["2", "1", "1", "0", "0", "0"]


@pytest.mark.parametrize("path", ["/slots/whole", "/slots/stream", "/slots/awaited"])
def test_what_is_in_flight(request, client, me, path, tmp_path):
    if path == "/slots/awaited" and "uvicorn" not in request.node.name:
        pytest.skip("WSGI has no loop to stream it")
    for _ in range(3):  # a server closes a stream a moment after its last byte
        eventually(lambda: client.get(path, headers=me).status_code == 200)
    if "uvicorn" not in request.node.name:  # without a server, a response is whole before the next request
        return
    with ThreadPoolExecutor(2) as pool:
        until = tmp_path / "until"
        held = pool.submit(eventually, lambda: passed(client, path, me, until))
        try:
            eventually((tmp_path / "until.held").exists)
            assert client.get(path, headers=me).status_code == 429
        finally:
            until.touch()
        assert held.result()
    eventually(lambda: client.get(path, headers=me).status_code == 200)


def passed(client, path, me, until):
    return client.get(path, params={"until": str(until)}, headers=me).status_code == 200


def test_a_user_who_is_logged_in(client, me, name):
    session = client.get(f"/sign-in/{name}", headers=me).cookies
    cookie = {"Cookie": f"sessionid={session['sessionid']}"}
    client.cookies.clear()
    assert [client.get("/orders").text for _ in range(3)] == ["nobody"] * 3  # whom no rule counts
    answers = [client.get("/orders", headers=cookie) for _ in range(3)]
    assert [(answer.status_code, answer.text[:20]) for answer in answers[:2]] == [(200, name[:20])] * 2
    assert answers[2].status_code == 429


def test_a_user_whom_rest_framework_recognises(client, name):
    token = {"Authorization": f"Token {name}"}
    first = client.get("/rest/class", headers=token)
    assert (first.json(), first.headers["X-RateLimit-Remaining"]) == ({"user": name}, "1")
    second = client.get("/rest/set", headers=token)
    assert (second.json(), second.headers["X-RateLimit-Remaining"]) == ({"user": name, "action": "list"}, "0")
    assert client.post("/rest/class", headers=token).status_code == 429
    assert client.get("/rest/function", headers=token).status_code == 429


@pytest.mark.parametrize("path", ["/rest/class", "/rest/none", "/free"])
@pytest.mark.parametrize("token", ["bad", "broken", ""])
def test_a_client_without_a_valid_token_is_limited_by_address(client, me, path, token):
    try:
        answer = client.get(path, headers={"Authorization": f"Token {token}" if token else "", **me})
    except ValueError:
        assert token == "broken"  # in this process what the view itself raises comes here
        return
    expected = {"/free": 200, "/rest/none": 404, "/rest/class": {"bad": 403, "broken": 500, "": 200}[token]}
    assert answer.status_code == expected[path]
    assert answer.headers["X-RateLimit-Limit"] == "9"


def test_a_view_s_own_authentication(client, me, name):
    answer = client.get("/rest/open", headers={"Authorization": f"Token {name}", **me})
    assert (answer.json(), answer.headers["X-RateLimit-Limit"]) == ({"user": "AnonymousUser"}, "9")


def test_a_decorated_function_of_rest_framework(client, me):
    answers = [client.get("/rest/function", headers=me) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[-1].json() == DENIED


CLASSES = ["/class", "/subclass", "/awaited-class", "/awaited-by-django", "/methods/ann", "/awaited-methods/ann"]


@pytest.mark.parametrize("path", [*CLASSES, "/decorated/class", "/decorated/methods", "/decorated/set"])
def test_a_decorated_class_or_method_shares_its_rule(client, me, path):
    answers = [client.request(method, path, headers=me) for method in ("GET", "POST", "GET")]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["1", "0", "0"]
    assert answers[-1].json() == DENIED


@pytest.mark.parametrize("path", ["/methods/ann", "/awaited-methods/ann"])
def test_a_method_that_is_not_decorated_is_free(client, me, path):
    assert [client.put(path, headers=me).text for _ in range(4)] == ["put ann"] * 4
    assert client.options(path, headers=me).status_code == 200


@pytest.mark.parametrize("path", ["/throttled/class", "/throttled/function", "/throttled/action"])
def test_a_throttle_denies_in_the_words_of_rest_framework_with_our_headers(client, me, path):
    denied = two_are_allowed(client, path, me)[-1]
    wait = denied.headers["Retry-After"]
    assert denied.json() == {"detail": f"Request was throttled. Expected available in {wait} seconds."}


def test_a_throttle_charges_its_cost_and_all_throttles_of_a_view_are_asked(client, me):
    client.get("/throttled/twice", headers=me)
    answers = [client.get("/export", headers=me) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]  # 4 of 10 are charged by the throttle, 4 here


def test_a_view_without_a_scope_is_not_throttled(client, me):
    answers = [client.get("/throttled/set", headers=me) for _ in range(4)]
    assert [answer.json() for answer in answers] == [{"free": True}] * 4
    assert {answer.headers["X-RateLimit-Limit"] for answer in answers} == {"9"}


def test_a_throttle_whose_rule_never_allows_tells_no_wait(client, me):
    denied = client.get("/throttled/away", headers=me)
    assert (denied.status_code, denied.json()) == (429, {"detail": "Request was throttled."})
    assert "Retry-After" not in denied.headers
    assert denied.headers["X-RateLimit-Limit"] == "0"


def test_a_rate_of_a_throttle_is_shared_by_its_views_and_a_limit_of_a_view_is_not(client, me):
    paths = ("/throttled/rate", "/throttled/rate/too", "/throttled/rate")
    answers = [client.get(path, headers=me) for path in paths]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[-1].headers["X-RateLimit-Limit"] == "2"
    answers = [
        client.get(path, headers=me) for path in ("/throttled/limit", "/throttled/limit", "/throttled/limit/too")
    ]
    assert [answer.headers["X-RateLimit-Remaining"] for answer in answers] == ["1", "0", "1"]


def test_inline_limits_hold_over_all_workers_and_each_client_has_its_own(client, me):
    answers = [client.get("/inline", headers=me) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert answers[0].headers["X-RateLimit-Remaining"] == "1"
    assert answers[2].json() == {"message": "2 of tests.inside.django_app:inline[1], that is all"}
    assert client.get("/inline", headers={"X-Client": uuid4().hex}).status_code == 200
