"""Envoy's messages as short texts: what a request of descriptors asks, and what the service answers."""

import math
import re

import pytest

from ratelimit_mw import EntryList

rls_pb2 = pytest.importorskip("envoy.service.ratelimit.v3.rls_pb2", reason="xds-protos is not installed")

UNITS = rls_pb2.RateLimitResponse.RateLimit.Unit
CODES = rls_pb2.RateLimitResponse.Code


def request(descriptors, hits=0, domain="shop"):
    """A message with these descriptors: "foo=bar baz=qux", with a number in front if they have hits of their own."""
    message = rls_pb2.RateLimitRequest(domain=domain, hits_addend=hits)
    for text in descriptors:
        own, entries = re.fullmatch(r"(?:(\d+) )?(.*)", text).groups()
        descriptor = message.descriptors.add()
        if own is not None:
            descriptor.hits_addend.value = int(own)
        for entry in entries.split():
            key, _, value = entry.partition("=")
            descriptor.entries.add(key=key, value=value)
    return message


def answer(limiter, descriptors, hits=0):
    """The overall code of the service's answer, and its statuses, as `passed` and `over` write them."""
    q = request(descriptors, hits)
    lists = []
    for d in q.descriptors:
        kw = {"hits": d.hits_addend.value} if d.HasField("hits_addend") else {}
        lists.append(EntryList([(e.key, e.value) for e in d.entries], **kw))
    decided = limiter.check_lists(q.domain, lists, hits=q.hits_addend or 1)
    out = rls_pb2.RateLimitResponse(overall_code=1 if decided.decision.allowed else 2)
    for st in decided.statuses:
        x = out.statuses.add(code=1 if st.allowed else 2)
        if st.limit is not None:
            x.current_limit.requests_per_unit = int(st.limit)
            x.current_limit.name = st.name or ""
            x.current_limit.unit = UNITS.Value(st.unit.upper())
        x.limit_remaining = 2**32 - 1 if st.unlimited else st.remaining or 0
        w = st.reset_after if st.allowed else st.retry_after
        x.duration_until_reset.seconds = 0 if math.isinf(w) else math.ceil(w)
    return shown(out)


def shown(response):
    return [CODES.Name(response.overall_code), *map(_status, response.statuses)]


def passed(limit="", remaining=0, reset=0):
    return _text("OK", limit, remaining, reset)


def over(limit, remaining, reset):
    return _text("OVER_LIMIT", limit, remaining, reset)


def _status(status):
    limit = status.current_limit
    shown = f"{limit.requests_per_unit}/{UNITS.Name(limit.unit)} {limit.name}".strip() if limit.unit else ""
    return _text(CODES.Name(status.code), shown, status.limit_remaining, status.duration_until_reset.seconds)


def _text(code, limit, remaining, reset):
    return f"{code} {limit or 'no limit'}, {remaining} left, {reset} s"
