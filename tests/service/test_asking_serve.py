"""An app that asks a running `ratelimit-mw serve`: tokens, TLS, and a service that is killed, frozen or replaced."""

import asyncio
import signal
import subprocess
import sys
import urllib.request

import pytest
import trustme

from ratelimit_mw import RateLimiter
from ratelimit_mw.errors import StoreUnavailable
from tests.support.apps import ROOT
from tests.support.patience import aeventually, eventually
from tests.support.ports import free_port
from tests.support.service import Serving, rules_at

RULES = """\
domain: shop
client: {secret: s}
storage: {url: 'URL', timeout: 5s}
rules: [{name: everybody, by: ip, limit: 1000 per year, algorithm: fixed_window}]
"""
TOKEN = "check-0123456789abcdef"
ANN = {"ip": "192.0.2.1"}


def rules(folder, url="memory://"):
    return rules_at(folder, RULES.replace("URL", url))


def of_app(url, timeout="5s", **sections):
    """The file of an app that asks the service at this URL."""
    storage = {"url": url, "timeout": timeout, **sections}
    return {"domain": "shop", "storage": storage, "client": {"secret": "of-the-app"}}


def test_the_processes_of_a_fleet_share_the_counters_of_the_service_in_redis(tmp_path, any_server):
    with Serving(rules(tmp_path, any_server.url)) as one, Serving(rules(tmp_path, any_server.url)) as two:
        apps = [RateLimiter(of_app(service.http)) for service in (one, two)]
        left = [apps[n % 2].check(ANN).remaining for n in range(4)]
        for app in apps:
            app.close()
    assert left == [999, 998, 997, 996]


def test_a_hundred_requests_in_flight_take_a_few_calls_of_the_service(tmp_path):
    async def at_once(limiter):
        await limiter.acheck(ANN)
        return await asyncio.gather(*[limiter.acheck(ANN) for _ in range(100)])

    with Serving(rules(tmp_path)) as service, RateLimiter(of_app(service.http)) as limiter:
        decisions = asyncio.run(at_once(limiter))
        with urllib.request.urlopen(f"{service.admin}/metrics") as response:
            lines = response.read().decode().splitlines()
    (asked,) = [line for line in lines if line.startswith('ratelimit_service_requests_total{endpoint="/v1/check"}')]
    assert sorted(decision.remaining for decision in decisions) == list(range(899, 999))
    assert float(asked.split()[-1]) <= 4


def test_a_drain_loses_no_request_of_an_app_that_asks_and_the_next_process_takes_over(tmp_path, any_server):
    port = str(free_port())

    async def asking(limiter, first):
        answered = []

        async def client():
            while not stop.is_set():
                answered.append((await limiter.acheck(ANN)).rule)
                await asyncio.sleep(0)  # while the service is away, no decision waits

        stop = asyncio.Event()
        clients = [asyncio.create_task(client()) for _ in range(4)]
        await aeventually(lambda: len(answered) > 20)
        first.signal(signal.SIGTERM)
        await asyncio.to_thread(first.ended)
        stop.set()
        await asyncio.gather(*clients)
        return answered

    with RateLimiter(of_app(f"http://127.0.0.1:{port}")) as limiter:
        with Serving(rules(tmp_path, any_server.url), "--http", port, "--drain", "500ms") as first:
            answered = asyncio.run(asking(limiter, first))
        first_miss = answered.index(None) if None in answered else len(answered)
        assert set(answered[first_miss:]) <= {None}  # all were answered until the port was closed
        with Serving(rules(tmp_path, any_server.url), "--http", port):
            assert eventually(lambda: limiter.check(ANN).rule) == "everybody"


@pytest.fixture(scope="module")
def with_token(tmp_path_factory):
    """A service that requires a token, and its address."""
    folder = tmp_path_factory.mktemp("token")
    tokens = folder / "tokens"
    tokens.write_text(f"check {TOKEN}\n")
    tokens.chmod(0o600)
    with Serving(rules(folder), "--token-file", str(tokens)) as service:
        yield service.addresses["http"]


def test_the_token_is_the_password_of_the_url(with_token):
    with RateLimiter(of_app(f"http://:{TOKEN}@{with_token}")) as limiter:
        assert limiter.check(ANN).rule == "everybody"
        assert asyncio.run(limiter.apeek(ANN)).rule == "everybody"


@pytest.mark.parametrize("token", ["", ":wrong-0123456789abcdef@"], ids=["none", "wrong"])
def test_a_wrong_token_is_an_error_in_the_log_with_the_remedy_and_not_the_token(with_token, caplog, token):
    with RateLimiter(of_app(f"http://{token}{with_token}", on_error="deny")) as limiter:
        assert limiter.check(ANN).reason == "unavailable"
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "as the password of the storage URL" in record.getMessage()
    assert "wrong-" not in caplog.text


class Authority:
    """An authority, and the files of a service and of a client that it has certified."""

    def __init__(self, folder):
        folder.mkdir()
        made = trustme.CA()
        self.ca = folder / "ca.pem"
        made.cert_pem.write_to_path(self.ca)
        self.files = {}
        for name, issued in (("service", made.issue_cert("localhost")), ("client", made.issue_cert("app"))):
            key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
            issued.private_key_pem.write_to_path(key)
            certificate.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
            self.files[name] = str(certificate), str(key)

    def url(self, service, *, client=None, ca=None):
        """The storage URL of an app that trusts this authority, or another one."""
        port = service.addresses["http"].rpartition(":")[2]
        pair = "&ssl_certfile={}&ssl_keyfile={}".format(*client) if client else ""
        return f"https://localhost:{port}?ssl_ca_certs={ca or self.ca}{pair}"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("tls") / "ours")


@pytest.fixture(scope="module")
def over_tls(authority, tmp_path_factory):
    """A service that requires a certificate of its clients."""
    certificate, key = authority.files["service"]
    flags = "--tls-cert", certificate, "--tls-key", key, "--client-ca", str(authority.ca)
    with Serving(rules(tmp_path_factory.mktemp("rules")), *flags) as service:
        yield service


def test_an_app_asks_over_tls_with_a_certificate_of_its_own(authority, over_tls):
    async def in_loop(limiter):
        return [decision.rule for decision in await asyncio.gather(*[limiter.acheck(ANN) for _ in range(20)])]

    with RateLimiter(of_app(authority.url(over_tls, client=authority.files["client"]))) as limiter:
        assert limiter.check(ANN).rule == "everybody"
        assert asyncio.run(in_loop(limiter)) == ["everybody"] * 20


@pytest.mark.parametrize("fault", ["unknown authority", "no certificate", "plain text"])
def test_tls_that_cannot_work_is_an_error_in_the_log_and_on_error_decides(authority, over_tls, caplog, tmp_path, fault):
    other = Authority(tmp_path / "other")
    urls = {
        "unknown authority": authority.url(over_tls, client=authority.files["client"], ca=other.ca),
        "no certificate": authority.url(over_tls),
        "plain text": f"http://{over_tls.addresses['http']}",
    }
    with RateLimiter(of_app(urls[fault])) as limiter:
        assert limiter.check(ANN).rule is None
        assert asyncio.run(limiter.acheck(ANN)).rule is None
    assert any("is away" in record.getMessage() for record in caplog.records)


def test_a_required_service_that_is_away_ends_the_start(tmp_path):
    with (
        RateLimiter(of_app(f"http://127.0.0.1:{free_port()}", required=True)) as limiter,
        pytest.raises(StoreUnavailable),
    ):
        limiter.engine.storage.connect()


def test_the_package_imports_h11_only_for_an_app_that_asks():
    program = "import sys; from ratelimit_mw import RateLimiter; RateLimiter({'domain': 'd', 'rules': []}); "
    command = [sys.executable, "-c", f"{program}print('h11' in sys.modules)"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
