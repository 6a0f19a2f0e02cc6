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
