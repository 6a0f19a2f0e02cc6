"""Who may read the live page, under ASGI and under WSGI."""

import base64
import hashlib
import hmac

import pytest

from ratelimit_mw import ManualClock
from ratelimit_mw.operations.page import Page
from ratelimit_mw.operations.page.access import LASTS, Access, CredentialCheck
from tests.operations.visiting import BEARER, EACH_SHELL, TOKEN, WRONG, cookie_of, log_in, page_of
from tests.shells.asking import START, limiter


@pytest.fixture
def clock():
    return ManualClock(START)


@pytest.fixture
def access(clock):
    return Access(TOKEN, clock)


def guess(access, address, times, token="wrong"):
    return [access.test_token(address, token).check for _ in range(times)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "the live page needs a token of at least 16 characters"),
        ({"token": None}, "or a guard"),
        ({"token": ""}, "the token has 0 characters: it must have at least 16"),
        ({"token": "x"}, "the token has 1 character: it"),
        ({"token": "fifteen letters"}, "the token has 15 characters"),
        ({"token": 1234567890123456}, "the token is int, not a text"),
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
@pytest.mark.parametrize("path", ["/", "/state.json", "/metrics"])
def test_a_visitor_with_the_token_is_admitted(visit, path):
    assert visit(page_of(), path, headers=BEARER).status == 200
    assert visit(page_of(), path, headers={"Authorization": f"bEARER  {TOKEN} "}).status == 200


@EACH_SHELL
def test_a_visitor_without_credentials_gets_the_form(visit):
    page = page_of()
    answer = visit(page)
    assert answer.status == 401
    assert b'<form method="post" action="login"' in answer.body
    assert answer.headers["www-authenticate"].startswith("Bearer")


@EACH_SHELL
@pytest.mark.parametrize("path", ["/state.json", "/metrics"])
@pytest.mark.parametrize("headers", [{}, WRONG, {"Authorization": "Basic dTpw"}, {"Cookie": "ratelimit_page=1.x"}])
def test_no_data_are_shown_without_the_token(visit, path, headers):
    answer = visit(page_of(), path, headers=headers)
    assert answer.status == 401
    assert b"shop" not in answer.body
    assert b"ratelimit_" not in answer.body


@EACH_SHELL
def test_a_form_with_the_token_sets_a_cookie_that_admits(visit):
    page = page_of()
    answer = log_in(visit, page)
    assert (answer.status, answer.headers["location"]) == (303, "./")
    assert answer.headers["set-cookie"].partition("; ")[2] == "Path=/_limits; Max-Age=43200; HttpOnly; SameSite=Strict"
    assert visit(page, "/state.json", headers=cookie_of(answer)).status == 200
    other = page_of()  # as another process, or the same one after a restart
    assert visit(other, "/state.json", headers={"Cookie": f"a=b; {cookie_of(answer)['Cookie']}; c"}).status == 200


@EACH_SHELL
def test_the_cookie_is_for_https_only_if_the_page_is_served_so(visit):
    assert log_in(visit, page_of(), scheme="https").headers["set-cookie"].endswith("; Secure")
    forwarded = log_in(visit, page_of(), headers={"X-Forwarded-Proto": "https, http"})
    assert forwarded.headers["set-cookie"].endswith("; Secure")


@EACH_SHELL
def test_a_form_with_a_wrong_token_is_answered_with_the_form(visit):
    answer = log_in(visit, page_of(), "this is <not> the token")
    assert answer.status == 401
    assert b"The token is not right." in answer.body
    assert b"not&gt;" not in answer.body
    assert "set-cookie" not in answer.headers


@EACH_SHELL
def test_a_logout_removes_the_cookie(visit):
    answer = visit(page_of(), "/logout", method="POST")
    assert answer.status == 303
    assert "ratelimit_page=; Path=/_limits; Max-Age=0" in answer.headers["set-cookie"]


@EACH_SHELL
def test_the_eleventh_wrong_attempt_of_an_address_is_answered_with_429(visit):
    page = page_of()
    assert [visit(page, headers=WRONG).status for _ in range(5)] == [401] * 5
    assert [log_in(visit, page, "wrong").status for _ in range(5)] == [401] * 5
    answer = visit(page, "/state.json", headers=WRONG)
    assert answer.status == 429
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    assert log_in(visit, page).status == 429  # the right token, too: otherwise a guesser would go on
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


@EACH_SHELL
def test_a_form_of_another_site_uses_no_attempt(visit):
    page = page_of()
    for site in ("cross-site", "same-site"):
        statuses = {log_in(visit, page, "wrong", headers={"Sec-Fetch-Site": site}).status for _ in range(11)}
        assert statuses == {403}
    assert log_in(visit, page, headers={"Sec-Fetch-Site": "same-origin"}).status == 303


@EACH_SHELL
def test_a_wrong_or_expired_cookie_is_removed(visit, clock):
    page = page_of(limiter(clock=clock))
    old = cookie_of(log_in(visit, page))
    clock.advance(LASTS)
    for cookie, message in ((old, b"has expired"), ({"Cookie": "ratelimit_page=x"}, b"not right")):
        answer = visit(page, headers=cookie)
        assert answer.status == 401
        assert message in answer.body
        assert "ratelimit_page=; " in answer.headers["set-cookie"]
    assert "set-cookie" not in visit(page, headers=old | WRONG).headers


def test_wrong_attempts_are_forgotten_after_a_minute(access, clock):
    assert guess(access, "a", 11) == [CredentialCheck.WRONG] * 10 + [CredentialCheck.TOO_MANY]
    clock.advance(58.5)
    assert access.test_token("a", TOKEN) == (CredentialCheck.TOO_MANY, 2)
    clock.advance(1.5)
    assert access.test_token("a", TOKEN).check is CredentialCheck.ADMITTED


def test_right_attempts_do_not_count(access):
    assert {access.test_token("a", TOKEN).check for _ in range(200)} == {CredentialCheck.ADMITTED}


def test_many_addresses_have_a_hundred_wrong_attempts_together(access):
    assert access.test_token("operator", TOKEN).check is CredentialCheck.ADMITTED
    assert {check for each in range(100) for check in guess(access, f"bot {each}", 1)} == {CredentialCheck.WRONG}
    assert access.test_token("another", TOKEN).check is CredentialCheck.TOO_MANY
    # An address that has sent the right token before is not locked out by those of others, but by its own.
    assert access.test_token("operator", TOKEN).check is CredentialCheck.ADMITTED
    assert guess(access, "operator", 11) == [CredentialCheck.WRONG] * 10 + [CredentialCheck.TOO_MANY]


def test_an_address_is_known_for_as_long_as_a_login(access, clock):
    access.test_token("operator", TOKEN)
    clock.advance(LASTS)
    guesses = [guess(access, f"bot {each}", 1) for each in range(100)]
    assert guesses[-1] == [CredentialCheck.WRONG]
    assert access.test_token("operator", TOKEN).check is CredentialCheck.TOO_MANY


def test_a_login_goes_on_whatever_its_address_attempts(access):
    cookie = access.cookie()
    guess(access, "a", 11)
    assert access.admit("a", bearer=None, cookies=[cookie]).check is CredentialCheck.ADMITTED


def test_a_cookie_of_another_process_is_tested_within_the_limits(access, clock):
    cookie = Access(TOKEN, clock).cookie()
    guess(access, "a", 10)
    assert access.admit("a", bearer=None, cookies=[cookie]).check is CredentialCheck.TOO_MANY
    assert access.admit("b", bearer=None, cookies=[cookie]).check is CredentialCheck.ADMITTED
    assert access.admit("a", bearer=None, cookies=[cookie]).check is CredentialCheck.ADMITTED  # now it is known


def test_a_cookie_that_is_signed_for_a_guessed_token_is_a_wrong_attempt(access):
    forged = [Access(f"guess number {each:>5}", ManualClock(START)).cookie() for each in range(3)] * 4
    checks = [access.admit("a", bearer=None, cookies=[cookie]).check for cookie in forged]
    assert checks == [CredentialCheck.WRONG] * 10 + [CredentialCheck.TOO_MANY] * 2


@EACH_SHELL
def test_a_login_goes_on_beside_cookies_of_others(visit):
    page = page_of()
    login = cookie_of(log_in(visit, page))["Cookie"]
    tossed = {"Cookie": f"ratelimit_page=1.x; ratelimit_page={'y' * 50}; {login}"}
    assert {visit(page, "/state.json", headers=tossed).status for _ in range(12)} == {200}
    other = page_of()  # as another process, which does not know the cookie
    assert {visit(other, "/state.json", headers=tossed).status for _ in range(12)} == {200}


def test_wrong_cookies_of_one_request_are_one_attempt(access):
    tossed = ["1.x", "2.y", "3.z"]
    checks = [access.admit("a", bearer=None, cookies=tossed).check for _ in range(11)]
    assert checks == [CredentialCheck.WRONG] * 10 + [CredentialCheck.TOO_MANY]


def test_only_five_cookies_of_a_request_are_tested(access, clock):
    for right in (access.cookie(), Access(TOKEN, clock).cookie()):
        assert access.admit("a", bearer=None, cookies=["1.x"] * 4 + [right]).check is CredentialCheck.ADMITTED
        assert access.admit("a", bearer=None, cookies=["1.x"] * 5 + [right]).check is CredentialCheck.WRONG


def test_a_wrong_cookie_beside_an_expired_one_is_an_attempt(access, clock):
    old = access.cookie()
    clock.advance(LASTS)
    checks = [access.admit("a", bearer=None, cookies=[old, "1.x"]).check for _ in range(11)]
    assert checks == [CredentialCheck.WRONG] * 10 + [CredentialCheck.TOO_MANY]
    assert access.admit("b", bearer=None, cookies=[old, old]).check is CredentialCheck.EXPIRED


def test_an_expired_cookie_is_not_a_wrong_attempt(access, clock):
    cookie = access.cookie()
    clock.advance(LASTS - 1)
    assert access.admit("a", bearer=None, cookies=[cookie]).check is CredentialCheck.ADMITTED
    clock.advance(1)
    assert {access.admit("a", bearer=None, cookies=[cookie]).check for _ in range(20)} == {CredentialCheck.EXPIRED}


@pytest.mark.parametrize("change", [lambda text: "9" + text, lambda text: text[:-1], lambda text: text + "A"])
def test_a_changed_cookie_is_wrong(access, change):
    assert access.admit("a", bearer=None, cookies=[change(access.cookie())]).check is CredentialCheck.WRONG


def test_a_cookie_is_signed_with_a_key_derived_from_the_token(access):
    expires, _, signature = access.cookie().partition(".")
    assert int(expires) == START + LASTS
    key = hashlib.pbkdf2_hmac("sha256", TOKEN.encode(), b"ratelimit_mw live page", 20_000)
    digest = hmac.digest(key, expires.encode(), "sha256")
    assert base64.urlsafe_b64decode(signature + "=") == digest


def test_a_token_takes_precedence_over_a_cookie(access):
    assert access.admit("a", bearer="wrong", cookies=[access.cookie()]).check is CredentialCheck.WRONG


@pytest.mark.parametrize("text", ["", "é", "\udcff", "\x00", "😀" * 50, "1." + "é" * 43, "."])
def test_no_text_raises(access, text):
    assert access.test_token("a", text).check is CredentialCheck.WRONG
    assert access.admit("a", bearer=None, cookies=[text]).check is CredentialCheck.WRONG


def test_few_cookies_and_addresses_are_remembered(access):
    first = access.cookie()
    for each in range(1_000):
        access.test_token(f"address {each}", TOKEN)
        access.admit("a", bearer=None, cookies=[first])
    access.test_token("address 0", TOKEN)
    access.test_token("one more", TOKEN)
    assert len(access._addresses) == 1_000
    assert "address 0" in access._addresses
    assert "address 1" not in access._addresses


def test_the_child_of_a_fork_takes_a_lock_of_its_own(access):
    with access._lock:  # as a thread of the parent may have done
        access.after_fork()
        assert access.test_token("a", TOKEN).check is CredentialCheck.ADMITTED
