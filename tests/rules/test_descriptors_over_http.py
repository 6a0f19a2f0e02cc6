"""The seed's example, five marketing messages a day, and its login example, through one ASGI and one WSGI server."""

import httpx

from tests.support.apps import gunicorn, uvicorn, within_a_minute

APPS = "tests.rules.descriptor_apps:{}_{}"


def statuses(url, count, **headers):
    return [httpx.get(url, headers=headers).status_code for _ in range(count)]


def test_five_marketing_messages_a_day():
    with uvicorn(APPS.format("asgi", "messages")) as app:
        assert statuses(app.url, 6, **{"X-Message-Type": "marketing"}) == [200] * 5 + [429]
        assert statuses(app.url, 6, **{"X-Message-Type": "transactional"}) == [200] * 6
        assert statuses(app.url, 6) == [200] * 6
        assert statuses(app.url, 4, **{"X-To-Number": "2061111111"}) == [200] * 3 + [429]
        assert statuses(app.url, 1, **{"X-To-Number": "2062222222"}) == [200]
        denied = httpx.get(app.url, headers={"X-Message-Type": "marketing"})
    assert denied.headers["x-ratelimit-limit"] == "5"
    assert denied.headers["x-ratelimit-remaining"] == "0"
    assert 0 < int(denied.headers["retry-after"]) <= 86_400


def test_five_logins_a_minute():
    with gunicorn(APPS.format("wsgi", "login")) as app:
        within_a_minute()
        assert statuses(app.url, 6, **{"X-Auth-Type": "login"}) == [200] * 5 + [429]
        assert statuses(app.url, 6, **{"X-Auth-Type": "register"}) == [200] * 6
        denied = httpx.get(app.url, headers={"X-Auth-Type": "login"})
    assert 0 < int(denied.headers["retry-after"]) <= 60
