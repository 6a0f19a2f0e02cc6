"""Random histories: what a counter may live through."""

import itertools

from hypothesis import strategies as st

from ratelimit_mw.algorithms import with_overdraft
from ratelimit_mw.algorithms.ban import BanQuota
from ratelimit_mw.model import SECOND, Ask, Quota
from ratelimit_mw.stores.base import Intent

NAMES = (
    *("fixed_window", "sliding_log", "sliding_window", "bucketed_window", "token_bucket", "leaky_bucket"),
    "concurrency",
)
BUCKETS = ("token_bucket", "leaky_bucket")
DAY = 86_400 * SECOND
PERIODS = (SECOND, 7 * SECOND, 60 * SECOND, 3_600 * SECOND, DAY, 30 * DAY, 365 * DAY, 3_650 * DAY)
START = 1_700_000_000 * SECOND
GREAT = 1_000_000_000
GREATEST_LOG = 10_000
LONGEST_REFILL = {"token_bucket": 18_250 * DAY, "leaky_bucket": 3_650 * DAY}
"""What the schema lets through."""
LATEST = 2**52
"""The year 2112: where a debt of a hundred years is paid back, a Lua number still holds every microsecond."""


class HistoryClock:
    """A clock whose time is set in whole microseconds."""

    def __init__(self, time=0):
        self.time = time

    def now(self):
        return self.time


@st.composite
def limits(draw, name, period):
    """From 0 to the greatest that the schema lets through, the small ones often."""
    most = GREATEST_LOG if name == "sliding_log" else min(period, GREAT) if name in BUCKETS else GREAT
    small = st.integers(0, 6)
    return draw(st.one_of(small, small, st.integers(0, 100), st.integers(0, most), st.just(most)))


@st.composite
def quotas(draw, name, period=None, buckets=None):
    """Any quota of that algorithm."""
    period = period or draw(st.sampled_from(PERIODS))
    limit = draw(limits(name, period))
    burst = longest_wait = 0
    if name in BUCKETS and limit:
        most = min(GREAT, LONGEST_REFILL[name] // -(-period // limit))
        burst = draw(st.one_of(st.just(min(limit, most)), st.integers(1, min(6, most)), st.integers(1, most)))
        interval = -(-period // limit)
        waits = st.sampled_from((0, 1, interval - 1, interval, 2 * interval, burst * interval))
        longest_wait = draw(st.one_of(waits, st.integers(0, 60 * SECOND)))
    return Quota(name, limit, period, burst, buckets or 60, longest_wait=longest_wait)


@st.composite
def jumps(draw, quota, *, back):
    """Microseconds from one request to the next: around slices, intervals, windows and multiples of them."""
    period = quota.period
    units = (0, 1, 1_000, -(-period // quota.buckets), -(-period // max(quota.limit, 1)), period // 2, period)
    exact = draw(st.sampled_from(units)) * draw(st.sampled_from((1, 1, 1, 2, 3, 61))) + draw(st.integers(-1, 1))
    jump = draw(st.one_of(st.just(max(exact, 0)), st.just(max(exact, 0)), st.integers(0, 3 * period)))
    return -jump if back and draw(st.integers(0, 3)) == 0 else jump


@st.composite
def costs(draw, quota):
    """Mostly what fits, now and then what can't."""
    holds = quota.burst or quota.limit
    ordinary = st.sampled_from((1, 1, 1, 1, 0, 2, 3))
    return draw(st.one_of(ordinary, ordinary, st.integers(0, holds + 1), st.sampled_from((holds, 10**15))))


def perhaps_late(quota):
    """The quota, or now and then the one of a cost that is known after the fact."""
    return st.sampled_from((quota, quota, with_overdraft(quota)))


@st.composite
def histories(draw, names=NAMES[:-1]):  # concurrency is a bucketed window that guesses its wait
    """(quota, [(jump, cost)]) of one counter whose clock never steps back."""
    quota = draw(st.sampled_from(names).flatmap(lambda name: quotas(name, buckets=draw(st.sampled_from((60, 1, 7))))))
    return quota, draw(st.lists(st.tuples(jumps(quota, back=False), costs(quota)), min_size=1, max_size=40))


@st.composite
def bans(draw):
    """Any ban, mostly one that comes soon."""
    lasts = draw(st.sampled_from((1, 7 * SECOND, 60 * SECOND, 3_600 * SECOND)))
    growth = draw(st.sampled_from((1, 1, 2, 2, 3, 10)))
    longest = lasts if growth == 1 else draw(st.sampled_from((lasts + 1, 4 * lasts, 25 * lasts, 365 * DAY)))
    after = draw(st.one_of(st.integers(1, 4), st.just(1_000)))
    within = draw(st.sampled_from((1, SECOND, 60 * SECOND, DAY)))
    return BanQuota("ban", after, within, lasts=lasts, longest=longest, growth=growth)


def ban_ask(ban, watched, *, name="", shadow=False):
    """The ask of a ban that watches so many asks behind it."""
    return Ask(f"p{name}:ban:{{x}}", ban, watched, shadow)


@st.composite
def watched(draw, asks, ban):
    """The asks, and before some of them a ban that watches one of them or more: one rule's, all shadows or none."""
    first = draw(st.integers(0, len(asks) - 1))
    alike = itertools.takewhile(lambda ask: ask.shadow == asks[first].shadow, asks[first:])
    many = draw(st.integers(0, len(list(alike))))
    shadow = many > 0 and asks[first].shadow
    return [*asks[:first], ban_ask(ban, many, name=asks[first].key, shadow=shadow), *asks[first:]]


@st.composite
def conversations(draw):
    """[(now, requests)]: several counters of an algorithm, shared by tiers; shadows, peeks, refunds, bans; any clock.

    What is charged without being asked, a debt or a lease renewed, is looked at behind. Some costs may overdraw.
    """
    counters = []
    for number, name in enumerate(draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4))):
        first = draw(quotas(name, buckets=draw(st.sampled_from((60, 1, 13)))))
        tiers = [first, *draw(st.lists(quotas(name, first.period, first.buckets), max_size=2))]
        counters.append([(f"p:{number}:{name}:{{x}}", quota) for quota in tiers])
    every = list(itertools.chain(*counters))
    punishing = draw(st.lists(bans(), max_size=2))
    now, steps, before = START + draw(st.integers(0, DAY)), [], []
    for _ in range(draw(st.integers(1, 25))):
        quota = draw(st.sampled_from(every))[1]
        now = now + draw(jumps(quota, back=True))
        if punishing and draw(st.integers(0, 3)) == 0:  # the last moments of bans, and of what brings them
            ban = draw(st.sampled_from(punishing))
            now += draw(st.sampled_from((ban.lasts, ban.period, ban.longest, -ban.lasts))) + draw(st.integers(-1, 1))
        elif draw(st.integers(0, 3)) == 0:  # the last moments of a window, and the first
            now += -now % quota.period + draw(st.integers(-2, 1))
        now = min(max(now, 0), LATEST)
        requests = []
        for _ in range(draw(st.integers(1, 3))):
            asked = draw(st.lists(st.sampled_from(every), min_size=1, max_size=3, unique_by=lambda counter: counter[0]))
            shadow, shaded = draw(st.sampled_from((False, False, True))), draw(st.integers(0, len(asked) - 1))
            asks = [
                Ask(key, draw(perhaps_late(quota)), draw(costs(quota)), shadow=shadow and place == shaded)
                for place, (key, quota) in enumerate(asked)
            ]
            if before and draw(st.booleans()):
                asks = draw(st.sampled_from(before))  # again, as most requests of a client
            before.append(asks)
            what = draw(st.sampled_from(("charge", "charge", "charge", "look", "refund", "insist", "renew")))
            if punishing and what in ("charge", "look"):
                asks = draw(watched(asks, draw(st.sampled_from(punishing))))
            back = what in ("refund", "renew")
            charged_at = draw(st.sampled_from([now, *(then for then, _ in steps)])) if back else None
            if what in ("insist", "renew"):
                requests += [(asks, Intent(charged_at=charged_at, insist=True)), (asks, Intent(commit=False))]
            else:
                requests.append((asks, Intent(commit=what != "look", charged_at=charged_at)))
        steps.append((now, requests))
    return steps
