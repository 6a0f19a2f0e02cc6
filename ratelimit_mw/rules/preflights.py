"""CORS preflights: which OPTIONS requests are preflights, and how rules count them.

Any client can write the two headers of a preflight, and some apps do real work on OPTIONS. Each rule that would count
the announced request therefore counts its preflight, in a second counter: a fixed window of the rule's period with ten
times its limit, at a cost of 1. A preflight carries no credentials, so one address may send those of many users.

A rule whose `methods` name OPTIONS counts preflights like any request.
"""

import copy
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.identity.request import Request
from ratelimit_mw.model import Charge, Quota
from ratelimit_mw.rules.compiled import CompiledRule
from ratelimit_mw.rules.matching import Candidate, replaced_by

_FACTOR = 10
_LARGEST = 2**32 - 1  # what a fixed window can count
_MARK = "preflight-"
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a method, by RFC 9110
_METHODS = {method: method for method in ("GET", "POST", "PUT", "PATCH", "DELETE")} | {"HEAD": "GET"}


def announced(request: Request) -> Request | None:
    """Return a view of a CORS preflight in which rules read the announced request. None for other OPTIONS requests.

    A browser sends one origin and one method. An OPTIONS request with several of them, or with a method that is not a
    token, is not from a browser. It is counted like any other request.

    All uncommon methods are one identity for `by: method`. A client could otherwise invent any number of counters.
    """
    origins, methods = request.header_lines("origin"), request.header_lines("access-control-request-method")
    if len(origins) != 1 or len(methods) != 1:
        return None
    origin, method = origins[0].strip(), methods[0].strip(" \t")
    # WSGI servers join several lines with commas. An origin contains no comma.
    if not origin or "," in origin or not _TOKEN.fullmatch(method):
        return None
    view = copy.copy(request)
    view.method = method.upper()
    view.values = {**request.values, "method": _METHODS.get(view.method, "OPTIONS")}
    return view


def counts_options(rule: CompiledRule) -> bool:
    """Return True if the rule's `methods` include OPTIONS. Such a rule counts preflights like any other request."""
    return "OPTIONS" in rule.further.methods


def preflight_key(key: str) -> str:
    """Return the key of the preflight counter that belongs to `key`. The key of a preflight is returned unchanged.

    `key` may also be only the first part of a key, up to and including the opening brace. The mark is placed before the
    code of the algorithm. No identity and no rule name can imitate it: identities are inside the braces, and the colons
    of names are escaped. The hash tag in the braces stays, so both counters are in the same slot of a cluster.
    """
    stem, brace, identity = key.partition("{")
    before, _, code = stem.removesuffix(":").rpartition(":")
    return key if code.startswith(_MARK) else f"{before}:{_MARK}{code}:{brace}{identity}"


def is_preflight_key(key: str) -> bool:
    """Return True if `preflight_key` has made this key."""
    return preflight_key(key) == key


@lru_cache(maxsize=1024)
def preflight_quota(quota: Quota) -> Quota:
    """Return the quota of the preflights that belong to requests with `quota`.

    Their denials do not count towards a penalty. The penalty of a client also denies its preflights.
    """
    penalty = quota.penalty and quota.penalty.without_counting
    limit = min(_FACTOR * quota.shown_limit, _LARGEST)
    return Quota("fixed_window", limit, quota.period, refundable=quota.refundable, penalty=penalty)


def apart(charges: Iterable[Charge], cost: int) -> list[Charge]:
    """Return the charges of a preflight in place of those of the request that it announces.

    There is none for a limit of requests in flight. `cost` is what the caller of `check` gave: 0 charges nothing.
    """
    return [
        Charge(
            replace(rule, cost_after=None, defers=False),
            ask._replace(key=preflight_key(ask.key), quota=preflight_quota(ask.quota), cost=min(cost, 1)),
        )
        for rule, ask in charges
        if not ALGORITHMS[ask.quota.algorithm].in_flight
    ]


def replaced_for_preflight(candidates: Sequence[Candidate], request: Request, view: Request) -> dict[int, str]:
    """Do the same as `replaced_by`, for a preflight and its `announced` view.

    A rule that counts no preflight, but would replace one that does, is passed over. The exception is a rule that is
    unlimited for all methods. A client could otherwise turn off a limit by what it announces.
    """
    like_any, others = split(candidates)
    counting = [each for each in others if each[1].replaces and _counts_or_is_free(each[1])]
    return replaced_by(like_any, request) | replaced_by(counting, view)


def _counts_or_is_free(rule: CompiledRule) -> bool:
    quotas = rule.quotas
    return any(not ALGORITHMS[quota.algorithm].in_flight for quota in quotas) or not (quotas or rule.further.methods)


def split(candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[Candidate]]:
    """Return the candidates that count a preflight like any request, and the others, without exemptions."""
    like_any: list[Candidate] = []
    others: list[Candidate] = []
    for candidate in candidates:
        if candidate[0] >= 0:
            (like_any if counts_options(candidate[1]) else others).append(candidate)
    return like_any, others
