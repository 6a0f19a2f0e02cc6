"""The setting RATELIMIT of a Django project, as tests change it."""

import pytest
from django.core.checks import run_checks
from django.http import HttpResponse
from django.test import Client
from django.test.utils import override_settings
from django.urls import path

from ratelimit_mw import RateLimiter
from ratelimit_mw.django import limited, limiter
from ratelimit_mw.testing import limiter_of
from tests.inside import django_settings
from tests.inside.test_django_middleware import GET_ASGI, GET_WSGI, awaited, blocking

ONE = {"domain": "one", "storage": {"timeout": "5s"}, "rules": [{"name": "one", "limit": "1 per day"}]}
FREE = {"domain": "free", "storage": {"timeout": "5s"}, "rules": [{"name": "mail", "limit": "100 per day"}]}


@pytest.mark.parametrize(("ask", "get"), [(awaited, GET_ASGI), (blocking, GET_WSGI)], ids=["ASGI", "WSGI"])
def test_a_changed_setting_applies_to_an_app_that_is_already_made(ask, get):
    with override_settings(RATELIMIT=FREE):
        app = get()

        def statuses():
            return [answer.status_code for answer in ask(["/free"] * 2, app=app)]

        assert statuses() == [200, 200]
        with override_settings(RATELIMIT=ONE):
            assert statuses() == [200, 429]
            with override_settings(RATELIMIT=None):
                assert statuses() == [200, 200]
            assert statuses() == [429, 429]
        assert statuses() == [200, 200]


@pytest.mark.parametrize(("ask", "get"), [(awaited, GET_ASGI), (blocking, GET_WSGI)], ids=["ASGI", "WSGI"])
def test_without_limits_every_view_is_served(ask, get):
    with override_settings(RATELIMIT=None):
        answers = ask(["/mail", "/awaited/ann", "/rest/function"] * 4, app=get())
    assert [answer.status_code for answer in answers] == [200] * 12
    assert not any("X-RateLimit-Limit" in answer.headers for answer in answers)


@pytest.mark.parametrize("method", ["get", "post"])
def test_without_limits_a_view_whose_limit_names_methods_is_served(method):
    @limited("1 per day", methods=["POST"])
    def index(request):
        return HttpResponse("x")

    with override_settings(RATELIMIT=None, ROOT_URLCONF=(path("", index),)):
        assert [getattr(Client(), method)("/").status_code for _ in range(2)] == [200] * 2


def test_the_system_check_takes_none():
    with override_settings(RATELIMIT=None):
        assert [found for found in run_checks() if found.id.startswith("ratelimit_mw")] == []


def test_the_limiter_of_a_project_is_found_by_its_application_and_its_client():
    with RateLimiter(django_settings.RATELIMIT, storage="memory://") as engine, override_settings(RATELIMIT=engine):
        assert limiter_of(GET_WSGI()) is limiter_of(GET_ASGI()) is limiter_of(Client()) is limiter() is engine


def test_a_project_without_the_middleware_has_no_limiter():
    with override_settings(MIDDLEWARE=[]), pytest.raises(LookupError):
        limiter_of(GET_WSGI())
