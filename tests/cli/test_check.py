import json
from pathlib import Path

import pytest

RULE = "domain: shop\nrules:\n  - name: a\n    limit: 5 per minute\n"


# The text of r.yaml, and all that is printed of it.
@pytest.mark.parametrize(
    ("text", "code", "printed"),
    [
        pytest.param(RULE, 0, "r.yaml: valid, 1 rule\n", id="nothing to say"),
        pytest.param(
            "domain: shop\nrules:\n  - name: a\n    limit: 5 per minit\n    burts: 3\n",
            1,
            """\
r.yaml:4:12: error: rules[0].limit: 'minit' is not a unit of time
    4 |     limit: 5 per minit
      |            ^
      = did you mean 'minute'?

r.yaml:5:5: error: rules[0]: unknown key 'burts'
    5 |     burts: 3
      |     ^
      = did you mean 'burst'?

r.yaml: 2 problems
""",
            id="problems, with the nearest word",
        ),
        pytest.param(
            RULE + "  - name: b\n    limit: 50 per hour\n  - name: c\n    limit: 500 per hour\n",
            0,
            """\
r.yaml:8:12: warning: rules[2].limit: 500 per hour can never deny: 5 per minute of 'a' (line 3) always denies first
    8 |     limit: 500 per hour
      |            ^

r.yaml: valid, 3 rules, 1 warning
""",
            id="a warning",
        ),
        pytest.param(
            "domain: shop\nexempt: [{path: '/図書', pth: /x}]\nrules:\n- {name: a, limit: 1/s}\n",
            1,
            """\
r.yaml:2:24: error: exempt[0]: unknown key 'pth'
    2 | exempt: [{path: '/図書', pth: /x}]
      |                          ^
      = did you mean 'path'?

r.yaml: 1 problem
""",
            id="wide letters before the caret",
        ),
        pytest.param(
            "domain: shop\x1b[2J\nrules: []\n",
            1,
            """\
r.yaml:1:13: error: the character '\\x1b' is not allowed in YAML
    1 | domain: shop\\x1b[2J
      |             ^

r.yaml: 1 problem
""",
            id="nothing that a terminal would obey",
        ),
        pytest.param(
            "domain: [" + "x" * 500 + "]\nrules: []\n",
            1,
            f"""\
r.yaml:1:9: error: domain: must be text, not a list
    1 | domain: [{"x" * 151}…
      |         ^

r.yaml: 1 problem
""",
            id="a long line, cut",
        ),
    ],
)
def test_what_is_said_of_a_file(run, text, code, printed):
    Path("r.yaml").write_text(text, "utf-8")
    assert run("check", "r.yaml") == (code, printed, "")


def test_a_file_that_is_not_there(run):
    printed = """\
none.yaml: error: can't read the rules file: No such file or directory
  a path to a YAML file

none.yaml: 1 problem
"""
    assert run("check", "none.yaml") == (1, printed, "")


def test_a_file_without_end_is_too_large(run):
    code, out, _ = run("check", "/dev/zero")
    assert (code, out) == (1, "/dev/zero: error: larger than 4 MB\n\n/dev/zero: 1 problem\n")


def test_several_files_of_which_one_would_not_load(run):
    Path("r.yaml").write_text("domain: shop\n", "utf-8")
    code, printed, _ = run("check", "ratelimits.yaml", "r.yaml", "--json")
    assert code == 1
    assert json.loads(printed) == {
        "schema_version": 1,
        "ok": False,
        "files": [
            {
                "file": "ratelimits.yaml",
                "ok": True,
                "shadow": [],
                "rules": ["everything", "login", "api"],
                "problems": [],
                "warnings": [],
            },
            {
                "file": "r.yaml",
                "ok": False,
                "shadow": [],
                "rules": None,
                "problems": [
                    {
                        "message": "the key 'rules' or 'descriptors' is missing",
                        "file": "r.yaml",
                        "line": 1,
                        "column": 1,
                        "hint": "",
                    }
                ],
                "warnings": [],
            },
        ],
    }


def test_functions_are_found_in_the_folder_that_the_command_is_run_in(run):
    Path("who_is_it.py").write_text("def user(scope): return 'ada'\n", "utf-8")
    Path("r.yaml").write_text(RULE + "client: {user: 'python:who_is_it:user'}\n", "utf-8")
    assert run("check", "r.yaml")[0] == 0


def test_a_file_in_shadow(run):
    Path("r.yaml").write_text("domain: d\nshadow: true\nrules:\n- {name: a, limit: 5 per minute}\n", "utf-8")
    assert run("check", "r.yaml") == (0, "r.yaml: valid, 1 rule, shadow: d is not enforced\n", "")


def test_a_file_for_the_service_has_no_warning_of_entries_that_envoy_sends(run, tmp_path):
    (tmp_path / "go.yaml").write_text(
        "domain: d\ndescriptors:\n  - {key: user, rate_limit: {unit: day, requests_per_unit: 5}}\n"
    )
    for_an_app, for_the_service = run("check", "go.yaml"), run("check", "go.yaml", "--for-service")
    assert "warning: descriptors[0].rate_limit: no request sends the entries of 'user'" in for_an_app[1]
    assert for_the_service == (0, "go.yaml: valid, 1 rule\n", "")


def test_what_a_service_cannot_serve_is_an_error_in_a_file_for_it(run, tmp_path):
    (tmp_path / "app.yaml").write_text("domain: d\nrules:\n  - {name: a, limit: 5/s, count: {status: [401]}}\n")
    assert run("check", "app.yaml")[0] == 0
    code, printed, _ = run("check", "app.yaml", "--for-service")
    assert code == 1
    assert "app.yaml:3:27: error: rules[0].count: the rule 'a' can't be served: count needs" in printed
