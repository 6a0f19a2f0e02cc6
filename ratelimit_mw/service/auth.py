"""`/auth`: the endpoint that nginx's `auth_request`, Traefik's ForwardAuth and Caddy's `forward_auth` ask.

It is the hot endpoint, so it is a bare ASGI app. It answers 200 with the headers of the rules file, or with the denial
as the middlewares make it. `X-RateLimit-Status` has the status of a denial, also if `?denied=403` replaces it.

A proxy sends the method and the URI of its client's request in one of these sets of headers:

* `original`: `X-Original-Method` and `X-Original-URI` (nginx);
* `original-url`: `X-Original-Method` and `X-Original-URL` with the scheme and the host (ingress-nginx);
* `forwarded`: `X-Forwarded-Method`, `X-Forwarded-Uri` and perhaps `X-Forwarded-Host` (Traefik, Caddy).

All other headers of the request to `/auth` are those of the original request.

A proxy overwrites the headers of its own set only, so those of another set may come from the client. With them, a
client could claim another path than that of its request. `?headers=` names the set of the proxy, and the others are
ignored. Without it, a request with headers of more than one set is refused.

This module is internal: its names may change in any release.
"""

import asyncio
from collections.abc import Container, Iterable
from contextlib import suppress
from functools import cache
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

from starlette.types import ASGIApp, Receive, Scope, Send

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.decision.load import ASGI_CAPACITY
from ratelimit_mw.decision.planning import NO_PLAN
from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.http.answers import Answers, DenialResponse
from ratelimit_mw.identity.address import canonical
from ratelimit_mw.identity.http_request import AsgiRequest, asgi_head
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.model import SECOND, Charge
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.service.state import Service

_STATUS = b"x-ratelimit-status"
_TOKEN = "x-ratelimit-token"  # noqa: S105  the name of a header
_DENIED = "403"
"""The only value of `denied`: nginx knows 401 and 403, and a 401 makes browsers ask for a password."""

_LONGEST_QUERY = 1024
_MOST_KEPT = 1000
"""The most peers, and the most queries, that are remembered."""

_EMPTY_BODY = {"type": "http.response.body", "body": b""}


MAX_URI = 16 * 1024
"""The longest URI of an original request, in bytes."""

SETS: dict[str, tuple[bytes, bytes, bytes]] = {
    "original": (b"x-original-method", b"x-original-uri", b""),
    "original-url": (b"x-original-method", b"x-original-url", b""),
    "forwarded": (b"x-forwarded-method", b"x-forwarded-uri", b"x-forwarded-host"),
}
"""The headers of each set: those of the method, of the URI and of the host. No header is called ""."""

_NAMES = frozenset().union(*SETS.values())


class Unanswerable(Exception):
    """A request to `/auth` cannot be decided.

    Args:
        status: The status of the answer.
        reason: The name under which it is counted.
        message: The answer, as one sentence without anything that a client sent.
        by_client: Whether a client can cause it. The proxy must then not let the client's request pass.
    """

    def __init__(self, status: int, reason: str, message: str, *, by_client: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.by_client = by_client


class _Query(NamedTuple):
    """A query of `/auth`, and what its requests have in common until the rules change.

    Attributes:
        denied: The status of denials. None for that of the middlewares.
        headers: The set of headers to read. None for the only one that is present.
        rules: The rules of the domain.
        answers: Makes the answers by these rules.
    """

    denied: int | None
    headers: str | None
    rules: Rules
    answers: Answers[bytes]


class Auth:
    """The ASGI app of `/auth`. The hot endpoint needs no router, so all other paths are behind it.

    Args:
        service: The service.
        others: The app of all other paths.
    """

    def __init__(self, service: Service, others: ASGIApp) -> None:
        self._service = service
        self._others = others
        self._engine = service.limiter.engine
        self._strict = service.settings.strict_proxies
        self._rules: Rules | None = None
        self._queries: dict[bytes, _Query] = {}
        self._peers: dict[str | None, tuple[bool, bool]] = {}
        """Whether a peer is trusted, and whether it may ask without a token."""
        self._once = Once()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a proxy. Its body is not read."""
        if scope["type"] != "http" or scope["path"] != "/auth":
            await self._others(scope, receive, send)
            return
        self._service.asked["/auth"] += 1
        engine, client, query = self._engine, scope["client"], None
        rules = engine.current()
        if rules is not self._rules:
            self._rules, self._queries, self._peers = rules, {}, {}
        try:
            trusted, admitted = self._peers.get(client and client[0]) or self._look_at(rules, client and client[0])
            if not admitted:
                self._require_trusted(trusted, scope)
            query = self._queries.get(scope["query_string"]) or self._read(rules, scope["query_string"])
            denied, headers_read, rules, answers = query
            original = original_scope(scope, headers_read)
            head, request, plan = asgi_head(original, AsgiRequest, rules.fields), None, NO_PLAN
            if rules.bare:
                plan = engine.planner.plan_of_head(rules, original, head)
                conclusion = await engine.atake(plan, rules) if engine.waits else engine.take(plan, rules)
            else:
                request = AsgiRequest(original, head)
                conclusion = await self._decide(rules, request)
        except Unanswerable as refused:
            await self._refuse(refused, query, send)
            return
        except asyncio.CancelledError:  # the server cancels what has not ended within --grace
            await self._refuse(Unanswerable(503, "ended", "The service ended before it could decide."), query, send)
            return
        if not (isinstance(conclusion, tuple) or conclusion.simple):
            request = request or AsgiRequest(original, head)
            engine.report(conclusion, rules, request)
            if not conclusion.allowed:
                denial = answers.denial(conclusion, request)
                await _send_denial(denial, denied or denial.status, send)
                return
        headers = answers.add_headers((), conclusion, plan)
        headers.append(_NO_CONTENT)
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send(_EMPTY_BODY)

    async def _decide(self, rules: Rules, request: AsgiRequest) -> Verdict:
        """Decide by rules that read more than headers, that depend on the load, or that make requests wait.

        The load is that of this process. The answer to a request that must wait is sent when its turn has come. What a
        service cannot serve of a rule is ignored.
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
            if rules.settling and plan.asks:
                left = [charge for charge in plan.charges if not _needs_response(charge)]
                plan = engine.planner.plan_of(left, direct=False)
            verdict = await engine.aexecute(plan, rules)
            if verdict.delay:
                with suppress(asyncio.CancelledError):  # the server cancels what waits longer than --grace
                    await asyncio.sleep(verdict.delay / SECOND)
            return verdict
        finally:
            if meter is not None:
                meter.left(request)

    def _look_at(self, rules: Rules, peer: str | None) -> tuple[bool, bool]:
        """Return whether a peer is trusted, and whether it may ask without a token."""
        address, client_address = canonical(peer), rules.attributes.client_address
        trusted = client_address.trusts(address, 0)
        # trusted_hops trusts whichever peer asks, so it says nothing about who may ask.
        known = trusted, trusted and (client_address.lists(address) or not self._service.access.by_token)
        if len(self._peers) < _MOST_KEPT:
            self._peers[peer] = known
        return known

    def _require_trusted(self, trusted: bool, scope: Scope) -> None:
        """Refuse a proxy that may not ask."""
        access = self._service.access
        if access.by_token:
            token = AsgiRequest(scope).header(_TOKEN)
            if not (token and access.allows("check", f"Bearer {token}")):
                raise Unanswerable(
                    401,
                    "unauthorized",
                    "The proxy that asks must be in client.trusted_proxies of the rules, or send a token in "
                    "X-RateLimit-Token.",
                )
        if trusted:
            return
        self._once(
            logger.error,
            "/auth: the proxy that asks is not in client.trusted_proxies (for a proxy on a unix socket, "
            "client.trusted_hops is not set), so all of its clients count as one: add its address (logged once)",
        )
        if self._strict:
            raise Unanswerable(
                400,
                "untrusted_proxy",
                "The proxy that asks is not in client.trusted_proxies of the rules, so the address of its client is "
                "unknown. Add the address of the proxy there.",
            )

    def _read(self, rules: Rules, query: bytes) -> _Query:
        """Read a query. The query is in the configuration of the proxy, so there are few different ones."""
        domain, denied, headers = _parameters(query)
        found = rules if domain is None else rules.of(domain)
        if found is None:
            raise Unanswerable(400, "unknown_domain", "The rules do not have the domain in ?domain=.")
        answers = Answers(found, name=lambda text: text.lower().encode("latin-1"), value=str.encode)
        read = _Query(denied, headers, found, answers)
        if len(self._queries) < _MOST_KEPT:
            self._queries[query] = read
        return read

    async def _refuse(self, refused: Unanswerable, query: _Query | None, send: Send) -> None:
        """Answer a request that cannot be decided.

        A proxy may let requests pass if the service fails, and nginx takes a 400 for a failure. What a client can cause
        is therefore answered as a denial.
        """
        self._service.refuse(refused.reason)
        if not refused.by_client:
            self._once(logger.error, "/auth: %s (logged once)", refused, about=refused.reason)
        body = str(refused).encode() + b"\n"
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"content-length", str(len(body)).encode()),
        ]
        status = (query.denied if query and refused.by_client else None) or refused.status
        await _send_denial(DenialResponse(refused.status, headers, body), status, send)


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


def _parameters(query: bytes) -> tuple[str | None, int | None, str | None]:
    """Return the domain, the status of denials, and the set of headers in a query."""
    if len(query) > _LONGEST_QUERY:
        raise _unusable(f"The query of /auth is longer than {_LONGEST_QUERY} bytes.")
    try:
        pairs = parse_qsl(query.decode("ascii"), keep_blank_values=True, strict_parsing=True, errors="strict")
    except ValueError:
        raise _unusable("The query of /auth cannot be read.") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _unusable("The query of /auth has a parameter twice.")
    if found.keys() - {"domain", "denied", "headers"}:
        raise _unusable("The query of /auth has a parameter other than domain, denied and headers.")
    if found.get("denied", _DENIED) != _DENIED:
        raise _unusable("The parameter denied can only be 403, as in /auth?denied=403.")
    if "headers" in found and found["headers"] not in SETS:
        raise _unusable(f"The parameter headers is one of {', '.join(SETS)}.")
    return found.get("domain"), 403 if "denied" in found else None, found.get("headers")


def _unusable(message: str) -> Unanswerable:
    return Unanswerable(400, "bad_parameters", message)


def original_scope(scope: Scope, named: str | None = None) -> Scope:
    """Return the ASGI scope of the original request.

    The peer of this scope is the proxy that asks, as it is the peer of an app behind this proxy. The method with which
    the proxy asks is ignored.

    Args:
        scope: The scope of the request to `/auth`. The server writes the names of headers in lower case.
        named: The set of headers to read. None for the only one that is present.

    Raises:
        Unanswerable: The headers have no usable request.
    """
    headers, scheme = scope["headers"], scope.get("scheme", "http")
    found: dict[bytes, bytes] = dict(headers)
    used = named or _only_set(_NAMES.intersection(found))
    if used is None or (len(found) < len(headers) and _contradicts(headers, SETS[used])):
        raise Unanswerable(
            403,
            "contradicting_headers",
            "There are headers of more than one proxy (X-Original-URI, X-Original-URL, X-Forwarded-Uri), or one of them"
            " twice: the client may have sent one. Name the set of the proxy, as in /auth?headers=original.",
            by_client=True,
        )
    method, uri, host = map(found.get, SETS[used])
    if uri and used == "original-url":
        uri, scheme, host = _path_of(uri, scheme)
    if host:
        headers = [pair for pair in headers if pair[0] != b"host"]
        headers.append((b"host", host))
    if not method or not uri:
        raise Unanswerable(
            400,
            "no_original_request",
            "The headers X-Original-Method and X-Original-URI (nginx), or X-Forwarded-Method and X-Forwarded-Uri "
            "(Traefik, Caddy), are missing: set both in the proxy. X-Original-URL (ingress-nginx) needs "
            "?headers=original-url.",
        )
    if len(uri) > MAX_URI:
        message = f"The URI of the original request is longer than {MAX_URI} bytes."
        raise Unanswerable(414, "uri_too_long", message, by_client=True)
    # Servers give no fragment to the app, but a scheme and a host.
    raw, _, query = uri.partition(b"#")[0].partition(b"?")
    path = unquote_to_bytes(raw) if b"%" in raw else raw
    return {
        **scope,
        "method": method.decode("latin-1").upper(),
        "scheme": scheme,
        "path": path.decode("utf-8", "replace"),
        "raw_path": raw,
        "query_string": query,
        "headers": headers,
    }


def _contradicts(headers: Iterable[tuple[bytes, bytes]], names: Container[bytes]) -> bool:
    """Return True if one of these headers is there twice, with different values."""
    found: dict[bytes, bytes] = {}
    return any(name in names and found.setdefault(name, value) != value for name, value in headers)


@cache
def _only_set(found: frozenset[bytes]) -> str | None:
    """Return the name of the set of these headers, or None for several. `X-Original-URL` must be named."""
    original = b"x-original-method" in found or b"x-original-uri" in found
    forwarded = b"x-forwarded-method" in found or b"x-forwarded-uri" in found
    if (original and forwarded) or (b"x-original-url" in found and (forwarded or b"x-original-uri" in found)):
        return None
    return "forwarded" if forwarded else "original"


def _path_of(url: bytes, scheme: str) -> tuple[bytes, str, bytes | None]:
    """Return the path and the query of a URL, its scheme and its host. `scheme` is that of a URL without one.

    The host ends at the first slash: with a `?` in the header Host, a client could otherwise cut off the path.
    """
    before, mark, rest = url.partition(b"://")
    if not mark or b"/" in before:
        return url, scheme, None
    host, slash, path = rest.partition(b"/")
    return slash + path or b"/", before.decode("latin-1").lower(), host
