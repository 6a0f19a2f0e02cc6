"""The files of examples/service that no test can run here: the systemd unit and the compose file."""

import re
import shlex

import pytest
import yaml

from tests.proxies.running import EXAMPLES

UNIT = (EXAMPLES / "ratelimit-mw@.service").read_text("utf-8")
COMPOSE = yaml.safe_load((EXAMPLES / "compose.yaml").read_text("utf-8"))["services"]


def seconds(text, setting):
    (found,) = re.findall(rf"{setting}[=:] ?(\d+)", text)
    return int(found)


@pytest.fixture
def settings():
    """Reads flags as `ratelimit-mw serve` does."""
    pytest.importorskip("grpc", reason="the extra serve is not installed")
    from ratelimit_mw.service import Settings

    def read(arguments):
        flags = [each.removeprefix("--").replace("-", "_") for each in arguments[::2]]
        return Settings.read(**dict(zip(flags, arguments[1::2], strict=True)))

    return read


def test_the_unit_starts_the_service_with_ports_of_its_own(settings):
    (command,) = re.findall(r"^ExecStart=((?:.*\\\n)*.*)$", UNIT, re.MULTILINE)
    program, verb, *arguments = shlex.split(command.replace("\\\n", "").replace("%i", "1"))
    assert (program.rpartition("/")[2], verb) == ("ratelimit-mw", "serve")
    found = settings(arguments)
    assert [str(each) for each in found.addresses.values()] == ["127.0.0.1:18081", "127.0.0.1:18071", "127.0.0.1:18061"]
    assert seconds(UNIT, "TimeoutStopSec") > found.drain + found.grace


def test_the_compose_file_starts_the_service_where_envoy_asks(settings):
    service = COMPOSE["ratelimit"]
    arguments = [part for name, value in service["environment"].items() for part in (f"--{name[10:].lower()}", value)]
    found = settings(arguments)
    assert str(found.grpc).rpartition(":")[2] in (EXAMPLES / "envoy.yaml").read_text("utf-8")
    assert int(service["stop_grace_period"].rstrip("s")) > found.drain + found.grace
    assert service["command"][-1].endswith("ratelimit-mw serve")


def test_the_compose_file_mounts_files_of_the_folder():
    mounted = [volume.split(":")[0] for service in COMPOSE.values() for volume in service.get("volumes", [])]
    assert mounted
    assert [path for path in mounted if not (EXAMPLES / path).exists()] == []
    rules = COMPOSE["ratelimit"]["environment"]["RATELIMIT_RULES"].rpartition("/")[2]
    assert (EXAMPLES / rules).is_file()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.*")), ids=lambda path: path.name)
def test_the_first_lines_of_an_example_name_files_that_exist(path):
    head = "\n".join(line for line in path.read_text("utf-8").splitlines()[:6] if line.startswith("#"))
    named = set(re.findall(r"(?:--rules|-c) (\S+)", head))
    assert [name for name in named if not (EXAMPLES / name).is_file()] == []
