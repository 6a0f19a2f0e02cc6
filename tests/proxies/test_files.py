"""The files of examples/service that no test can run here: the image, and what systemd, Compose and Kubernetes read."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

from ratelimit_mw import RateLimiter
from ratelimit_mw.service.access import read_tokens
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


def flags_of(environment):
    """The flags that these variables stand for, and their values."""
    return [part for name, value in environment.items() for part in (f"--{name[10:].lower().replace('_', '-')}", value)]


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
    program, verb, *arguments = shlex.split(command.replace("\\\n", "").replace("%i", "254"))
    assert (program.rpartition("/")[2], verb) == ("ratelimit-mw", "serve")
    found = settings(arguments)
    assert [str(each) for each in found.addresses.values()] == [f"127.1.0.254:{port}" for port in (8081, 8080, 9090)]
    assert seconds(UNIT, "TimeoutStopSec") > found.drain + found.grace


def test_the_compose_file_starts_the_service_where_envoy_asks(settings):
    service = COMPOSE["ratelimit"]
    found = settings(flags_of(service["environment"]))
    assert str(found.grpc).rpartition(":")[2] in (EXAMPLES / "envoy.yaml").read_text("utf-8")
    assert int(service["stop_grace_period"].rstrip("s")) > found.drain + found.grace
    assert (service["build"], service["read_only"], "command" in service) == (".", True, False)


IMAGE = re.sub(r"\\\n\s*", "", (EXAMPLES / "Dockerfile").read_text("utf-8"))


def test_the_image_is_slim_and_serves_as_another_user_than_root():
    *_, last = re.split(r"^FROM (?=.*$)", IMAGE, flags=re.MULTILINE)
    base, *lines = [line for line in last.splitlines() if line and not line.startswith("#")]
    found = dict(line.split(" ", 1) for line in lines)
    assert base == "python:3.13-slim"
    assert list(found) == ["COPY", "ENV", "USER", "EXPOSE", "HEALTHCHECK", "ENTRYPOINT", "CMD"]
    assert found["USER"] == "65532:65532"
    assert json.loads(found["ENTRYPOINT"]) + json.loads(found["CMD"]) == ["ratelimit-mw", "serve"]
    assert json.loads(found["HEALTHCHECK"].partition("CMD ")[2]) == ["ratelimit-mw", "ask", "--health"]
    assert found["COPY"].split()[-1] + "/bin:$PATH" in found["ENV"]
    extras = re.search(r"'ratelimit_mw\[(.*)\]'", IMAGE)[1].split(",")
    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert set(extras) <= known.keys()


OBJECTS = {each["kind"]: each for each in yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text("utf-8"))}
POD = OBJECTS["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
NOT_OF_KUBERNETES = {"PodMonitor"}


def test_the_gateway_of_a_mesh_asks_the_service_of_the_manifests():
    text = (EXAMPLES / "istio.yaml").read_text("utf-8")
    spec, metadata = OBJECTS["Service"]["spec"], OBJECTS["Service"]["metadata"]
    assert f"outbound|{spec['ports'][0]['port']}||{metadata['name']}.ratelimit.svc.cluster.local" in text
    for each in list(yaml.safe_load_all(text))[1:]:
        assert each["spec"]["selector"] == {"matchLabels": spec["selector"]}
        assert each["metadata"] == {"name": metadata["name"], "namespace": "ratelimit"}


@pytest.mark.parametrize("kind", sorted(OBJECTS.keys() - NOT_OF_KUBERNETES))
def test_kubernetes_knows_every_field(kind):
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    assert kubernetes_validate.validate(OBJECTS[kind], "1.34", strict=True)


def test_the_monitor_reads_the_metrics_with_the_admin_token():
    """The schema of this kind is in no package: these are its fields as Prometheus Operator documents them."""
    labels = OBJECTS["Deployment"]["spec"]["selector"]
    token = {"name": "ratelimit-mw-tokens", "key": "admin-token"}
    monitor = OBJECTS["PodMonitor"]
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["spec"] == {
        "selector": labels,
        "podMetricsEndpoints": [
            {"port": "admin", "path": "/metrics", "authorization": {"type": "Bearer", "credentials": token}}
        ],
    }
    secret = OBJECTS["Secret"]["stringData"]
    assert f"admin {secret['admin-token']}\n" in secret["tokens"]


def test_the_pods_start_with_files_and_ports_that_the_manifests_have(settings, tmp_path):
    environment = {each["name"]: each["value"] for each in CONTAINER["env"]}
    tokens = Path(environment.pop("RATELIMIT_TOKEN_FILE"))
    (tmp_path / "tokens").write_text(OBJECTS["Secret"]["stringData"]["tokens"])
    found = settings([*flags_of(environment), "--token-file", str(tmp_path / "tokens")])
    assert len(read_tokens(found.token_file)) == 2
    assert {each["name"]: each["containerPort"] for each in CONTAINER["ports"]} == {
        name: address.port for name, address in found.addresses.items()
    }
    mounts = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}
    assert mounts == {"rules": found.rules, "tokens": str(tokens.parent)}
    assert [volume["name"] for volume in POD["volumes"]] == ["rules", "tokens"]
    assert POD["volumes"][1]["secret"]["items"] == [{"key": "tokens", "path": tokens.name}]
    assert POD["terminationGracePeriodSeconds"] > found.drain + found.grace
    rules = yaml.safe_load(OBJECTS["ConfigMap"]["data"]["ratelimits.yaml"])
    RateLimiter(rules).close()


def test_the_pods_are_probed_without_a_token_and_may_do_little():
    probes = {name: CONTAINER[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    alive, ready = ({"path": path, "port": "admin"} for path in ("/livez", "/readyz"))
    assert probes == {"startup": alive, "liveness": alive, "readiness": ready}
    assert POD["securityContext"]["runAsNonRoot"]
    assert CONTAINER["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert OBJECTS["Service"]["spec"]["clusterIP"] == "None"
    assert {port["targetPort"] for port in OBJECTS["Service"]["spec"]["ports"]} == {"grpc", "http"}


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
