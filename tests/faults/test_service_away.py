"""The service that an app asks goes away and comes back, in the ways in which any server does."""

import signal

import pytest

from ratelimit_mw.algorithms import NOTHING
from ratelimit_mw.model import Ask
from ratelimit_mw.stores.service import ServiceStore
from tests.faults.faults import OF_ANY_SERVER, away_and_back, kinds, never_there
from tests.support.ports import free_port
from tests.support.service import Serving, rules_at

TIMEOUT = 2.0
RULES = """\
domain: shop
client: {secret: s}
rules: [{name: everybody, by: ip, limit: 1000000 per year}]
"""
QUESTION = '{"attributes":{"ip":"192.0.2.1"},"domain":"shop"}'


class Service:
    """A service on one port, which may be stopped and started again. See `tests.support.servers.Server`."""

    def __init__(self, folder):
        self._rules = rules_at(folder, RULES)
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    def start(self):
        self._serving = Serving(self._rules, "--http", str(self.port)).__enter__()

    def kill(self):
        self._serving.signal(signal.SIGKILL)
        self._serving.__exit__()

    def pause(self):
        self._serving.signal(signal.SIGSTOP)

    def resume(self):
        self._serving.signal(signal.SIGCONT)


@pytest.fixture(scope="module")  # each fault is healed
def fresh_server(tmp_path_factory):
    service = Service(tmp_path_factory.mktemp("service"))
    yield service
    service.kill()


def soak(fault):
    """Not in each run: what connects, and finds a server away, is tested with Redis."""
    values, name = ([fault], fault) if isinstance(fault, str) else (fault.values, fault.id)
    return pytest.param(*values, id=name, marks=pytest.mark.soak)


@pytest.fixture
def opens():
    def store_of(url, **options):
        return ServiceStore(url.replace("redis", "http", 1).removesuffix("/0"), QUESTION, **options)

    return store_of, [Ask(f"shop:(service):{QUESTION}", NOTHING)]


@pytest.mark.parametrize("fault", [*OF_ANY_SERVER[:2], *map(soak, OF_ANY_SERVER[2:])])
def test_a_service_goes_away_and_comes_back(client_of, fresh_server, proxy, caplog, fault):
    logged = away_and_back(client_of, fresh_server, proxy, caplog, fault, timeout=TIMEOUT)
    assert kinds(logged) in (["away", "back"], ["fault", "back"], ["away", "fault", "back"])


@pytest.mark.parametrize("fault", ["no listener", *map(soak, ["black hole", "stopped"])])
def test_a_service_is_not_there_from_the_start(client_of, fresh_server, proxy, caplog, fault):
    assert "back" in kinds(never_there(client_of, fresh_server, proxy, caplog, fault, timeout=TIMEOUT))
