import json
import subprocess
import sys

HEAVY = {"yaml", "redis", "hiredis", "lmdb", "rich", "typer"}
FRAMEWORKS = {"starlette", "fastapi", "werkzeug", "flask", "django", "uvicorn", "gunicorn", "httpx"}


def imported_by(statement):
    code = f"import sys, json; {statement}; print(json.dumps(list(sys.modules)))"
    out = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True).stdout
    return {name.partition(".")[0] for name in json.loads(out)}


def test_importing_loads_no_framework_and_puts_off_what_is_heavy():
    assert imported_by("import ratelimit_mw.asgi, ratelimit_mw.wsgi") & (HEAVY | FRAMEWORKS) == set()


def test_what_is_for_one_framework_loads_that_one_alone():
    """What each adds to those before it. The contracts of imports hold the files apart."""
    code = """
import json, sys
from django.conf import settings
settings.configure()
before, added = set(sys.modules), {}
for name in ("flask", "django", "drf", "starlette", "fastapi"):
    __import__(f"ratelimit_mw.{name}")
    added[name] = [module for module in sys.modules if module not in before]
    before.update(sys.modules)
print(json.dumps(added))
"""
    out = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True).stdout
    frameworks = FRAMEWORKS | {"rest_framework"}
    assert {name: frameworks.intersection(added) for name, added in json.loads(out).items()} == {
        "flask": {"flask", "werkzeug"},
        "django": set(),  # its settings were there before
        "drf": {"rest_framework"},
        "starlette": {"starlette"},
        "fastapi": {"fastapi"},
    }


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


EXTRAS = {
    "import ratelimit_mw.telemetry.prometheus": ("prometheus_client", "prometheus"),
    "import ratelimit_mw.telemetry.opentelemetry": ("opentelemetry", "opentelemetry"),
    "import ratelimit_mw.django": ("django", "django"),
    "import ratelimit_mw.drf": ("rest_framework", "drf"),
    "import ratelimit_mw.flask": ("flask", "flask"),
    "import ratelimit_mw.starlette": ("starlette", "starlette"),
    "import ratelimit_mw.fastapi": ("fastapi", "fastapi"),
    "import ratelimit_mw.service as s; s.serve(s.Settings(rules='r.yaml'))": ("google.protobuf", "serve"),
}


def test_a_missing_extra_is_named_with_the_command_that_installs_it():
    code = f"""
import json, sys

class Missing:
    name = ""

    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
said = {{}}
for statement, (Missing.name, _) in {EXTRAS!r}.items():
    try:
        exec(statement)
    except ModuleNotFoundError as error:
        said[statement] = str(error)
print(json.dumps(said))
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert json.loads(out) == {
        statement: f"No module named '{module}'; it comes with the extra {extra}: pip install 'ratelimit_mw[{extra}]'"
        for statement, (module, extra) in EXTRAS.items()
    }
