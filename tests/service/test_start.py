"""When the service refuses to start: every reason at once, before a port is opened."""

import math
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from ratelimit_mw import ConfigurationError
from ratelimit_mw.service import Address, Settings
from ratelimit_mw.service.runner import prepare
from ratelimit_mw.service.settings import FLAGS, flag_of, variable_of
from tests.support.apps import ROOT
from tests.support.ports import free_port
from tests.support.service import rules_at

RULES = (
    "domain: shop\nclient: {secret: s}\ndescriptors: [{key: user, rate_limit: {unit: year, requests_per_unit: 3}}]\n"
)


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def problems(settings):
    """Why the service does not start. If it would start, its sockets are closed."""
    try:
        service, sockets = prepare(settings)
    except ConfigurationError as error:
        return [problem.message for problem in error.problems]
    service.limiter.close()
    for each in sockets.values():
        each.close()
    return []


def read_problems(**texts):
    with pytest.raises(ConfigurationError) as raised:
        Settings.read(rules="r.yaml", **texts)
    return [str(problem) for problem in raised.value.problems]


def test_every_reason_is_reported_at_once(tmp_path, taken):
    rules = rules_at(tmp_path, "domain: shop\nrules: [{name: a, limit: x}, {name: b, limit: y}]\n")
    found = problems(Settings.read(rules=str(rules), grpc=str(taken), http="0", admin="0"))
    assert len(found) == 3
    assert found[0].startswith("rules[0]")
    assert found[1].startswith("rules[1]")
    assert found[2] == f"--grpc: 127.0.0.1:{taken} can't be used: Address already in use"


def test_two_flags_that_mean_one_port_are_refused(tmp_path):
    port = free_port()
    tokens = tmp_path / "tokens"
    tokens.write_text("check 0123456789abcdef\n")
    rules = str(rules_at(tmp_path, RULES))
    for name, other in (("grpc", "0.0.0.0"), ("http", "0.0.0.0")):
        flags = {"grpc": "0", "http": "0", name: str(port), "admin": f"{other}:{port}"}
        found = problems(Settings.read(rules=rules, token_file=str(tokens), **flags))
        assert found == [f"--admin: {other}:{port} can't be used: Address already in use"]


def test_a_host_that_is_no_name_is_refused(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("check 0123456789abcdef\n")
    settings = Settings.read(
        rules=str(rules_at(tmp_path, RULES)), grpc="a..b:1", http="off", admin="off", token_file=str(tokens)
    )
    (found,) = problems(settings)
    assert found.startswith("--grpc: a..b:1 can't be used: ")


def test_certificates_that_cannot_be_used_are_refused_with_the_other_reasons(tmp_path, taken):
    """A key with a password is refused, too: nothing asks for it on the terminal."""
    authority = trustme.CA()
    issued, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    files = {name: tmp_path / name for name in ("junk", "cert", "key", "other", "locked")}
    files["junk"].write_text("junk")
    issued.cert_chain_pems[0].write_to_path(str(files["cert"]))
    issued.private_key_pem.write_to_path(str(files["key"]))
    other.private_key_pem.write_to_path(str(files["other"]))
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    locked = serialization.BestAvailableEncryption(b"secret")
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    files["locked"].write_bytes(key.private_bytes(*form, locked))

    def found(cert, key, ca="cert"):
        settings = Settings.read(
            rules=str(rules_at(tmp_path, RULES)),
            grpc=str(taken),
            http="off",
            admin="off",
            tls_cert=str(files[cert]),
            tls_key=str(files[key]),
            client_ca=str(files[ca]),
        )
        *tls, port = problems(settings)
        assert port == f"--grpc: 127.0.0.1:{taken} can't be used: Address already in use"
        return [each.partition(":")[0] for each in tls]

    assert found("cert", "key") == []
    assert found("junk", "junk") == found("cert", "other") == found("cert", "locked") == ["--tls-cert and --tls-key"]
    assert found("junk", "key", "junk") == ["--tls-cert and --tls-key", "--client-ca"]


def test_no_port_is_opened_if_one_of_them_is_taken(tmp_path, taken):
    path = tmp_path / "s"
    settings = Settings.read(rules=str(rules_at(tmp_path, RULES)), grpc=f"unix:{path}", http=str(taken), admin="off")
    assert problems(settings) == [f"--http: 127.0.0.1:{taken} can't be used: Address already in use"]
    assert not path.exists()


def test_the_file_of_a_unix_socket_without_a_listener_is_replaced(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    settings = Settings.read(rules=str(rules_at(tmp_path, RULES)), grpc="off", http=f"unix:{path}", admin="off")
    assert problems(settings) == []


@pytest.mark.parametrize("kind", ["listener", "file"])
def test_the_file_of_a_unix_socket_with_a_listener_and_any_other_file_are_kept(tmp_path, kind):
    path = tmp_path / "s"
    settings = Settings.read(rules=str(rules_at(tmp_path, RULES)), grpc="off", http=f"unix:{path}", admin="off")
    if kind == "file":
        path.touch()
        (problem,) = problems(settings)
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            (problem,) = problems(settings)
    assert problem.startswith(f"--http: unix:{path} can't be used: ")
    assert path.exists()


def test_the_command_prints_the_reasons_and_exits_with_1(tmp_path, taken):
    rules = rules_at(tmp_path, "domain: shop\nrules: [{name: a, limit: x}]\n")
    words = ["--rules", rules, "--grpc", str(taken), "--http", "0", "--admin", "0"]
    ran = subprocess.run(
        [sys.executable, "-m", "ratelimit_mw", "serve", *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert ran.returncode == 1
    assert ran.stderr.count(": error: ") + ran.stderr.startswith("error: ") == 2
    assert "ratelimit-mw: the service can't start\n" in ran.stderr


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        ({"grpc": "x:y"}, "--grpc: 'x:y' is not HOST:PORT, PORT, unix:PATH or off"),
        ({"grpc": "65536"}, "--grpc: '65536' is not HOST:PORT, PORT, unix:PATH or off"),
        ({"http": "unix:"}, "--http: 'unix:' needs the path of a socket, such as unix:/run/"),
        ({"admin": "0.0.0.0:9090"}, "--admin: 0.0.0.0:9090 is not loopback, so it needs --token-file"),
        (
            {"grpc": "[::]:81"},
            "--grpc: [::]:81 is not loopback, so it needs --token-file or --client-ca, or --allow-anyone on a ",
        ),
        ({"http": "shop:80"}, "--http: shop:80 is not loopback, so it needs --token-file or --client-ca"),
        ({"grpc": "off", "http": "off", "admin": "off"}, "--grpc, --http and --admin: all of them are off"),
        ({"grpc": "8080"}, "--grpc, --http and --admin: each needs an address of its own"),
        ({"tls_cert": __file__}, "--tls-cert and --tls-key: give both or neither"),
        ({"client_ca": __file__}, "--client-ca: needs --tls-cert and --tls-key"),
        ({"token_file": "/none"}, "--token-file: '/none' can't be read"),
        ({"max_message": "10"}, "--max-message: '10' is not a size from 1KiB to 64MiB"),
        ({"max_message": "large"}, "--max-message: 'large' is not a size from 1KiB to 64MiB"),
        ({"max_message": "65MiB"}, "--max-message: '65MiB' is not a size from 1KiB to 64MiB"),
        ({"drain": "5 parsecs"}, "--drain: 'parsecs' is not a unit of time (known: "),
        ({"near": "1.1"}, "--near: '1.1' is not a number above 0 and at most 1"),
        ({"headers": "rule"}, "--headers: 'rule' is not off, rules or go (did you mean 'rules'?)"),
        ({"log_format": "xml"}, "--log-format: 'xml' is not text or json"),
        ({"storage": ""}, "--storage: the value is empty"),
        ({"body": "yes"}, "--body: 'yes' is not true or false"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused(texts, why):
    (found,) = read_problems(**texts)
    assert found.startswith(why)


def test_all_settings_that_cannot_be_used_are_reported_together():
    assert len(read_problems(near="0", grpc="x", headers="all", admin="0.0.0.0:1", tls_key=__file__)) == 5


def test_settings_are_read_as_on_the_command_line():
    read = Settings.read(
        rules="r.yaml",
        grpc="unix:/run/rl.sock",
        http="[::1]:8080",
        admin="off",
        max_message="128KiB",
        drain="0",
        grace="500ms",
        max_connection_age="1 hour",
        tls_cert=None,
    )
    assert (read.grpc, read.http, read.admin) == (Address("", 0, "/run/rl.sock"), Address("::1", 8080), None)
    assert (read.max_message, read.drain, read.grace, read.max_connection_age) == (131072, 0.0, 0.5, 3600.0)
    assert [str(each) for each in read.addresses.values()] == ["unix:/run/rl.sock", "[::1]:8080"]


def test_an_age_that_is_off_has_no_end():
    assert Settings.read(rules="r.yaml", max_connection_age="Off").max_connection_age == math.inf


def test_the_ports_are_on_loopback_by_default():
    addresses = Settings.read(rules="r.yaml").addresses
    assert {name: str(each) for name, each in addresses.items()} == {
        "grpc": "127.0.0.1:8081",
        "http": "127.0.0.1:8080",
        "admin": "127.0.0.1:9090",
    }
    assert all(each.loopback for each in addresses.values())


def test_each_setting_has_its_flag_and_its_variable():
    shown = subprocess.run(
        [sys.executable, "-m", "ratelimit_mw", "serve", "--help"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"COLUMNS": "200", "PATH": "", "PYTHONPATH": str(ROOT)},
        check=True,
    ).stdout
    assert [name for name in FLAGS if f"{flag_of(name)} " not in shown.replace(",", " ")] == []
    assert [name for name in FLAGS if variable_of(name) not in shown] == []


def test_rules_that_do_not_exist_are_a_reason(tmp_path):
    settings = Settings.read(rules=str(tmp_path / "none.yaml"), grpc="0", http="off", admin="off")
    (problem,) = problems(settings)
    assert "No such file" in problem
    assert not Path(tmp_path / "none.yaml").exists()
