"""The environment variables of envoyproxy/ratelimit: what `serve` says of them, and the flags that they become."""

import logging
import os
import re
import subprocess
import sys

import pytest

from ratelimit_mw import ConfigurationError
from ratelimit_mw.service import Settings
from ratelimit_mw.service.go_environment import VARIABLES, command_for, notes_on, problems_of, read_file
from ratelimit_mw.service.settings import FLAGS, flag_of
from tests.support.apps import ROOT
from tests.support.service import RULES, Serving, descriptor, request, rules_at

PAGE = (ROOT / "docs" / "moving-from-envoy-ratelimit.md").read_text("utf-8")
(SECTION,) = re.findall(r"^## Settings\n(.*?)^## ", PAGE, re.MULTILINE | re.DOTALL)
EMPTY = "domain: shop\ndescriptors: []\n"


def said(tmp_path, environ, rules=EMPTY, **texts):
    """The problems of a service with these variables, by their names."""
    path = rules_at(tmp_path, rules)
    found = problems_of(Settings.read(rules=str(path), **texts), environ)
    return {each.message.partition(" of ")[0]: each.hint for each in found}


@pytest.mark.parametrize(
    ("environ", "problems"),
    [
        ({"SHADOW_MODE": "true"}, {"SHADOW_MODE": "write RATELIMIT_MW=shadow in the environment, or unset it"}),
        ({"QUOTA_MODE": "1"}, {"QUOTA_MODE": "write quota_mode: true in each limit, or unset it"}),
        ({"REDIS_URL": "redis:6379"}, {"REDIS_URL": "write --storage redis://redis:6379/0, or unset it"}),
        (
            {"REDIS_URL": "redis:6379", "REDIS_AUTH": "hunter2"},
            {"REDIS_URL and REDIS_AUTH": 'write --storage "redis://:${REDIS_AUTH}@redis:6379/0", or unset it'},
        ),
        ({"REDIS_URL": "rediss://:hunter2@h"}, {"REDIS_URL": 'write --storage "${REDIS_URL}", or unset it'}),
        ({"BACKEND_TYPE": "memcache"}, {"BACKEND_TYPE": "write --storage …, or unset it"}),
        ({"SHADOW_MODE": "true", "RATELIMIT_MW": "shadow"}, {}),
        ({"SHADOW_MODE": "False", "BACKEND_TYPE": "redis", "CONFIG_TYPE": "FILE", "REDIS_AUTH": ""}, {}),
        ({"REDIS_PORT": "tcp://10.0.0.1:6379", "PATH": "/bin", "MEMCACHE": "1"}, {}),
    ],
)
def test_a_variable_that_would_change_decisions_is_refused_with_what_to_write(tmp_path, environ, problems):
    assert said(tmp_path, environ) == problems


def test_folders_and_other_sources_of_rules_are_refused_unless_the_rules_are_named(tmp_path, monkeypatch):
    rules_at(tmp_path, EMPTY)
    monkeypatch.chdir(tmp_path)
    environ = {"RUNTIME_ROOT": "/data", "RUNTIME_SUBDIRECTORY": "ratelimit"}
    (problem,) = problems_of(Settings(), environ)
    assert str(problem) == (
        "RUNTIME_ROOT and RUNTIME_SUBDIRECTORY of envoyproxy/ratelimit would be ignored, and decisions would differ "
        "(write --rules /data/ratelimit/config, or unset it)"
    )
    assert len(problems_of(Settings(), {"CONFIG_TYPE": "GRPC_XDS_SOTW"})) == 1
    assert problems_of(Settings.read(rules=str(tmp_path)), {**environ, "CONFIG_TYPE": "GRPC_XDS_SOTW"}) == []


def test_a_variable_that_a_flag_or_the_rules_file_uses_is_no_problem(tmp_path, caplog):
    environ = {"REDIS_URL": "redis:6379", "NEAR_LIMIT_RATIO": "0.5", "SHADOW_MODE": "true"}
    rules = f"{EMPTY}shadow: ${{SHADOW_MODE:-false}}\nstorage: {{url: 'redis://${{REDIS_URL}}'}}\n"
    assert said(tmp_path, environ, rules, near="0.5") == {}
    assert said(tmp_path, {"REDIS_URL": "redis:6379"}, storage="memory://") == {}
    assert caplog.messages == []


def test_other_variables_are_a_warning_each(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        assert said(tmp_path, {"NEAR_LIMIT_RATIO": "0.5", "TRACING_ENABLED": "true", "REDIS_TIMEOUT": "1s"}) == {}
    assert caplog.messages == [
        "NEAR_LIMIT_RATIO of envoyproxy/ratelimit is ignored: write --near 0.5, or unset it",
        "TRACING_ENABLED of envoyproxy/ratelimit is ignored: nothing takes its place",
        "REDIS_TIMEOUT of envoyproxy/ratelimit is ignored: write storage: {timeout: 100ms} in the rules, or unset it",
    ]


def test_the_service_does_not_start_in_the_environment_of_the_other_one(tmp_path):
    rules_at(tmp_path, EMPTY)
    environ = {**os.environ, "SHADOW_MODE": "true", "REDIS_URL": "redis:6379", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "ratelimit_mw", "serve", "--grpc", "0", "--http", "0", "--admin", "0"]
    ended = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "error: SHADOW_MODE of envoyproxy/ratelimit would be ignored" in ended.stderr
    assert "  write --storage redis://redis:6379/0, or unset it" in ended.stderr
    assert "ready" not in ended.stderr


FILE = """\
# the old service
export USE_STATSD=false
REDIS_SOCKET_TYPE=tcp
REDIS_URL=redis:6379
REDIS_AUTH='se $cret'
RUNTIME_ROOT = "/srv/my data"

GRPC_PORT=8081
SHADOW_MODE=true
STATSD_PORT=8125
"""
PRINTED = """\
RATELIMIT_MW=shadow ratelimit-mw serve \\
  --rules '/srv/my data/config' \\
  --storage "redis://:${REDIS_AUTH}@redis:6379/0" \\
  --grpc 0.0.0.0:8081
"""


def test_a_file_becomes_a_command_and_notes(tmp_path):
    (tmp_path / "old.env").write_text(FILE)
    command = [sys.executable, "-m", "ratelimit_mw", "from-envoy-ratelimit", "old.env"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == PRINTED
    assert ended.stderr.splitlines() == [
        "note: STATSD_PORT: nothing takes its place",
        "note: --http is on loopback by default, and there on all addresses",
        "note: --admin is on loopback by default, and there on all addresses",
    ]


def words_of(environ):
    """The words that a shell makes of the command for these variables."""
    printed = command_for(environ).replace("ratelimit-mw serve", "printf '%s\\n'", 1)
    ran = subprocess.run(["sh", "-c", printed], env=environ, capture_output=True, text=True, check=True, timeout=60)
    return ran.stdout.split()


TLS = {"REDIS_TLS": "true", "REDIS_TLS_CACERT": "/ca.pem", "REDIS_TLS_CLIENT_CERT": "/c.pem"}
TLS |= {"REDIS_TLS_CLIENT_KEY": "/k.pem", "REDIS_TLS_SKIP_HOSTNAME_VERIFICATION": "true"}


@pytest.mark.parametrize(
    ("environ", "flags"),
    [
        pytest.param({"REDIS_URL": "/run/redis.sock"}, "--storage unix:///run/redis.sock", id="a socket"),
        pytest.param(
            {"REDIS_URL": "main,a:1,b:2", "REDIS_TYPE": "SENTINEL", "REDIS_AUTH": "u:p", "REDIS_SENTINEL_AUTH": "s"},
            "--storage redis+sentinel://u:p@a:1,b:2/main/0?sentinel_password=s",
            id="Sentinels",
        ),
        pytest.param(
            {"REDIS_URL": "a:1,b:2", "REDIS_TYPE": "cluster", "REDIS_TLS": "1"},
            "--storage redis+cluster://a:1,b:2?tls=true",
            id="a cluster over TLS",
        ),
        pytest.param(
            {"REDIS_URL": "h:1", **TLS},
            "--storage rediss://h:1/0?ssl_ca_certs=/ca.pem&ssl_certfile=/c.pem&ssl_keyfile=/k.pem&"
            "ssl_check_hostname=false",
            id="certificates",
        ),
        pytest.param({"REDIS_URL": '$(id)`"', "REDIS_AUTH": "p"}, '--storage redis://:p@$(id)`"/0', id="odd texts"),
        pytest.param({"REDIS_URL": "redis://:p@h/1"}, "--storage redis://:p@h/1", id="a whole URL"),
        pytest.param({"REDIS_URL": "h:1", "BACKEND_TYPE": "memcache"}, "", id="memcached"),
        pytest.param({"GRPC_UDS": "/run/g", "GRPC_PORT": "1", "HOST": "::1"}, "--grpc unix:/run/g --http [::1]:8080",
                     id="addresses"),
        pytest.param(
            {"GRPC_SERVER_TLS_CERT": "/c", "GRPC_SERVER_TLS_KEY": "/k", "GRPC_CLIENT_TLS_CACERT": "/a",
             "LIMIT_RESPONSE_HEADERS_ENABLED": "true", "GRPC_MAX_CONNECTION_AGE": "24h", "LOG_FORMAT": "json"},
            "--headers go --max-connection-age 24h --tls-cert /c --tls-key /k --client-ca /a --log-format json",
            id="copies",
        ),
    ],
)  # fmt: skip
def test_a_shell_passes_the_flags_of_the_command_that_is_printed(environ, flags):
    assert words_of(environ) == flags.split()


def test_a_file_is_read_as_docker_and_shells_read_it(tmp_path):
    text = "\ufeffA=1\r\n# B=2\n\n\texport \tB = 'x #y' # z\nC=a=b#c\nD=\nE= # e\nF=\"\"\nG=x y\t# g\nH='\"'\n"
    (tmp_path / "f.env").write_bytes(text.encode())
    found = read_file(tmp_path / "f.env")
    assert found == {"A": "1", "B": "x #y", "C": "a=b#c", "D": "", "E": "", "F": "", "G": "x y", "H": '"'}


@pytest.mark.parametrize(
    "line", ["SHADOW_MODE", "SHADOW_MODE: x", "=x", 'A="hunter2', 'A="hunter2"b', "A B=x", "A=\xff"]
)
def test_a_line_that_cannot_be_read_is_refused_without_its_value(tmp_path, line):
    (tmp_path / "f.env").write_bytes(f"A=1\n{line}\n".encode("latin-1"))
    with pytest.raises(ConfigurationError) as caught:
        read_file(tmp_path / "f.env")
    told = "the file is not UTF-8 text" if line == "A=\xff" else "line 2 is not NAME=value"
    assert str(caught.value) == f"{tmp_path / 'f.env'}: {told}"


@pytest.mark.parametrize(("password", "noted"), [("u:p @-$", False), ("p/h", True), ("p%h", True)])
def test_a_password_that_a_url_has_not_as_it_is_gets_a_note(password, noted):
    notes = list(notes_on({"REDIS_URL": "h:1", "REDIS_AUTH": password}))
    assert any(note.startswith("REDIS_AUTH: a URL needs %2F") for note in notes) is noted
    assert password not in str(notes)


def test_an_empty_switch_and_an_odd_truth_do_not_make_a_service_in_shadow_enforce(tmp_path):
    assert said(tmp_path, {"SHADOW_MODE": "true", "RATELIMIT_MW": ""}).keys() == {"SHADOW_MODE"}
    assert command_for({"SHADOW_MODE": "yes"}).startswith("RATELIMIT_MW=shadow ")


def test_the_page_has_the_variables_of_the_map_and_their_flags():
    rows = re.findall(r"^\| (`[A-Z].*?) \| (.*?) \|$", SECTION, re.MULTILINE)
    named = {name: here for names, here in rows for name in re.findall(r"`([A-Z_]+\*?)`", names)}
    (listed,) = re.findall(r"^```text\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)
    with_place = {name for name, variable in VARIABLES.items() if variable.setting or variable.instead}
    assert named.keys() == with_place
    assert set(listed.split()) == VARIABLES.keys() - with_place
    for name, here in named.items():
        variable = VARIABLES[name]
        flags = [flag_of(variable.setting)] if variable.setting else re.findall(r"--[a-z-]+", variable.instead)
        assert [flag for flag in flags if not re.search(rf"{flag}\b", here)] == [], name
        assert variable.setting in {"", *FLAGS}


def test_the_page_shows_what_the_command_prints():
    command = r"^\$ cat old.env\n(.*?)^\$ ratelimit-mw from-envoy-ratelimit old.env\n(.*?)^```"
    ((file, printed),) = re.findall(command, SECTION, re.MULTILINE | re.DOTALL)
    assert command_for(dict(line.split("=", 1) for line in file.splitlines())) == printed.strip()


def test_the_command_serves_the_rules_of_the_old_service_from_its_redis(tmp_path, fresh_server):
    folder = tmp_path / "ratelimit" / "config"
    folder.mkdir(parents=True)
    (folder / "shop.yaml").write_text(RULES)
    environ = {
        "RUNTIME_ROOT": str(tmp_path),
        "RUNTIME_SUBDIRECTORY": "ratelimit",
        "REDIS_SOCKET_TYPE": "tcp",
        "REDIS_URL": f"127.0.0.1:{fresh_server.port}",
        "REDIS_AUTH": "a-password",
        "GRPC_HOST": "127.0.0.1",
        "GRPC_PORT": "0",
        "USE_STATSD": "false",
    }
    fresh_server.config("requirepass", "a-password")
    with Serving("", *words_of(environ), **environ) as service:
        codes = [service.ask(request("shop", descriptor(("user", "ann")))).overall_code for _ in range(4)]
        written = "".join(service.lines)
    assert codes == [1, 1, 1, 2]
    assert len(fresh_server.client(password="a-password").keys("shop:/user*")) == 1
    assert "envoyproxy" not in written
    assert "a-password" not in written
