"""`/auth`: the endpoint that nginx's `auth_request`, Traefik's ForwardAuth and Caddy's `forward_auth` ask.

It is the hot endpoint, so it is a bare ASGI app. It answers 200 with the headers of the rules file, or with the denial
as the middlewares make it. `X-RateLimit-Status` has the status of a denial, also if `?denied=403` replaces it.

This module is internal: its names may change in any release.
"""

import asyncio
import logging
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import parse_qsl

from starlette.types import Receive, Scope, Send

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.decision.load import ASGI_CAPACITY
from ratelimit_mw.decision.planning import Plan, Refusal
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.http.answers import Answers, DenialResponse, LatestAnswers
from ratelimit_mw.identity.address import canonical
from ratelimit_mw.identity.http_request import AsgiRequest
from ratelimit_mw.model import SECOND, Charge
from ratelimit_mw.rules.compiled import BLOCKED
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.service.original_request import SETS, Unanswerable, original_scope
from ratelimit_mw.service.state import Service

_log = logging.getLogger("ratelimit_mw")

_STATUS = b"x-ratelimit-status"
_TOKEN = b"x-ratelimit-token"
_DENIED = "403"
"""The only value of `denied`: nginx knows 401 and 403, and a 401 makes browsers ask for a password."""

_LONGEST_QUERY = 1024
_MAX_PEERS = 1000
_EMPTY_BODY = {"type": "http.response.body", "body": b""}


class _AuthParameters(NamedTuple):
    """The query of `/auth`. `problems` is "" if it can be used."""

    domain: str | None = None
    denied: int | None = None
    headers: str | None = None
    problems: str = ""


_BAD_DOMAIN = Unanswerable(400, "unknown_domain", "The rules do not have the domain in ?domain=.", by_client=False)
_UNTRUSTED = Unanswerable(
    400,
    "untrusted_proxy",
    "The proxy that asks is not in client.trusted_proxies of the rules, so the address of its client is unknown. "
    "Add the address of the proxy there.",
    by_client=False,
)
_NO_TOKEN = Unanswerable(
    401,
    "unauthorized",
    "The proxy that asks must be in client.trusted_proxies of the rules, or send a token in X-RateLimit-Token.",
    by_client=False,
)


class Auth:
    """The ASGI app of `/auth`.

    Args:
        service: The service.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._engine = service.limiter.engine
        self._strict = service.settings.strict_proxies
        self._answers: dict[str | None, LatestAnswers[bytes]] = {}
        self._peers: dict[str | None, tuple[bool, bool]] = {}
        """Whether a peer is trusted, and whether it may ask without a token."""
        self._peers_of: Rules | None = None
        self._logged: set[str] = set()

    async def __call__(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Answer one request of a proxy. Its body is not read."""
        self._service.asked["/auth"] += 1
        query = scope["query_string"]
        parameters = _parameters(query) if query else _NONE
        if parameters.problems:
            refused = Unanswerable(400, "bad_parameters", parameters.problems, by_client=False)
            await self._refuse(refused, parameters, send)
            return
        whole = self._engine.current()
        original = original_scope(scope, parameters.headers)
        if isinstance(original, Unanswerable):
            await self._refuse(original, parameters, send)
            return
        request = AsgiRequest(original)
        refusal = self._untrusted(whole, request)
        if refusal is not None:
            await self._refuse(refusal, parameters, send)
            return
        rules = whole
        if parameters.domain is not None:
            found = whole.of(parameters.domain)
            if found is None:
                await self._refuse(_BAD_DOMAIN, parameters, send)
                return
            rules = found
        if rules.special:
            verdict = await self._decide_special(rules, request)
        elif self._engine.waits or rules.attributes.awaited:
            verdict = await self._engine.adecide(request, rules=rules)
        else:
            verdict = self._engine.execute(self._engine.planner.plan(rules, request), rules)
        if not verdict.simple:
            self._engine.report(verdict, rules, request)
        answers = self._answers_of(parameters.domain, rules)
        if verdict.allowed:
            headers = answers.add_headers((), verdict)
            await send({"type": "http.response.start", "status": 200, "headers": [*headers, _NO_CONTENT]})
            await send(_EMPTY_BODY)
            return
        denial = answers.denial(verdict, request)
        await _send_denial(denial, parameters.denied or denial.status, send)

    async def _decide_special(self, rules: Rules, request: AsgiRequest) -> Verdict:
        """Decide by rules that depend on the load, that make requests wait, or that a service cannot serve.

        The load is that of this process. The answer to a request that must wait is sent when its turn has come.
        """
        engine = self._engine
        meter = engine.planner.meter(rules) if rules.metered else None
        try:
            if meter is not None:
                meter.watch(asyncio.get_running_loop())
                meter.arrived(ASGI_CAPACITY, request)
            if rules.attributes.awaited:
                await rules.attributes.resolve(request)
            plan = engine.planner.admit(rules, request)
            if rules.settling and plan.charges is not BLOCKED and not isinstance(plan, Refusal):
                plan = Plan([charge for charge in plan.charges if not _needs_response(charge)])
            verdict = await engine.aexecute(plan, rules)
            if verdict.delay:
                await asyncio.sleep(verdict.delay / SECOND)
            return verdict
        finally:
            if meter is not None:
                meter.left(request)

    def _untrusted(self, rules: Rules, request: AsgiRequest) -> Unanswerable | None:
        """Return the refusal of a proxy that may not ask, or None."""
        if self._peers_of is not rules:
            self._peers_of, self._peers = rules, {}
        access, peer = self._service.access, request.peer
        known = self._peers.get(peer)
        if known is None:
            address, client_address = canonical(peer), rules.attributes.client_address
            trusted = client_address.trusts(address, 0)
            # trusted_hops trusts whichever peer asks, so it says nothing about who may ask.
            known = trusted, trusted and (client_address.lists(address) or not access.by_token)
            if len(self._peers) < _MAX_PEERS:
                self._peers[peer] = known
        trusted, admitted = known
        if admitted:
            return None
        if access.by_token:
            token = request.header(_TOKEN.decode())
            if not (token and access.allows("check", f"Bearer {token}")):
                return _NO_TOKEN
        if trusted:
            return None
        self._log_once(
            "untrusted_proxy",
            "/auth: a proxy asks that is not in client.trusted_proxies (or in client.trusted_hops, if it asks over a "
            "unix socket), so all of its clients count as one: add its address there (logged once)",
        )
        return _UNTRUSTED if self._strict else None

    def _answers_of(self, domain: str | None, rules: Rules) -> Answers[bytes]:
        answers = self._answers.get(domain)
        if answers is None:
            answers = LatestAnswers(name=lambda text: text.lower().encode("latin-1"), value=str.encode)
            if rules.source is None:  # otherwise each domain is accepted, so their number has no bound
                self._answers[domain] = answers
        return answers.of(rules)

    async def _refuse(self, refused: Unanswerable, parameters: _AuthParameters, send: Send) -> None:
        """Answer a request that cannot be decided.

        A proxy may let requests pass if the service fails, and nginx takes a 400 for a failure. What a client can cause
        is therefore answered as a denial.
        """
        self._service.refuse(refused.reason)
        if not refused.by_client:
            self._log_once(refused.reason, "/auth: %s (logged once)", refused.message)
        body = refused.message.encode() + b"\n"
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"content-length", str(len(body)).encode()),
        ]
        status = (parameters.denied if refused.by_client else None) or refused.status
        await _send_denial(DenialResponse(refused.status, headers, body), status, send)

    def _log_once(self, topic: str, message: str, *arguments: object) -> None:
        if topic not in self._logged:
            self._logged.add(topic)
            _log.error(message, *arguments)


_NONE = _AuthParameters()
_NO_CONTENT = (b"content-length", b"0")


async def _send_denial(denial: DenialResponse[bytes], status: int, send: Send) -> None:
    headers = denial.headers
    if not denial.body:  # the denial of a HEAD request has the length of GET's body, but the proxy may ask with a GET
        headers = [pair for pair in headers if pair[0] != b"content-length"]
        headers.append(_NO_CONTENT)
    headers = [*headers, (_STATUS, str(denial.status).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": denial.body})


def _needs_response(charge: Charge) -> bool:
    """Return True if a charge depends on the response, which a service does not see. Such a rule is ignored."""
    rule, ask = charge
    return rule.counts is not None or rule.cost_after is not None or ALGORITHMS[ask.quota.algorithm].in_flight


@lru_cache(maxsize=64)  # the query is in the configuration of the proxy, so there are few different ones
def _parameters(query: bytes) -> _AuthParameters:
    if len(query) > _LONGEST_QUERY:
        return _AuthParameters(problems=f"The query of /auth is longer than {_LONGEST_QUERY} bytes.")
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        return _AuthParameters(problems="The query of /auth cannot be read.")
    found = dict(pairs)
    if len(found) != len(pairs):
        return _AuthParameters(problems="The query of /auth has a parameter twice.")
    if found.keys() - {"domain", "denied", "headers"}:
        return _AuthParameters(problems="The query of /auth has a parameter other than domain, denied and headers.")
    if found.get("denied", _DENIED) != _DENIED:
        return _AuthParameters(problems="The parameter denied can only be 403, as in /auth?denied=403.")
    if "headers" in found and found["headers"] not in SETS:
        return _AuthParameters(problems=f"The parameter headers is one of {', '.join(SETS)}.")
    return _AuthParameters(found.get("domain"), 403 if "denied" in found else None, found.get("headers"))
