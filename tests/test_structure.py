"""The structure that the house rules ask for: how many files a task walks through, and how large and plain they are.

A file is walked if a function of it runs. Imports are done before the count.
"""

import asyncio
import logging
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import ratelimit_mw
from ratelimit_mw import RateLimiter
from ratelimit_mw.asgi import RateLimitMiddleware
from tests.shells.asking import exchange, http_scope
from tests.support.rules import load_rules

PACKAGE = Path(ratelimit_mw.__file__).parent
ROOT = PACKAGE.parent

SHORT = {
    "__init__.py": "the names that users import",
    "__main__.py": "python -m ratelimit_mw",
    "cli/__init__.py": "the entry point, which says what to install where that is missing",
    "config/__init__.py": "a package's docstring",
    "config/words/__init__.py": "a package's docstring",
    "decision/__init__.py": "a package's docstring",
    "django/__init__.py": "the names that users import",
    "envoy/__init__.py": "a package's docstring",
    "foresight/__init__.py": "a package's docstring",
    "http/__init__.py": "a package's docstring",
    "identity/__init__.py": "the kinds of requests that users import",
    "operations/__init__.py": "a package's docstring",
    "reload/__init__.py": "a package's docstring",
    "rules/__init__.py": "a package's docstring",
    "stores/redis/__init__.py": "a package's docstring",
    "stores/shared/__init__.py": "a package's docstring, and the function that opens the store",
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


MOST_FILES = 200
"""The goal of the house. Lower this number with each file that goes."""


def test_the_package_has_few_files():
    assert len(lengths()) <= MOST_FILES


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
