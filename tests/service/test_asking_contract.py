"""The contract of stores, for an app that asks a service: each ask is a limit of the service by a header of its own."""

import json
import math
import threading

import pytest

from ratelimit_mw import ManualClock, RateLimiter
from ratelimit_mw.model import NEVER, SECOND, Outcome, Reply
from tests.service.http_service import START, one_server, service
from tests.stores.contract import Awaited, Decisions


@pytest.fixture(scope="module")
def server():
    with one_server() as server:
        yield server


class Asked:
    """Asks a service by the limiter of an app. The service gets a rule for each new ask."""

    def __init__(self, server, folder, *, clock=None, timeout=10):
        self._file = folder / "ratelimits.yaml"
        self._names = {}
        self._rules = {}
        self._adding = threading.Lock()
        self._write()
        self._service = service(self._file, clock=clock or ManualClock(START))
        url = str(server.use(made=self._service).base_url)
        self._app = RateLimiter({"domain": "shop", "storage": {"url": url, "timeout": f"{timeout}s"}})
        self.close = self._app.close

    def decide(self, asks, *, commit=True):
        return self._reply(asks, (self._app.check if commit else self._app.peek)(*self._arguments(asks)))

    async def aask(self, request):
        asks, intent = request
        return self._reply(asks, await (self._app.acheck if intent.commit else self._app.apeek)(*self._arguments(asks)))

    def _arguments(self, asks):
        return {f"header:{self._name(ask)}": ask.key for ask in asks}, asks[0].cost if asks else 1

    def _reply(self, asks, decision):
        told = {policy.rule: policy for policy in decision.policies}
        assert [*told] == sorted(map(self._name, asks))
        policies = [told[self._name(ask)] for ask in asks]
        times = {round((policy.reset_at - policy.reset_after) * SECOND) for policy in policies}
        reply = Reply(max(times, default=0), [_outcome(policy) for policy in policies])
        assert reply.admits(asks) == decision.allowed
        return reply

    def _name(self, ask):
        """The name of the rule of an ask. The rule is added, or changed if the ask is a shadow and was none."""
        with self._adding:
            name = self._names.setdefault((ask.key.partition("{")[0], ask.quota), f"x{len(self._names):03}")
            rule = _rule(name, ask.quota, shadow=ask.shadow)
            if self._rules.get(name) != rule:
                self._rules[name] = rule
                self._write()
                self._service.limiter.reload()
            return name

    def _write(self):
        rules = [*self._rules.values()]
        self._file.write_text(json.dumps({"domain": "shop", "storage": {"timeout": "5s"}, "rules": rules}))


def _rule(name, quota, *, shadow):
    limit = f"{quota.limit} per {quota.period // SECOND} seconds"
    waits = (
        {"max_wait": f"{quota.longest_wait // SECOND}s"}
        if quota.longest_wait and quota.algorithm == "token_bucket"
        else {}
    )
    bucket = {"burst": quota.burst, **waits} if quota.burst else {}
    return {
        "name": name,
        "by": f"header:{name}",
        "limit": limit,
        "algorithm": quota.algorithm,
        "shadow": shadow,
        **bucket,
    }


def _outcome(policy):
    retry = NEVER if policy.retry_after == math.inf else round(policy.retry_after * SECOND)
    reset, delay = round(policy.reset_after * SECOND), round(policy.delay * SECOND)
    return Outcome(policy.allowed, policy.remaining, reset, retry, delay)


class TestService(Decisions):
    @pytest.fixture
    def make(self, server, tmp_path):
        return lambda **options: Asked(server, tmp_path, **options)


@pytest.mark.soak
class TestServiceAwaited(Awaited, TestService):
    pass
