"""Storage URLs taken apart."""

import pytest

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw.stores import kind_of
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
    assert split(url).groups("") == parts


def test_what_has_no_parts_is_refused():
    with pytest.raises(ValueError, match="scheme://host:port, not 'localhost:6379'"):
        split("localhost:6379")


def test_a_log_shows_neither_user_nor_password_nor_options():
    assert shown("redis+sentinel://me:secret@[::1],b:5/main?password=secret") == "redis+sentinel://[::1],b:5/main"


@pytest.mark.parametrize("tail", ["127.0.0.1:1/0", "127.0.0.1:1", "127.0.0.1:1/0?tls=true"])
@pytest.mark.parametrize("password", ["hunt/er2", "hunt#er2", "hunt?er2", "123/er2", "123#er2", "123?er2", "a@b/er2"])
@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+sentinel", "redis+cluster"])
@pytest.mark.parametrize("given", ["argument", "file", "rules"])
def test_a_password_that_is_not_encoded_is_refused_and_not_shown(scheme, password, tail, given):
    url = f"{scheme}://u:{password}@{tail}"
    rules = {"domain": "d", "rules": [{"name": "a", "limit": "1 per day"}]}
    written = {**rules, "storage": {"url": url}} if given == "file" else rules
    with pytest.raises(ConfigurationError, match="write %2F, %3F and %23 in a password") as error:
        RateLimiter(url if given == "rules" else written, storage=url if given == "argument" else None)
    assert "er2" not in str(error.value)
    assert "hunt" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "redis://u:p%2Fw@[::1]:6379/0?client_name=a@b",
        "redis://u:a@b@localhost:6379/",
        "unix://u:p@/run/redis@1.sock?db=1",
        "unix:///run/redis@1.sock",
        "redis+sentinel://u:p@h1:1,[::1]:2,h3/mymaster/0?sentinel_password=a@b",
        "redis+cluster://h1,h2:7000",
    ],
)
def test_usual_urls_are_not_refused(url):
    assert kind_of(url).server


def test_a_shared_file_is_refused_on_windows(monkeypatch):
    rules = {"domain": "d", "rules": [{"name": "a", "limit": "1 per day"}]}
    with monkeypatch.context() as on_windows:
        on_windows.setattr("os.name", "nt")
        with pytest.raises(ConfigurationError, match="does not work on Windows: use memory:// or redis://"):
            RateLimiter(rules, storage="lmdb:///counters")
