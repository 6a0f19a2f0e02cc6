"""The structure that the house rules ask for: how many files a task walks through, and how large and plain they are.

A file is walked if a function of it runs. Imports are done before the count.
"""

import ast
import asyncio
import logging
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import ratelimit_mw
from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from ratelimit_mw.config.load import load_rules
from tests.shells.asking import exchange, http_scope

PACKAGE = Path(ratelimit_mw.__file__).parent
ROOT = PACKAGE.parent

SHORT = {
    "__init__.py": "the names that users import",
    "__main__.py": "python -m ratelimit_mw",
    "cli/__init__.py": "the entry point, which says what to install where that is missing",
    "config/__init__.py": "a package's docstring",
    "config/words/__init__.py": "a package's docstring",
    "decision/__init__.py": "a package's docstring",
    "deferral/__init__.py": "a package's docstring",
    "django/__init__.py": "the names that users import",
    "envoy/__init__.py": "a package's docstring",
    "foresight/__init__.py": "a package's docstring",
    "foresight/logs/__init__.py": "a package's docstring",
    "foresight/report/__init__.py": "a package's docstring",
    "foresight/suggest/__init__.py": "a package's docstring",
    "foresight/what_if/__init__.py": "a package's docstring",
    "http/__init__.py": "a package's docstring",
    "identity/__init__.py": "the kinds of requests that users import",
    "operations/__init__.py": "a package's docstring",
    "operations/page/__init__.py": "the name that users import",
    "reload/__init__.py": "a package's docstring",
    "rules/__init__.py": "a package's docstring",
    "stores/redis/__init__.py": "a package's docstring",
    "stores/shared/__init__.py": "a package's docstring, and the function that opens the store",
    "telemetry/__init__.py": "a package's docstring",
    "service/__init__.py": "the names that users import",
    "service/state.py": "what the servers share",
}
"""Files under 40 lines, each with the reason."""

LONG = {
    "limiter.py": "the class that apps call: every method is documented for users",
    "decision/explanation.py": "the values that an explanation consists of, each field documented for users",
    "rules/ruleset.py": "from a request to its charges in one class, whose parts share the index and the caches",
}
"""Files over 450 lines, each with the reason."""

ARCHAIC = re.compile(r"\b(nobody|whoever|whom|anew|besides|meanwhile)\b", re.IGNORECASE)


@contextmanager
def walk():
    """Yields a set, which has the files walked when the block ends."""
    files: set[str] = set()

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files.add(path.relative_to(PACKAGE).as_posix())

    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(None)


def rules_file(tmp_path, url="memory://"):
    path = tmp_path / "ratelimits.yaml"
    storage = f"storage: {{url: '{url}', timeout: 5s}}"
    path.write_text(f"domain: d\n{storage}\nrules: [{{name: a, limit: 1 per year}}]\n", "utf-8")
    return path


async def hello(_scope, _receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def served(middleware, ip, status):
    """The files walked by one request of this client, which has to be answered by this status."""
    with walk() as files:
        start, *_ = await exchange(middleware, http_scope("/", ip=ip))
    assert start["status"] == status
    return files


def test_a_file_with_one_rule_is_loaded_by_45_files_at_most(tmp_path):
    path = rules_file(tmp_path)
    load_rules(path)
    with walk() as files:
        load_rules(path)
    assert len(files) <= 45, sorted(files)


def test_a_request_over_redis_and_a_denial_walk_few_files(tmp_path, any_server, caplog):
    caplog.set_level(logging.WARNING, "ratelimit_mw")  # tests that ran before may have enabled the log of denials

    async def walks():
        async with RateLimiter(rules_file(tmp_path, any_server.url)) as limiter:
            middleware = RateLimitMiddleware(hello, limiter=limiter)
            for status in (200, 429):  # another client connects, and makes all lazy imports
                await served(middleware, "192.0.2.1", status)
            return await served(middleware, "192.0.2.2", 200), await served(middleware, "192.0.2.2", 429)

    first, denial = asyncio.run(walks())
    assert len(first) <= 16, sorted(first)
    assert len(denial) <= 16, sorted(denial)


def test_an_explanation_walks_few_files(tmp_path, any_server):
    with RateLimiter(rules_file(tmp_path, any_server.url)) as limiter:
        limiter.explain({"ip": "192.0.2.1"})
        with walk() as files:
            limiter.explain({"ip": "192.0.2.2"})
    assert len(files) <= 20, sorted(files)


def lengths():
    return {
        path.relative_to(PACKAGE).as_posix(): len(path.read_text("utf-8").splitlines())
        for path in PACKAGE.rglob("*.py")
    }


ADDED = {
    "stores/redis/faults.py": "faults that waiting cannot heal, each with its remedy",
    "stores/breaker.py": "the circuit breaker, which was in stores/redis/store.py",
    "stores/counters.py": "the decision in Python, which was in stores/memory.py",
    **{
        f"stores/shared/{name}.py": "the store for lmdb://"
        for name in ("__init__", "file", "handle", "location", "records", "store", "table")
    },
    "identity/credentials.py": "the spellings of a credential, which were in identity/sources.py",
    "config/at_runtime.py": "the limits in decorators, of functions and of operators, read by the words of a file",
    "decision/acquiring.py": "waiting for a place, and blocks of code",
    "config/elsewhere.py": "the hints for the keys and limits of other limiters",
    "decision/denials.py": "the log of denials",
    "envoy/__init__.py": "Envoy's descriptors in one folder",
    "envoy/lists.py": "decisions on several lists of entries",
    "decision/waiting.py": "the places of waiting threads, which were in decision/engine.py",
    "snapshots.py": "the counts of requests, rules and denials, as values",
    "tally.py": "the counts of requests, rules and denials",
    "telemetry/__init__.py": "metrics and traces",
    "telemetry/measures.py": "the same",
    "telemetry/opentelemetry.py": "the same",
    "telemetry/prometheus.py": "the same",
    "django/__init__.py": "the names that projects import",
    "django/handles.py": "part of a directory that was one file before class-based views, throttles and the check",
    "django/project.py": "the same",
    "django/requests.py": "the same",
    "django/views.py": "the same",
    "drf.py": "the throttle for Django REST framework",
    "cli/log_options.py": "the options of the commands about logs, which were in cli/replay.py",
    "cli/replay.py": "the command that replays a log",
    "cli/watch.py": "the live page in the terminal",
    "cli/replayed.py": "what it prints",
    "cli/suggest.py": "the command that proposes limits",
    **{
        f"foresight/{name}.py": "limits on logs"
        for name in (
            "__init__",
            "logs/__init__",
            "logs/entry",
            "logs/formats",
            "logs/inputs",
            "logs/patterns",
            "logs/structured",
            "logs/times",
            "logs/variables",
            "replay",
            "report/__init__",
            "report/html",
            "report/markup",
            "report/svg",
            "requests",
            "results",
            "simulation",
            "suggest/__init__",
            "suggest/behaviour",
            "suggest/proposal",
            "suggest/routes",
            "suggest/text",
            "suggest/traffic",
            "what_if/__init__",
            "what_if/collection",
            "what_if/curves",
            "what_if/exact",
            "what_if/limits",
            "wording",
        )
    },
    "http/handler.py": "the handler of denials",
    "http/limits_in_code.py": "the limits in decorators, and their names",
    "operations/__init__.py": "the live page",
    **{
        f"operations/{name}.py": "the same"
        for name in (
            "activity",
            "board",
            "live",
            "observer",
            "report_codec",
            "sharing",
            "state",
        )
    },
    **{f"operations/page/{name}.py": "the same" for name in ("__init__", "app", "visits")},
    "testing.py": "support for the tests of apps",
    "types.py": "the types of what public functions return",
    "cli/frameworks.py": "the routes of apps",
    "cli/routes.py": "routes beside the rules that apply to them",
    "logs.py": "the name of the logger in lines without a handler",
    "identity/path_forms.py": "the forms of a path, which were in identity/decoding.py",
    "cli/coverage.py": "the rules that apply to a route",
    "http/setup.py": "what middlewares check when they are made, which was in http/handle.py",
    "http/views.py": "the names of rules in the decorators of views",
    "rules/inline.py": "the limits in decorators, compiled once for each rule set",
    "starlette.py": "the decorator for Starlette",
    "cli/serve.py": "the service",
    **{
        f"service/{name}.py": "the service"
        for name in (
            "__init__",
            "access",
            "admin",
            "api",
            "client",
            "auth",
            "grpc_server",
            "http_protocol",
            "json_messages",
            "messages",
            "metrics",
            "original_request",
            "ports",
            "checks",
            "ratelimit_pb2",
            "rules_text",
            "runner",
            "servable",
            "settings",
            "should_rate_limit",
            "state",
        )
    },
}
"""Files of capabilities that came after the count was set."""


def test_the_package_has_130_files_at_most_and_those_of_new_capabilities():
    assert len(lengths().keys() - ADDED.keys()) <= 130
    assert ADDED.keys() <= lengths().keys()


def test_a_file_is_neither_short_nor_long_without_a_reason():
    assert {name for name, lines in lengths().items() if lines < 40} <= SHORT.keys()
    assert {name for name, lines in lengths().items() if lines > 450} <= LONG.keys()
    assert (SHORT | LONG).keys() <= lengths().keys()


def test_no_text_has_an_archaic_word():
    texts = [*PACKAGE.rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    assert [path.relative_to(ROOT).as_posix() for path in texts if ARCHAIC.search(path.read_text("utf-8"))] == []


def files_with(pattern):
    """The files of the package that have a line of this form."""
    found = re.compile(pattern, re.MULTILINE)
    texts = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    return {name for name, text in texts.items() if found.search(text)}


MUTABLE = re.compile(
    r"^(\w+)(?:: [^=\n]+)? = (?:\{\}|\[\]|(?:\w+\.)?(?:set|dict|list|Weak\w+|deque|Counter|OrderedDict|defaultdict)\()",
    re.MULTILINE,
)

GLOBALS = {
    "algorithms/__init__.py ALGORITHMS": "the table of algorithms, which users may extend",
    "algorithms/__init__.py DECIDE_ALL": "the same, for the hot path",
    "algorithms/__init__.py LUA_PARTS": "the same, for Redis",
    "limiter.py LIMITERS": "the fixtures for tests of apps reset every limiter; weak references",
    "process_local.py _abandoned": "a process has inherited it",
    "process_local.py _forked": "a fork concerns all objects of a process; weak references",
    "process_local.py _lazy": "the same",
    "stores/redis/codec.py _packed": "a bounded cache of packed quotas, equal for all limiters",
}
"""The containers at the level of modules that change, each with the reason. None has what belongs to an app."""


def test_no_module_has_a_container_that_changes_without_a_reason():
    found = {
        f"{path.relative_to(PACKAGE).as_posix()} {name}"
        for path in PACKAGE.rglob("*.py")
        for name in MUTABLE.findall(path.read_text("utf-8"))
    }
    assert found == GLOBALS.keys()


def test_one_file_knows_what_a_fork_is():
    """All others say what to do at one."""
    assert files_with(r"register_at_fork|getpid\(\) [!=]=|[!=]= os\.getpid") == {"process_local.py"}


def calls(function):
    """The names of what a function calls, without the objects that they belong to."""
    found = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
    return {each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in found}


def test_every_test_asserts_something():
    """By an `assert` of its own, by `pytest.raises`, or by calling a function of the tests that has an `assert`."""
    nodes = [node for path in (ROOT / "tests").rglob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    asserts = [node for node in functions if any(isinstance(part, ast.Assert) for part in ast.walk(node))]
    helpers = {node.name for node in asserts} | {"raises"}
    tests = [node for node in functions if node.name.startswith("test_") and node not in asserts]
    assert [test.name for test in tests if not calls(test) & helpers] == []
