import json
import subprocess
import sys

import pytest

HEAVY = {"yaml", "redis", "hiredis", "lmdb", "rich", "typer"}
FRAMEWORKS = {"starlette", "fastapi", "werkzeug", "flask", "django", "uvicorn", "gunicorn", "httpx"}


def imported_by(statement):
    code = f"import sys, json; {statement}; print(json.dumps(list(sys.modules)))"
    out = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True).stdout
    return {name.partition(".")[0] for name in json.loads(out)}


@pytest.mark.parametrize("module", ["ratelimit_mw", "ratelimit_mw.asgi", "ratelimit_mw.wsgi"])
def test_importing_loads_no_framework_and_puts_off_what_is_heavy(module):
    assert imported_by(f"import {module}") & (HEAVY | FRAMEWORKS) == set()


@pytest.mark.parametrize(
    ("module", "own"),
    [
        pytest.param("ratelimit_mw.fastapi", {"fastapi", "starlette"}, id="FastAPI"),
        pytest.param("ratelimit_mw.starlette", {"starlette"}, id="Starlette"),
        pytest.param("ratelimit_mw.flask", {"flask", "werkzeug"}, id="Flask"),
        pytest.param("ratelimit_mw.django", {"django"}, id="Django"),
    ],
)
def test_what_is_for_one_framework_loads_that_one_alone(module, own):
    assert imported_by(f"import {module}") & (FRAMEWORKS | {"rest_framework"}) == own


def test_the_throttle_loads_django_and_rest_framework_alone():
    loaded = imported_by("from django.conf import settings; settings.configure(); import ratelimit_mw.drf")
    assert loaded & (FRAMEWORKS | {"rest_framework"}) == {"django", "rest_framework"}


def test_rules_from_a_mapping_on_memory_need_no_redis():
    rules = {"domain": "d", "rules": [{"name": "r", "by": "ip", "limit": "1 per second"}]}
    stores = {"redis", "hiredis", "lmdb"}
    assert imported_by(f"import ratelimit_mw; ratelimit_mw.RateLimiter({rules})") & stores == set()


def modules_after(code):
    """The modules that a program has imported, which may end with any exit code."""
    program = f"import atexit, sys; atexit.register(lambda: print('modules:', *sys.modules)); {code}"
    ran = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    return ran.returncode, set(ran.stdout.rpartition("modules:")[2].split())


def test_the_public_names_are_imported_when_they_are_used():
    assert {name for name in modules_after("import ratelimit_mw")[1] if name.startswith("ratelimit_mw")} == {
        "ratelimit_mw"
    }
    public = ["ConfigurationError", "Decision", "EntryList", "ManualClock", "RateLimiter"]
    code = """
import ratelimit_mw
assert set(ratelimit_mw.__all__) <= set(dir(ratelimit_mw))
from ratelimit_mw import *
print(*sorted(name for name in ratelimit_mw.__all__ if globals()[name] is getattr(ratelimit_mw, name)))
"""
    ran = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == public


def test_a_health_probe_imports_neither_the_engine_nor_what_other_commands_need(tmp_path):
    words = ["ratelimit-mw", "ask", "--health", "--grpc", f"unix:{tmp_path / 'none'}"]
    code, modules = modules_after(f"sys.argv = {words}; from ratelimit_mw.cli import main; main()")
    assert code == 3  # there is no service
    assert {"grpc", "ratelimit_mw.cli.ask"} <= modules
    assert modules & {"pydantic", "redis", "rich", "typer", "yaml"} == set()
    assert {name for name in modules if name.startswith("ratelimit_mw.")} == {
        f"ratelimit_mw.{name}"
        for name in (
            *("cli", "cli.ask", "errors", "model", "units"),
            *("service", "service.messages", "service.ratelimit_pb2", "service.settings"),
        )
    }


@pytest.mark.parametrize(
    ("statement", "module", "extra"),
    [
        pytest.param("import ratelimit_mw.telemetry.prometheus", "prometheus_client", "prometheus", id="Prometheus"),
        pytest.param(
            "import ratelimit_mw.telemetry.opentelemetry", "opentelemetry", "opentelemetry", id="OpenTelemetry"
        ),
        pytest.param(
            "import ratelimit_mw.service as s; s.serve(s.Settings(rules='r.yaml'))",
            "google.protobuf",
            "serve",
            id="the service",
        ),
        pytest.param("import ratelimit_mw.django", "django", "django", id="Django"),
        pytest.param("import ratelimit_mw.drf", "rest_framework", "drf", id="REST framework"),
        pytest.param("import ratelimit_mw.flask", "flask", "flask", id="Flask"),
        pytest.param("import ratelimit_mw.starlette", "starlette", "starlette", id="Starlette"),
        pytest.param("import ratelimit_mw.fastapi", "fastapi", "fastapi", id="FastAPI"),
    ],
)
def test_a_missing_extra_is_named_with_the_command_that_installs_it(statement, module, extra):
    blocked = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked}\n{statement}"], capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last == (
        f"ModuleNotFoundError: No module named '{module}'; it comes with the extra {extra}: "
        f"pip install 'ratelimit_mw[{extra}]'"
    )
