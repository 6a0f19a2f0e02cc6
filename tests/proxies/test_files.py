"""The files of examples/service that no test can run here: the systemd unit and the compose file."""

import re
import shlex

import pytest
import yaml

from tests.proxies.running import EXAMPLES
from tests.support.apps import ROOT

PAGE, MOVING = (
    (ROOT / "docs" / f"{name}.md").read_text("utf-8") for name in ("beside-your-proxy", "moving-from-envoy-ratelimit")
)
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


ENVOY = sorted(EXAMPLES.glob("envoy*.yaml"))
CLEAN = {
    "normalize_path": True,
    "merge_slashes": True,
    "path_with_escaped_slashes_action": "UNESCAPE_AND_REDIRECT",
}


@pytest.mark.parametrize("path", ENVOY, ids=lambda path: path.name)
def test_every_file_for_envoy_limits_all_spellings_of_a_path(path):
    (listener,) = yaml.safe_load(path.read_text("utf-8"))["static_resources"]["listeners"]
    edge = listener["filter_chains"][0]["filters"][0]["typed_config"]
    assert {key: edge.get(key) for key in CLEAN} == CLEAN
    (host,) = edge["route_config"]["virtual_hosts"]
    matches = [route["match"] for route in host["routes"]]
    assert matches.pop() == {"prefix": "/"}
    assert [match for match in matches if match.keys() != {"prefix", "case_sensitive"}] == []
    assert [match for match in matches if match["case_sensitive"]] == []


SNIPPETS = re.findall(r"^```\w+\n# examples/service/(\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("name", "snippet"), SNIPPETS)
def test_what_the_page_shows_of_a_file_is_in_it(name, snippet):
    lines = [line.strip() for line in (EXAMPLES / name).read_text("utf-8").splitlines()]
    shown = [line.strip() for line in snippet.splitlines()]
    starts = [place for place, line in enumerate(lines) if line == shown[0]]
    assert shown in [lines[start : start + len(shown)] for start in starts]


def test_the_rules_that_the_page_shows_are_those_of_the_files():
    shown = [
        yaml.safe_load(text) for text in re.findall(r"^```yaml\n(domain: .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    ]
    files = [yaml.safe_load((EXAMPLES / name).read_text()) for name in ("ratelimits.yaml", "ratelimits-nginx.yaml")]
    (tenant,) = [each for each in files[0]["descriptors"] if each["key"] == "tenant"]
    files[0]["descriptors"].remove(tenant)  # the page leaves it out
    assert shown == files


def test_the_configurations_that_were_not_run_can_be_parsed_at_least():
    (traefik,) = re.findall(r"^```yaml\n(# Traefik.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert yaml.safe_load(traefik)["http"]["middlewares"]["ratelimit"]["forwardAuth"]["address"].endswith(
        "/auth?headers=forwarded"
    )


@pytest.mark.parametrize("page", [PAGE, MOVING], ids=["beside-your-proxy", "moving-from-envoy-ratelimit"])
def test_the_pages_name_flags_that_exist(page):
    pytest.importorskip("grpc", reason="the extra serve is not installed")
    from ratelimit_mw.service.settings import FLAGS

    of_other_commands = {"domain", "for-service", "health", "now", "with-http"}
    flags = set(re.findall(r"(?<![\w-])--([a-z][a-z-]+)", page)) - of_other_commands
    assert flags - {name.replace("_", "-") for name in FLAGS} == set()


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.*")), ids=lambda path: path.name)
def test_the_first_lines_of_an_example_name_files_that_exist(path):
    head = "\n".join(line for line in path.read_text("utf-8").splitlines()[:6] if line.startswith("#"))
    named = set(re.findall(r"(?:--rules|-c) (\S+)", head))
    assert [name for name in named if not (EXAMPLES / name).is_file()] == []
