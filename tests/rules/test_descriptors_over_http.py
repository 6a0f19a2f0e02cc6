"""The seed's example, five marketing messages a day, and its login example, through real servers."""

import httpx
import pytest

from tests.support.apps import gunicorn, uvicorn, within_a_minute

APPS = "tests.rules.descriptor_apps:{}_{}"
EACH_SHELL = pytest.mark.parametrize(
    ("serve", "shell"), [pytest.param(uvicorn, "asgi", id="ASGI"), pytest.param(gunicorn, "wsgi", id="WSGI")]
)


def statuses(url, count, **headers):
    return [httpx.get(url, headers=headers).status_code for _ in range(count)]


@EACH_SHELL
def test_five_marketing_messages_a_day(serve, shell):
    within_a_minute()
    with serve(APPS.format(shell, "messages")) as app:
        assert statuses(app.url, 6, **{"X-Message-Type": "marketing"}) == [200] * 5 + [429]
        assert statuses(app.url, 6, **{"X-Message-Type": "transactional"}) == [200] * 6
        assert statuses(app.url, 6) == [200] * 6
        assert statuses(app.url, 4, **{"X-To-Number": "2061111111"}) == [200] * 3 + [429]
        assert statuses(app.url, 1, **{"X-To-Number": "2062222222"}) == [200]
        denied = httpx.get(app.url, headers={"X-Message-Type": "marketing"})
    assert denied.headers["x-ratelimit-limit"] == "5"
    assert denied.headers["x-ratelimit-remaining"] == "0"
    assert 0 < int(denied.headers["retry-after"]) <= 86_400


@EACH_SHELL
def test_five_logins_a_minute(serve, shell):
    with serve(APPS.format(shell, "login")) as app:
        within_a_minute()
        assert statuses(app.url, 6, **{"X-Auth-Type": "login"}) == [200] * 5 + [429]
        assert statuses(app.url, 6, **{"X-Auth-Type": "register"}) == [200] * 6
        denied = httpx.get(app.url, headers={"X-Auth-Type": "login"})
    assert 0 < int(denied.headers["retry-after"]) <= 60
