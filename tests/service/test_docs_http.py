"""The examples of docs/service-http.md, asked of the service that the page starts."""

import json
import re
import shlex
import sys

import httpx
import pytest

from ratelimit_mw.service.settings import variable_of
from tests.support.apps import ROOT
from tests.support.patience import eventually
from tests.support.processes import end, spawn

PAGE = (ROOT / "docs" / "service-http.md").read_text()
(RULES,) = re.findall(r"^```yaml\n# ratelimits.yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(TOKENS,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
EXAMPLES = re.findall(r"^\$ (curl .*)\n((?:[^$`\n].*\n)+)", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """Runs the command of the page on ports that are free. Yields the URLs by the names of the ports."""
    here = tmp_path_factory.mktemp("page")
    (here / "ratelimits.yaml").write_text(RULES)
    command = [sys.executable, "-m", "ratelimit_mw", "serve", "--rules", "ratelimits.yaml", "--drain", "0s"]
    free = {variable_of(name): "127.0.0.1:0" for name in ("grpc", "http", "admin")}
    with (here / "log").open("wb") as output:
        process = spawn(command, cwd=here, env={**free, "PYTHONPATH": str(ROOT)}, stdout=output, stderr=output)
    try:
        eventually(lambda: "ready: " in (here / "log").read_text())
        yield dict(re.findall(r"(\w+) at (127[\d.:]+)", (here / "log").read_text()))
    finally:
        end(process)


def test_the_examples_of_the_page_answer_as_it_says(service):
    assert len(EXAMPLES) == 5
    for command, expected in EXAMPLES:
        words = shlex.split(command)
        url = next(word for word in words if word.startswith("http://"))
        url = url.replace("127.0.0.1:8080", service["http"])
        headers = [words[at + 1].split(": ") for at, word in enumerate(words) if word == "-H"]
        body = next((words[at + 1] for at, word in enumerate(words) if word == "-d"), None)
        answer = httpx.request("GET" if body is None else "POST", url, headers=headers, content=body, timeout=30)
        if expected.startswith("HTTP/1.1 "):
            first, *fields = expected.splitlines()
            assert first == f"HTTP/1.1 {answer.status_code} {answer.reason_phrase}"
            assert {tuple(field.split(": ")) for field in fields} <= set(answer.headers.items())
        else:
            assert contains(answer.json(), json.loads(expected)), (command, answer.text)


def contains(found, expected):
    """Whether an answer has what the page shows. The page may leave out fields of objects."""
    if isinstance(expected, dict):
        return all(name in found and contains(found[name], each) for name, each in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(contains, found, expected))
    return found == expected


def test_the_page_has_all_metrics_of_the_service(service):
    text = httpx.get(f"http://{service['admin']}/metrics", timeout=30).text
    served = set(re.findall(r"^# TYPE (ratelimit_service_\w+) ", text, re.MULTILINE))
    assert served
    assert served == set(re.findall(r"`(ratelimit_service_\w+)`", PAGE))


def test_the_token_file_of_the_page_can_be_read(tmp_path):
    from ratelimit_mw.service.access import read_tokens

    (tmp_path / "tokens").write_text(TOKENS)
    assert [role for role, _ in read_tokens(tmp_path / "tokens")] == ["check", "admin"]
