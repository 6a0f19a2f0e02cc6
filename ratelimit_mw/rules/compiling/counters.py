"""A rule's limits to counters: the quota of each window, and the key up to the client's identity."""

from collections.abc import Callable
from dataclasses import replace
from urllib.parse import quote

from ratelimit_mw.algorithms import ALGORITHMS, IN_FLIGHT, named
from ratelimit_mw.algorithms.algorithm import Algorithm
from ratelimit_mw.algorithms.concurrency import BUCKETS, PERIOD
from ratelimit_mw.model import SECOND, Quota
from ratelimit_mw.rules.combinations.banning import check_ban
from ratelimit_mw.rules.combinations.consistency import check_consistency
from ratelimit_mw.rules.combinations.deferring import check_deferring
from ratelimit_mw.rules.combinations.settling import check_settling
from ratelimit_mw.rules.compiled import Counter, Tiers
from ratelimit_mw.rules.documents.tree import Map, Node, Problems, place_of
from ratelimit_mw.rules.readers.limit_forms import Stated
from ratelimit_mw.rules.readers.limits import DAY, MOST, Window, spell
from ratelimit_mw.rules.readers.throttle import most, raised
from ratelimit_mw.rules.schema.rule import RuleSection

_BUCKETS = 60
_LONGEST = 10 * 365 * DAY
_REFILL = 50 * 365 * DAY


def compile_counters(domain: str, rule: RuleSection) -> tuple[tuple[Counter, ...], Tiers | None]:
    """The counters of everybody, and those of each tier where the limit goes by tier."""
    tiers = rule.limit.tiers
    return (
        _counters(domain, rule, rule.limit.default),
        None if tiers is None else {tier: _counters(domain, rule, limits) for tier, limits in tiers.items()},
    )


def _counters(domain: str, rule: RuleSection, limits: tuple[Stated, ...]) -> tuple[Counter, ...]:
    buckets = rule.buckets or _BUCKETS
    sliced = f"/{buckets}" if ALGORITHMS[rule.algorithm].has_buckets and buckets != _BUCKETS else ""
    sharded = f"x{rule.shards}" if rule.shards > 1 else ""
    prefix = f"{escaped(domain)}:{escaped(rule.name)}:"
    counters: list[Counter] = []
    for window, _ in limits:
        quota = _quota(rule, window, prefix)
        code = f"{ALGORITHMS[quota.algorithm].code}{quota.period // SECOND}"
        spread = sliced + sharded if window.period else ""
        # The braces that follow are Redis Cluster's hash tag: one identity's counters lie in one slot.
        counters.append((f"{prefix}{code}{spread}:{{", quota))
    return tuple(counters)


def _quota(rule: RuleSection, window: Window, prefix: str = "") -> Quota:
    limit, period, _ = window
    ban = rule.ban and rule.ban.under(f"{prefix}ban:{{")
    if not period:
        return raised(Quota(IN_FLIGHT, limit, PERIOD, buckets=BUCKETS, refundable=True, ban=ban), rule.throttle)
    burst, buckets = _burst(rule, window), rule.buckets or _BUCKETS
    shards = max(min(rule.shards, (burst or limit) // (rule.cost.fixed or 1)), 1)  # an override's limit may be small
    quota = Quota(rule.algorithm, limit, period, burst, buckets, rule.consistency, shards, ban=ban)
    if rule.count is not None:
        quota = replace(quota, refundable=True)
    if rule.max_wait and limit:
        quota = replace(quota, max_wait=round(rule.max_wait * SECOND))
    elif ALGORITHMS[rule.algorithm].queue and limit:
        longest = most(raised(quota, rule.throttle))
        quota = replace(quota, max_wait=longest.burst * -(-period // limit))
    return raised(quota, rule.throttle)


def escaped(text: str) -> str:
    """`text` as it stands before a counter's braces, so that no sign in it can be mistaken for one of the key's."""
    return quote(text, safe="").replace("~", "%7E")


def _burst(rule: RuleSection, window: Window) -> int:
    """What the bucket holds; 0 where there is no bucket, and where nothing ever passes."""
    limit, period, own_burst = window
    return (own_burst or rule.burst or limit) if ALGORITHMS[rule.algorithm].has_burst and limit and period else 0


def check_limits(rule: RuleSection, node: Node, problems: Problems) -> None:
    """Report what the rule's algorithm can't do, and what could never pass."""
    if isinstance(node, Map) and node.dropped & {"algorithm", "burst", "max_wait"}:
        return
    algorithm = ALGORITHMS[rule.algorithm]
    if rule.burst is not None and not algorithm.has_burst:
        problems.add(place_of(node, "burst"), *_no_burst(rule))
    if rule.buckets is not None and not algorithm.has_buckets:
        hint = _write(lambda other: other.has_buckets)
        problems.add(place_of(node, "buckets"), f"{rule.algorithm} has no buckets", hint)
    _check_waiting(rule, node, problems)
    check_consistency(rule, node, problems)
    check_settling(rule, node, problems)
    check_deferring(rule, node, problems)
    check_ban(rule, node, problems)
    for window, place in rule.limit.all():
        fault = _window_fault(rule, window)
        if fault is not None:
            problems.add(place, *fault)
            continue
        if algorithm.in_flight and window.period:
            continue  # what is wrong with it has been said
        widest = most(_quota(rule, window))
        if rule.cost.fixed > (widest.burst or widest.limit) > 0:
            whole = f"a burst of {widest.burst}" if widest.burst else f"a limit of {widest.limit}"
            problems.add(place_of(node, "cost"), f"a cost of {rule.cost.fixed} can never fit into {whole}")
        elif rule.throttle is not None:
            fault = _window_fault(rule, Window(widest.limit, window.period, widest.burst or None))
            if fault is not None:
                problems.add(place_of(node, "throttle"), f"with its throttle: {fault[0]}", fault[1])


def _check_waiting(rule: RuleSection, node: Node, problems: Problems) -> None:
    algorithm, message = ALGORITHMS[rule.algorithm], f"with {rule.algorithm} no request waits"
    if rule.max_wait is not None and not algorithm.can_wait:
        problems.add(place_of(node, "max_wait"), message, _write(lambda other: other.can_wait))
    elif rule.max_waiting is not None and rule.max_wait is None and not algorithm.queue:
        waits = f"{rule.algorithm} waits where max_wait says for how long"
        hint = waits if algorithm.can_wait else _write(lambda other: other.queue)
        problems.add(place_of(node, "max_waiting"), message, hint)


def _no_burst(rule: RuleSection) -> tuple[str, str]:
    return f"{rule.algorithm} has no burst", _write(lambda other: other.has_burst)


def _write(able: Callable[[Algorithm], bool]) -> str:
    return f"write algorithm: {named(able)}, or leave it out"


def _window_fault(rule: RuleSection, window: Window) -> tuple[str, str] | None:
    limit, period, own_burst = window
    name, algorithm = rule.algorithm, ALGORITHMS[rule.algorithm]
    if own_burst is not None and not algorithm.has_burst:
        return _no_burst(rule)
    if limit > MOST:
        return f"a limit of {limit} is too large", f"at most {MOST}"
    if not period:
        return None
    if period > _LONGEST:
        return f"a window of {spell(period)} is too long", "at most 10 years"
    largest = algorithm.largest
    if largest is not None and limit > largest.limit:
        return f"{name} {largest.why}, and so at most {largest.limit}, not {limit}", largest.hint
    if not algorithm.has_burst:
        return None
    if limit > period:
        return f"{name} admits at most one request per microsecond, not {limit} per {spell(period)}", ""
    if own_burst is not None and not 1 <= own_burst <= MOST:
        return f"a burst of {own_burst} is out of range", f"from 1 to {MOST}"
    burst = _burst(rule, window)
    if limit and burst * -(-period // limit) > _REFILL:
        return f"a burst of {burst} would take more than 50 years to refill", ""
    if algorithm.queue and limit and burst * -(-period // limit) > _LONGEST:
        return f"a queue of {burst} would take more than 10 years to empty", ""
    return None
