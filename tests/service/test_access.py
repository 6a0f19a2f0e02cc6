"""The tokens of `--token-file`: the form of the file, its errors, and what each token allows."""

import re
from pathlib import Path

import pytest

from ratelimit_mw.cli.common import diagnostics
from ratelimit_mw.errors import ConfigurationError
from ratelimit_mw.service.access import Access, read_tokens
from ratelimit_mw.service.settings import Settings

RIGHTS = ["check", "refund", "admin"]
CHECK, ADMIN = "check-0123456789abcdef", "admin-0123456789abcdef"


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "tokens"
    found.write_text(f"# who asks\n\ncheck {CHECK}\n  admin\t{ADMIN}  \n")
    return found


def test_a_file_has_a_role_and_a_token_on_each_line(path):
    assert read_tokens(path) == (("check", CHECK.encode()), ("admin", ADMIN.encode()))


@pytest.mark.parametrize(
    ("authorization", "check", "admin"),
    [
        (f"Bearer {CHECK}", True, False),
        (f"Bearer {ADMIN}", True, True),
        (f"bearer   {ADMIN} ", True, True),
        (f"Basic {ADMIN}", False, False),
        (ADMIN, False, False),
        (f"Bearer {ADMIN}x", False, False),
        (f"Bearer {ADMIN[:-1]}", False, False),
        ("Bearer ", False, False),
        ("Bearer \udcff\xff", False, False),
        ("", False, False),
        (None, False, False),
    ],
)
def test_a_token_allows_what_its_role_allows(path, authorization, check, admin):
    access = Access(Settings(rules="", token_file=path))
    assert access.by_token
    assert (access.allows("check", authorization), access.allows("admin", authorization)) == (check, admin)


def test_a_file_that_is_read_again_has_the_only_valid_tokens(path):
    access = Access(Settings(rules="", token_file=path))
    path.write_text("check another-0123456789\n")
    access.read()
    assert [access.allows("check", f"Bearer {token}") for token in (CHECK, "another-0123456789")] == [False, True]


def test_the_tokens_stay_valid_if_the_file_can_no_longer_be_used(path):
    access = Access(Settings(rules="", token_file=path))
    path.write_text("")
    with pytest.raises(ConfigurationError, match="has no token"):
        access.read()
    assert access.allows("check", f"Bearer {CHECK}")


def test_without_a_token_file_all_callers_may_ask():
    access = Access(Settings(rules=""))
    assert not access.by_token
    assert access.allows("admin", None)


@pytest.mark.parametrize(
    ("settings", "without", "with_check_token", "with_admin_token"),
    [
        pytest.param({}, ["check"], ["check"], ["check"], id="without a token file, the rest is refused"),
        pytest.param({"client_ca": Path("ca.pem")}, RIGHTS, RIGHTS, RIGHTS, id="a certificate allows everything"),
        pytest.param({"token_file": None}, ["check"], ["check", "refund"], RIGHTS, id="tokens allow the rest"),
        pytest.param(
            {"token_file": None, "client_ca": Path("ca.pem")},
            ["check"],
            ["check", "refund"],
            RIGHTS,
            id="both are needed",
        ),
    ],
)
def test_anyone_may_ask_for_decisions_and_the_rest_needs_a_token_or_a_certificate(
    path, settings, without, with_check_token, with_admin_token
):
    settings = {name: value or path for name, value in settings.items()}
    access = Access(Settings(rules="", allow_anyone=True, **settings))
    found = [
        [right for right in RIGHTS if access.allows(right, each)]
        for each in (None, f"Bearer {CHECK}", f"Bearer {ADMIN}")
    ]
    assert found == [without, with_check_token, with_admin_token]


def test_all_faults_of_a_file_are_reported_with_their_lines_and_without_tokens(tmp_path):
    path = tmp_path / "tokens"
    lines = [
        CHECK,
        f"root {CHECK}",
        "check short-secret",
        f"check {CHECK} {CHECK}",
        "check bad-character-in-secret:",
        f"check {CHECK}",
        f"admin {CHECK}",
        f"check {'s' * 5000}",
    ]
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigurationError) as raised:
        read_tokens(path)
    text = str(raised.value)
    assert re.findall(r": line (\d+): ", text) == ["1", "2", "3", "4", "5", "7", "8"]
    assert f"{path}: line 3: the token has 12 characters: it must have 16 to 4096 (a line is 'check TOKEN'" in text
    printed = "\n".join(diagnostics([(problem, "error") for problem in raised.value.problems]))
    for secret in (CHECK, "short-secret", "bad-character", "ssss"):
        assert secret not in text + printed


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "has no token"), (b"# none\n", "has no token"), (b"check \xff", "not ASCII"), (None, "cannot be read")],
)
def test_a_file_without_tokens_is_refused(tmp_path, content, message):
    path = tmp_path / "tokens"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=message):
        Access(Settings(rules="", token_file=path))
