"""Storage URLs taken apart."""

import pytest

from ratelimit_mw.stores.redis.endpoint import shown, split


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        pytest.param("redis://localhost", ("redis", "", "localhost", "", ""), id="a host alone"),
        pytest.param("rediss://u:p@h:1/2?a=b#c", ("rediss", "u:p", "h:1", "/2", "a=b"), id="all there is"),
        pytest.param("redis://:a@b@h", ("redis", ":a@b", "h", "", ""), id="an @ in the password"),
        pytest.param("unix:///run/redis.sock?db=1", ("unix", "", "", "/run/redis.sock", "db=1"), id="a socket"),
        pytest.param("redis+sentinel://[::1],b:5/m", ("redis+sentinel", "", "[::1],b:5", "/m", ""), id="IPv6 first"),
        pytest.param("redis+cluster://b:5,[::1]:6", ("redis+cluster", "", "b:5,[::1]:6", "", ""), id="IPv6 last"),
    ],
)
def test_a_url_has_its_parts(url, parts):
    assert split(url) == parts


def test_what_has_no_parts_is_refused():
    with pytest.raises(ValueError, match="scheme://host:port, not 'localhost:6379'"):
        split("localhost:6379")


def test_a_log_shows_neither_user_nor_password_nor_options():
    assert shown("redis+sentinel://me:secret@[::1],b:5/main?password=secret") == "redis+sentinel://[::1],b:5/main"
