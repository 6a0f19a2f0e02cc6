"""docs/getting-started.md: each step of the tutorial does what it says."""

import re
import shlex
import subprocess
import sys

import httpx
import pytest

from tests.support.apps import ROOT, uvicorn

PAGE = (ROOT / "docs" / "getting-started.md").read_text("utf-8")
STEPS = re.split(r"^## \d\. ", PAGE, flags=re.MULTILINE)[1:]
LOOP = re.compile(r"\$ for i in ([\d ]+); do curl .*?(?:-H '([\w-]+): ([^']+)' )?http://127\S+; done\n([\d ]+)")


def blocks(text, kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def write(step, folder):
    """The files of a reader who has followed the steps up to this one."""
    for text in STEPS[:step]:
        for block in blocks(text, "(?:yaml|python)"):
            name, _, code = block.partition("\n")
            if name.startswith("# at the end of "):
                with (folder / name.removeprefix("# at the end of ")).open("a") as file:
                    file.write(code)
            else:
                (folder / name.removeprefix("# ")).write_text(block)


def command(text):
    """What a console block runs, and what it prints."""
    line, _, shown = text.partition("\n")
    return shlex.split(line.removeprefix("$ ")), shown


@pytest.mark.parametrize("step", [1, 3])
def test_requests_get_the_statuses_that_the_step_shows(step, tmp_path):
    write(step, tmp_path)
    loops = LOOP.findall(STEPS[step - 1])
    assert loops
    with uvicorn("main:app", cwd=tmp_path) as running, httpx.Client(base_url=running.url) as client:
        for numbers, header, value, shown in loops:
            headers = {header: value} if header else {}
            statuses = [client.get("/", headers=headers).status_code for _ in numbers.split()]
            assert statuses == [int(status) for status in shown.split()]


def test_the_denial_has_the_headers_that_the_first_step_shows(tmp_path):
    write(1, tmp_path)
    (shown,) = [block for block in blocks(STEPS[0], "console") if block.startswith("$ curl -i")]
    with uvicorn("main:app", cwd=tmp_path) as running, httpx.Client(base_url=running.url) as client:
        denied = [client.get("/") for _ in range(4)][-1]
    head, _, body = shown.partition("\n\n")
    expected = dict(line.split(": ", 1) for line in head.splitlines()[2:])
    assert set(expected) <= set(denied.headers)
    assert all(denied.headers[name] == expected[name] for name in expected if not expected[name].isdigit())
    assert denied.text == body.strip()


@pytest.mark.parametrize("step", [2, 5])
def test_a_command_prints_what_the_step_shows(step, tmp_path):
    write(step, tmp_path)
    rules = tmp_path / "ratelimits.yaml"
    if step == 2:
        rules.write_text(rules.read_text().replace("minute", "minit"))
    arguments, shown = command(blocks(STEPS[step - 1], "console")[0])
    run = [sys.executable, "-m", "ratelimit_mw", *arguments[1:]]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, encoding="utf-8", check=False)
    assert done.stdout + done.stderr * (step == 2) == shown


def test_the_app_starts_with_the_limit_of_a_view(tmp_path):
    write(4, tmp_path)
    with uvicorn("main:app", cwd=tmp_path) as running, httpx.Client(base_url=running.url) as client:
        assert [client.post("/mail").status_code for _ in range(3)] == [200, 200, 429]


def test_the_tests_of_the_tutorial_pass(tmp_path):
    write(6, tmp_path)
    arguments, shown = command(blocks(STEPS[5], "console")[0])
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    run = [sys.executable, "-m", *arguments, "-p", "no:cacheprovider"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert shown.strip() in done.stdout
