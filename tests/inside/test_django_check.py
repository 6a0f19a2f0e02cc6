"""`manage.py check` in a project of its own: it reports rules that cannot be used, and misspelt names."""

import os
import subprocess
import sys

import pytest

from tests.support.apps import ROOT

SETTINGS = """
SECRET_KEY = "for tests"
ROOT_URLCONF = "urls"
INSTALLED_APPS = ["ratelimit_mw.django"]
MIDDLEWARE = ["ratelimit_mw.django.RateLimitMiddleware"]
RATELIMIT = "rules.yaml"
"""
URLS = """
from django.http import HttpResponse
from django.urls import path
from ratelimit_mw.django import limited

urlpatterns = [path("mail", limited("mail")(lambda request: HttpResponse("sent")))]
"""
RULES = "domain: d\nrules:\n  - {name: mail, by: user, limit: 5 per hour, on_demand: true}\n"


@pytest.fixture
def checked(tmp_path):
    """The exit status and the output of `manage.py check` with these rules and this URLconf."""

    def run(rules, urls=URLS):
        for name, content in (("settings.py", SETTINGS), ("urls.py", urls), ("rules.yaml", rules)):
            (tmp_path / name).write_text(content)
        environ = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        command = [sys.executable, "-m", "django", "check"]
        done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    return run


def test_a_project_with_good_rules_passes_without_a_warning_of_users(checked):
    status, output = checked(RULES)
    assert (status, "no issues" in output) == (0, True), output
    assert "counts by user" not in output


def test_a_broken_file_is_an_error_at_its_line(checked):
    status, output = checked(RULES.replace("limit:", "limt:"))
    assert status == 1
    assert "ratelimit_mw.E001) rules.yaml:3:" in output
    assert "did you mean 'limit'?" in output


def test_a_misspelt_name_in_a_decorator_is_an_error(checked):
    status, output = checked(RULES, URLS.replace('"mail")(', '"mial")('))
    assert status == 1
    assert "ratelimit_mw.E003) the app asks for the rule 'mial', which does not exist (did you mean 'mail'?)" in output


def test_a_file_that_does_not_exist_and_a_broken_url_configuration_are_both_reported(checked):
    status, output = checked("", "import nowhere")
    assert status == 1
    assert "nowhere" in output


THROTTLED = """
from django.urls import include, path
from rest_framework.routers import SimpleRouter
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet
from ratelimit_mw.drf import RateLimitThrottle


class Daily(RateLimitThrottle):
    scope = "mail"


class Mail(APIView):
    throttle_classes = (RateLimitThrottle, Daily)
    throttle_scope = "mail"


class Mails(ViewSet):
    throttle_classes = (RateLimitThrottle,)
    throttle_scope = "mail"

    def list(self, request):
        raise AssertionError


router = SimpleRouter()
router.register("mails", Mails, basename="mails")
urlpatterns = [path("mail", Mail.as_view()), path("free", APIView.as_view()), path("api/", include(router.urls))]
"""


def test_scopes_of_throttles_that_are_rules_pass(checked):
    status, output = checked(RULES, THROTTLED)
    assert (status, "no issues" in output) == (0, True), output


def test_a_scope_that_is_a_limit_with_a_mistake_hides_no_other_error(checked):
    throttle, view, view_set = THROTTLED.split('scope = "mail"')[:3]
    rest = THROTTLED.split('scope = "mail"', 3)[3]
    urls = f'{throttle}scope = "mail"{view}scope = "5 per minuet"{view_set}scope = "mial"{rest}'
    status, output = checked(RULES, urls.replace("(RateLimitThrottle, Daily)", "(RateLimitThrottle,)"))
    assert status == 1
    assert "ratelimit_mw.E003) limited('5 per minuet')" in output
    assert "ratelimit_mw.E003) the app asks for the rule 'mial', which does not exist (did you mean 'mail'?)" in output


@pytest.mark.parametrize("place", [0, 1, 2], ids=["the throttle", "the view", "the view set"])
def test_a_misspelt_scope_of_a_throttle_is_an_error(checked, place):
    parts = THROTTLED.split('scope = "mail"')
    urls = 'scope = "mail"'.join(parts[: place + 1]) + 'scope = "mial"' + 'scope = "mail"'.join(parts[place + 1 :])
    status, output = checked(RULES, urls)
    assert status == 1
    assert "ratelimit_mw.E003) the app asks for the rule 'mial', which does not exist (did you mean 'mail'?)" in output
