"""The command as a whole, in processes of its own."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

from ratelimit_mw.cli.app import app
from tests.cli.conftest import SHOP

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = ["check", "explain", "reset", "schema", "show", "top"]


def command(*words, code="from ratelimit_mw.cli import main; main()", cwd=None, **environment):
    """What becomes of `ratelimit-mw words`."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("RATELIMIT")}
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        cwd=cwd or ROOT,
        env={
            **known,
            "PYTHONPATH": str(ROOT),
            "NO_COLOR": "1",
            "COLUMNS": "100",
            "PYTHONIOENCODING": "utf-8",
            **environment,
        },
        check=False,
    )


def test_it_is_a_module_too():
    ran = subprocess.run(
        [sys.executable, "-m", "ratelimit_mw", "check", "examples/ratelimits.yaml"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, "examples/ratelimits.yaml: valid, 3 rules\n")
    assert ran.stderr == ""


def test_an_output_without_space_is_an_error():
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "ratelimit_mw", "schema"]
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    message = "ratelimit-mw: the output can't be written: [Errno 28] No space left on device\n"
    assert (ran.returncode, ran.stderr) == (1, message)


def test_without_words_it_says_what_there_is():
    ran = command()
    assert ran.returncode == 2
    assert [name for name in COMMANDS if f" {name} " in ran.stdout] == COMMANDS
    assert "Exit codes: 0 success;" in ran.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(run, name):
    status, printed, said = run(name, "-h")
    assert (status, said) == (0, "")
    assert f"{name} [OPTIONS]" in printed


@pytest.mark.parametrize(
    ("library", "extra", "words"),
    [
        ("typer", "cli", []),
        ("rich", "cli", []),
        ("httpx", "worker", ["worker", "--to", "http://127.0.0.1:1"]),
        ("uvloop", "serve", ["serve"]),
        ("httptools", "serve", ["serve"]),
    ],
)
def test_without_the_extra_it_says_what_to_install(library, extra, words):
    start = f"import sys; sys.argv[1:] = {words}; sys.modules['{library}'] = None"
    ran = command(code=f"{start}; from ratelimit_mw.cli import main; main()")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == f"ratelimit-mw needs {library}: pip install 'ratelimit_mw[{extra}]'\n"


def test_another_missing_module_is_not_mistaken_for_it():
    ran = command(
        code="import sys; sys.modules['ratelimit_mw.settings'] = None; from ratelimit_mw.cli import main; main()"
    )
    assert ran.returncode == 1
    assert "ratelimit_mw[cli]" not in ran.stderr


def test_shells_can_complete():
    ran = command(
        _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1",
        _RATELIMIT_MW_COMPLETE="source_bash",
        code="import sys; sys.argv[0] = 'ratelimit-mw'; from ratelimit_mw.cli import main; main()",
    )
    assert ran.returncode == 0
    assert "ratelimit-mw" in ran.stdout


def test_the_schema_accepts_the_example(run):
    schema = json.loads(run("schema")[1])
    example = yaml.safe_load((ROOT / "examples/ratelimits.yaml").read_text("utf-8"))
    jsonschema.validate(example, schema)
    with pytest.raises(jsonschema.ValidationError, match="'limt' was unexpected"):
        jsonschema.validate({**example, "rules": [{"name": "a", "limit": "1/s", "limt": "2/s"}]}, schema)


def test_the_schema_comes_with_the_line_for_editors(run):
    said = run("schema")[2].splitlines()
    assert said[-1] == "# yaml-language-server: $schema=ratelimits.schema.json"


def test_the_version_is_printed(run):
    assert run("--version") == (0, f"ratelimit-mw {version('ratelimit_mw')}\n", "")


def test_the_warning_about_the_secret_is_printed_by_commands_that_make_keys(run):
    Path("ratelimits.yaml").write_text(SHOP.replace(", secret: s", ""), "utf-8")
    assert run("check") == (0, "ratelimits.yaml: valid, 3 rules\n", "")
    assert "note: client.secret is empty" in run("explain", "GET", "/", "--user", "ada")[2]


@pytest.mark.parametrize("words", [("check",), ("worker", "--to", "http://127.0.0.1:1"), ("explain", "GET", "/")])
def test_the_rules_of_the_environment_are_the_default_of_each_command(run, monkeypatch, words):
    monkeypatch.setenv("RATELIMIT_RULES", "other.yaml")
    code, printed, said = run(*words)
    assert code != 0
    assert "other.yaml" in printed + said


def test_help_tells_where_the_rules_of_the_worker_come_from(run):
    code, printed, _ = run("worker", "--help")
    assert code == 0
    assert "RATELIMIT_RULES" in printed
    assert "ratelimits.yaml" in printed


def test_the_rules_can_be_named_in_the_environment(tmp_path):
    (tmp_path / "shop.yaml").write_text(SHOP, "utf-8")
    ran = command("explain", "GET", "/", cwd=tmp_path, RATELIMIT_RULES="shop.yaml")
    assert (ran.returncode, "✓ everything" in ran.stdout) == (0, True)


WARNED = """\
domain: shop
client: {user: "python:tests.cli.test_command:broken"}
rules: [{name: users, by: user|ip, limit: 5 per minute}]
"""


def broken(_request):
    raise RuntimeError("no database")


def test_warnings_come_once_and_after_the_output(run):
    Path("ratelimits.yaml").write_text(WARNED, "utf-8")
    printed = CliRunner().invoke(app, ["explain", "GET", "/"]).output
    result, _, notes = printed.partition("note: ")
    assert "✓ users" in result
    assert len(notes.splitlines()) == len(set(notes.splitlines())) > 1
    assert all(line.startswith("note: ") for line in notes.splitlines()[1:])


def test_a_terminal_shows_the_marks_of_rules_in_colours_unless_no_color_is_set(run):
    options = {"args": ["explain", "GET", "/"], "color": True}
    assert "\x1b[32m✓ everything" in CliRunner().invoke(app, **options).stdout
    assert "\x1b" not in CliRunner(env={"NO_COLOR": "1"}).invoke(app, **options).stdout
