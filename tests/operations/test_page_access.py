"""Who may read the live page, under ASGI and under WSGI."""

import base64

import pytest

from ratelimit_mw import ManualClock
from ratelimit_mw.operations.page import Page, PageAccess
from tests.operations.visiting import BEARER, EACH_SHELL, TOKEN, WRONG, page_of
from tests.shells.asking import START, limiter


@pytest.fixture
def clock():
    return ManualClock(START)


@pytest.fixture
def access(clock):
    return PageAccess(TOKEN, clock)


def basic(text):
    return {"Authorization": f"Basic {base64.b64encode(text.encode()).decode()}"}


def status(access, token="wrong"):
    """The status with which a visitor with this token is refused, or None."""
    refusal = access.refusal("a", token)
    return refusal and refusal.status


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the live page needs a token of at least 16 characters"),
        ({"token": None}, "or a guard"),
        ({"token": ""}, "the token has 0 characters: it must have at least 16"),
        ({"token": "x"}, "the token has 1 character: it"),
        ({"token": "fifteen letters"}, "the token has 15 characters"),
        ({"token": 1234567890123456}, "the token is int, not a string"),
        ({"token": "a password with ä"}, "a header cannot send"),
        ({"token": "a token with a line\n"}, "a header cannot send"),
        ({"token": " a token after a space"}, "a header cannot send"),
        ({"guard": True}, "the guard is bool, not a function"),
    ],
)
def test_a_page_without_a_usable_token_or_guard_is_refused(options, message):
    with pytest.raises(ValueError, match="no open mode") as error:
        Page(limiter(), **options)
    assert message in str(error.value)


def test_a_refused_token_is_not_in_the_message():
    with pytest.raises(ValueError, match="15 characters") as error:
        Page(limiter(), token="fifteen letters")
    assert "fifteen" not in str(error.value)


@EACH_SHELL
@pytest.mark.parametrize("path", ["/", "/state.json"])
def test_a_visitor_with_the_token_is_admitted(visit, path):
    assert visit(page_of(), path, headers=BEARER).status == 200
    assert visit(page_of(), path, headers={"Authorization": f"bEARER  {TOKEN} "}).status == 200
    assert visit(page_of(), path, headers=basic(f"any user:{TOKEN}")).status == 200


@EACH_SHELL
def test_a_browser_asks_a_visitor_without_a_token(visit):
    answer = visit(page_of())
    assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Basic realm="live page", charset="UTF-8"')
    assert b"Send the token" in answer.body


@EACH_SHELL
@pytest.mark.parametrize("path", ["/", "/state.json"])
@pytest.mark.parametrize(
    "headers", [{}, WRONG, basic("u:wrong"), basic(f"{TOKEN}:"), {"Authorization": f"Digest {TOKEN}"}]
)
def test_no_data_are_shown_without_the_token(visit, path, headers):
    answer = visit(page_of(), path, headers=headers)
    assert answer.status == 401
    assert b"shop" not in answer.body
    assert b"ratelimit_" not in answer.body


@EACH_SHELL
def test_the_eleventh_wrong_attempt_of_an_address_is_answered_with_429(visit):
    page = page_of()
    assert [visit(page, headers=WRONG).status for _ in range(5)] == [401] * 5
    assert [visit(page, headers=basic(wrong)).status for wrong in (":x", "u", "u:", "ä:ö", "")] == [401] * 5
    assert visit(page).status == 401  # a request without a token is no attempt
    answer = visit(page, "/state.json", headers=WRONG)
    assert answer.status == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert visit(page, headers=basic(f":{TOKEN}")).status == 429  # the right token, too: a guesser would go on
    assert visit(page, headers=BEARER, ip="198.51.100.2").status == 200


@EACH_SHELL
def test_addresses_are_those_of_the_rules(visit):
    page = page_of(limiter(client={"trusted_proxies": ["10.0.0.0/8"]}))
    proxy, client = "10.0.0.1", {"X-Forwarded-For": "2001:db8::1"}
    assert {visit(page, ip=proxy, headers=WRONG | client).status for _ in range(10)} == {401}
    assert visit(page, ip=proxy, headers=BEARER | {"X-Forwarded-For": "2001:db8::2"}).status == 429  # of one network
    assert visit(page, ip=proxy, headers=BEARER).status == 200


@EACH_SHELL
def test_visitors_without_an_address_share_one_limit(visit):
    page = page_of()
    assert {visit(page, ip=None, headers=WRONG).status for _ in range(10)} == {401}
    assert visit(page, ip=None, headers=BEARER).status == 429


def test_wrong_attempts_are_forgotten_after_a_minute(access, clock):
    assert [status(access) for _ in range(11)] == [401] * 10 + [429]
    clock.advance(58.5)
    assert ("Retry-After", "2") in access.refusal("a", TOKEN).headers
    clock.advance(1.5)
    assert status(access, TOKEN) is None


def test_right_attempts_do_not_count(access):
    assert {status(access, TOKEN) for _ in range(200)} == {None}


@pytest.mark.parametrize("text", ["", "é", "\udcff", "\x00", "😀" * 50, "."])
def test_no_text_raises(access, text):
    assert status(access, text) == 401
