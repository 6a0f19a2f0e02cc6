"""What operators do while a real Envoy asks: stop a process, change the rules, look at its health, use certificates."""

import contextlib
import signal
import subprocess
import threading
import time

import grpc
import httpx2
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ratelimit_mw import RateLimiter
from tests.proxies.running import EXAMPLES, project, replace
from tests.support.patience import eventually

pytest.importorskip("envoy.service.ratelimit.v3.rls_pb2_grpc", reason="xds-protos is not installed")

from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc

AFTER_EACH = 0.02
"""Seconds between two requests of the load: the machine has other tests to run."""


@contextlib.contextmanager
def load(url):
    """Send requests in two threads as long as the block runs. Yields the list of their statuses."""
    statuses, over = [], threading.Event()

    def send():
        with httpx2.Client(base_url=url, timeout=60) as http:
            while not over.is_set():
                statuses.append(http.get("/").status_code)
                time.sleep(AFTER_EACH)

    threads = [threading.Thread(target=send) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        over.set()
        for thread in threads:
            thread.join()


def more(statuses, number=20):
    """Wait until this many more requests were answered."""
    before = len(statuses)
    eventually(lambda: len(statuses) >= before + number)


def test_of_two_processes_one_stops_under_load_and_no_request_is_lost(any_server):
    with project() as here, here.app():
        here.edit("ratelimits.yaml", "requests_per_unit: 3", "requests_per_unit: 1000000")
        line = f"- endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {here.port[18081]}}}}}}}"
        other = line.replace(str(here.port[18081]), str(here.port[18083]))
        here.edit("envoy-headers-by-service.yaml", line, f"{line}\n              {other}")
        here.edit("ratelimits.yaml", "domain: shop", "domain: shop\nstorage: {timeout: 5s}")
        with (
            here.service("ratelimits.yaml", "--drain", "6s", "--storage", any_server.url) as first,
            here.service(
                "ratelimits.yaml", "--storage", any_server.url, grpc=18083, http=here.spare(), admin=here.spare()
            ),
            here.envoy("envoy-headers-by-service.yaml") as envoy,
            load(envoy.url) as statuses,
        ):
            eventually(lambda: envoy.stat("cluster.ratelimit.membership_healthy") == 2)
            more(statuses)
            first.signal(signal.SIGTERM)
            eventually(lambda: envoy.stat("cluster.ratelimit.membership_healthy") == 1)
            assert first.child.poll() is None, "it answers until Envoy knows that it will stop"
            assert first.child.wait(60) == 0
            more(statuses)
        assert set(statuses) == {200}  # failure_mode_deny: a call without an answer would be a 500
        with RateLimiter(here.directory / "ratelimits.yaml", storage=any_server.url) as limiter:
            left = limiter.peek([("remote_address", "127.0.0.1")]).remaining
        assert left == 1_000_000 - len(statuses), "both processes counted, each request once"


def test_rules_change_and_connections_end_under_load_and_no_request_is_lost():
    with project() as here, here.app():
        here.edit("ratelimits.yaml", "requests_per_unit: 3", "requests_per_unit: 1000000")
        with (
            here.service("ratelimits.yaml", "--max-connection-age", "500ms") as service,
            here.envoy("envoy-headers-by-service.yaml") as envoy,
            load(envoy.url) as statuses,
        ):
            rules = here.directory / "ratelimits.yaml"
            text = rules.read_text()
            more(statuses)
            replace(rules, "domain: shop\ndescriptors: [{key: a, rate_limit: {unit: fortnight}}]\n")
            service.signal(signal.SIGHUP)
            more(statuses)
            assert set(statuses) == {200}, "the last good rules stay in force"
            for limit in (2_000_000, 3_000_000, 4_000_000):
                replace(rules, text.replace("1000000", str(limit)))
                service.signal(signal.SIGHUP)
                more(statuses, 5)
            replace(rules, text.replace("1000000", "0"))
            service.signal(signal.SIGHUP)
            eventually(lambda: statuses[-1] == 429)
            more(statuses)
            eventually(lambda: envoy.stat("cluster.ratelimit.upstream_cx_total") >= 3)
        assert set(statuses) == {200, 429}
        assert set(statuses[-10:]) == {429}


def asked(channel):
    """The code of a decision about one descriptor that no limit applies to."""
    request = rls_pb2.RateLimitRequest(domain="shop")
    request.descriptors.add().entries.add(key="any", value="thing")
    return rls_pb2_grpc.RateLimitServiceStub(channel).ShouldRateLimit(request, timeout=60).overall_code


def made_run(here):
    """The folder of the certificates and the token that the example makes."""
    subprocess.run(["sh", str(EXAMPLES / "certificates.sh")], cwd=here.directory, check=True, capture_output=True)
    return here.directory / "run"


def test_only_clients_with_a_certificate_may_ask():
    with project() as here, here.app():
        run = made_run(here)
        flags = ["--tls-cert", "run/srv.pem", "--tls-key", "run/srv.key", "--client-ca", "run/ca.pem"]
        target = f"127.0.0.1:{here.port[18083]}"
        trusted = {"root_certificates": (run / "ca.pem").read_bytes()}
        known = trusted | {
            "private_key": (run / "cli.key").read_bytes(),
            "certificate_chain": (run / "cli.pem").read_bytes(),
        }
        name = [("grpc.ssl_target_name_override", "ratelimit.test")]
        with (
            here.service("ratelimits.yaml", *flags, grpc=18083),
            here.envoy("envoy-mtls.yaml", port=18889, admin=18902) as envoy,
        ):
            with httpx2.Client(base_url=envoy.url, timeout=60) as http:
                assert [http.get("/").status_code for _ in range(4)] == [200, 200, 200, 429]
            with grpc.secure_channel(target, grpc.ssl_channel_credentials(**known), name) as channel:
                assert asked(channel) == rls_pb2.RateLimitResponse.OK
            with grpc.secure_channel(target, grpc.ssl_channel_credentials(**trusted), name) as channel:
                with pytest.raises(grpc.RpcError) as refused:
                    asked(channel)
                assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_envoy_asks_with_a_token_over_tls_and_without_it_is_refused_in_the_log():
    with project() as here, here.app():
        token = (made_run(here) / "tokens").read_text().split()[1]
        flags = ["--tls-cert", "run/srv.pem", "--tls-key", "run/srv.key", "--token-file", "run/tokens"]

        def statuses(shown):
            ports = {"port": 18889, "admin": 18902}
            with here.envoy("envoy-bearer.yaml", environment={"RATELIMIT_TOKEN": shown}, **ports) as envoy:
                return [httpx2.get(envoy.url, timeout=60).status_code for _ in range(4)]

        with here.service("ratelimits.yaml", *flags, grpc=18083) as service:
            assert statuses("another-0123456789") == [200] * 4, "Envoy lets requests pass"
            assert "a caller at 127.0.0.1 was refused: gRPC needs a token" in service.log
            assert statuses(token) == [200, 200, 200, 429]


def test_the_gateway_of_a_mesh_asks_a_service_that_allows_anyone():
    """What the patches for Istio add to the configuration of a gateway, without its sidecars."""
    patches = next(yaml.safe_load_all((EXAMPLES / "istio.yaml").read_text()))["spec"]["configPatches"]
    asks, names = (patch["patch"]["value"] for patch in patches)
    asks["typed_config"]["rate_limit_service"]["grpc_service"]["envoy_grpc"]["cluster_name"] = "ratelimit"
    asks["typed_config"]["timeout"] = "20s"
    with project() as here, here.app():
        path = here.directory / "envoy.yaml"
        config = yaml.safe_load(path.read_text())
        (listener,) = config["static_resources"]["listeners"]
        edge = listener["filter_chains"][0]["filters"][0]["typed_config"]
        edge["http_filters"] = [asks, edge["http_filters"][-1]]
        (host,) = edge["route_config"]["virtual_hosts"]
        host.update(names, routes=host["routes"][-1:])
        path.write_text(yaml.safe_dump(config))
        with (
            here.service("ratelimits.yaml", "--allow-anyone", host="0.0.0.0") as service,
            here.envoy("envoy.yaml") as envoy,
        ):
            assert "--allow-anyone: every caller" in service.log
            assert [httpx2.get(envoy.url, timeout=60).status_code for _ in range(4)] == [200, 200, 200, 429]
            reset = httpx2.post(f"http://127.0.0.1:{here.port[18080]}/v1/reset", json={}, timeout=60)
            assert reset.status_code == 403


def health(channel, service):
    request = health_pb2.HealthCheckRequest(service=service)
    return health_pb2_grpc.HealthStub(channel).Check(request, timeout=60).status


def test_health_says_that_the_process_drains_while_it_still_answers():
    serving, not_serving = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING
    with project() as here, here.service("ratelimits.yaml", "--drain", "60s") as service:
        target = f"127.0.0.1:{here.port[18081]}"
        http = f"http://127.0.0.1:{here.port[18080]}"
        with grpc.insecure_channel(target) as channel:
            assert [health(channel, name) for name in ("", "ratelimit")] == [serving] * 2
            watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="ratelimit"))
            assert next(watched).status == serving
            assert [httpx2.get(f"{http}/{page}").status_code for page in ("livez", "readyz", "healthcheck")] == [
                200
            ] * 3
            service.signal(signal.SIGTERM)
            assert next(watched).status == not_serving
            assert health(channel, "ratelimit") == not_serving
            assert [httpx2.get(f"{http}/{page}").status_code for page in ("livez", "readyz")] == [200, 503]
            assert asked(channel) == rls_pb2.RateLimitResponse.OK
            watched.cancel()
            service.signal(signal.SIGTERM)
            service.child.wait(60)
