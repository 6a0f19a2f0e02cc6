"""`Live` and `Viewer`: the state that the live page and `top --watch` show, and the thread that reports it to others.

The state is a value of JSON, made of what processes have reported:

* `domain`, `version`, `switch`: The domains of the rules, their version (None if it is unknown), and the kill switch.
* `at`: The time of the state. This and all other times are epoch seconds.
* `store`: Its `kind`, whether it is `up`, and the time of a round trip in `latency_ms` (None if it is unknown).
* `load`: The load of the busiest process, from 0 to 1. None if the rules do not measure it.
* `processes`, `shared`: The number of processes. Without `shared`, only this process is shown.
* `rates`: The `requests` and `denials` a second, as the mean of 10 seconds.
* `series`: The number of `requests` and `denials` in each `step` of so many seconds. The last step ended at `end`.
* `limited`: The clients that are limited now, the most denied first, at most 50. `until` is None if the limit never
  opens.
* `rules`: All rules of the file, and then those that the file no longer has. `rates` are requests a second by how the
  rule decided. `bans` are those of the last 15 minutes.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from weakref import ref

from ratelimit_mw.decision.explanation import limit_in_words
from ratelimit_mw.identity.sources import described
from ratelimit_mw.limiter import LIMITERS, RateLimiter
from ratelimit_mw.logs import Once, logger
from ratelimit_mw.model import SECOND
from ratelimit_mw.operations.activity import (
    STEP,
    STEPS,
    Activity,
    RuleActivity,
    RuleId,
    decode_report,
    together,
)
from ratelimit_mw.operations.observer import Observer, process_name
from ratelimit_mw.operations.sharing import EVERY, Sharing, open_board
from ratelimit_mw.process_local import abandon, lazy, lock, reset_after_fork
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.tally import OUTCOMES

LiveState = dict[str, Any]


class Shown(NamedTuple):
    """A rule as the file has it: its limits in words, and whether it is a shadow rule."""

    limits: tuple[str, ...]
    shadow: bool


class Outline:
    """The rules of a file, as they are shown. Made once for each version of the rules, because it takes a while."""

    def __init__(self, rules: Rules) -> None:
        self.rules_of = rules
        self.domain = ", ".join(part.domain for part in rules.parts)
        self.rules: dict[RuleId, Shown] = {}
        for part in rules.parts:
            for rule in part.compiled:
                words = [limit_in_words(quota) for quota in rule.limits]
                if rule.read_limit is not None:
                    words = ["set by a function"]
                self.rules[part.domain, rule.rule.name] = Shown(tuple(dict.fromkeys(words)), rule.rule.shadow)
            for limit in part.descriptors.limits if part.descriptors else ():
                words = [] if limit.quota is None else [limit_in_words(limit.quota)]
                self.rules[part.domain, limit.rule.name] = Shown(tuple(words), limit.rule.shadow)


def state_of(
    activity: Activity,
    outline: Outline,
    *,
    version: str | None,
    switch: str,
    at: float,
    store: LiveState,
    processes: int,
    shared: bool,
) -> LiveState:
    """Return the state.

    Args:
        activity: What the processes did together.
        outline: The rules in force.
        version: The version of the rules in force.
        switch: The setting of the kill switch.
        at: The time in epoch seconds.
        store: What is known of the store, as the state has it.
        processes: The number of processes that the state is about.
        shared: True if the state is about all processes, not only about this one.
    """
    end = int(at // STEP)  # the step that has not ended is left out: its counts would look like a fall
    shown = range(max(min(activity.steps[0], default=end), end - STEPS), end)  # from that of the first request on
    return {
        "domain": outline.domain,
        "version": version or None,
        "switch": switch,
        "at": at,
        "store": store,
        "load": None if activity.load is None else round(activity.load, 3),
        "processes": processes,
        "shared": shared,
        "rates": {"requests": round(activity.requests, 2), "denials": round(activity.denials, 2)},
        "series": {
            "step": STEP,
            "end": end * STEP,
            "requests": [activity.steps[0].get(step, 0) for step in shown],
            "denials": [activity.steps[1].get(step, 0) for step in shown],
        },
        "limited": [client._asdict() for client in activity.limited if client.until is None or client.until > at],
        "rules": _rules(activity, outline.rules),
    }


def _rules(activity: Activity, outline: Mapping[RuleId, Shown]) -> list[LiveState]:
    further = [rule for rule in activity.rules if rule not in outline]
    return [
        _rule(rule, outline.get(rule, _UNKNOWN), activity.rules.get(rule, _NOTHING)) for rule in (*outline, *further)
    ]


_UNKNOWN = Shown((), shadow=False)
_NOTHING = RuleActivity((0.0,) * len(OUTCOMES), 0)


def _rule(rule: RuleId, shown: Shown, did: RuleActivity) -> LiveState:
    return {
        "domain": rule[0],
        "name": rule[1],
        "limits": list(shown.limits),
        "shadow": shown.shadow,
        "rates": {name: rate and round(rate, 2) for name, rate in zip(OUTCOMES, did.rates, strict=True)},
        "bans": did.bans,
    }


_MANY = 100
"""If more rules than this did anything, the state is shown for a second, because it takes some milliseconds."""


class _Made(NamedTuple):
    """A state, and when it was made, by the monotonic clock."""

    at: float
    state: LiveState


class Viewer:
    """Reads what the processes of a limiter's storage report. It does not report itself. One thread may use it.

    Args:
        limiter: A limiter with the rules, whose storage processes share. It need not decide anything.
    """

    def __init__(self, limiter: RateLimiter) -> None:
        rules = limiter.rules
        self._board = open_board(limiter.storage_url, rules.parts[0].domain)
        self._outline = Outline(rules)
        self._kind = limiter.storage_url.partition(":")[0]

    def state(self) -> LiveState | None:
        """Return the state of all processes, as `Live.state` does. None if no process reports.

        It takes two commands, and their time is `latency_ms`. Raises StoreUnavailable.
        """
        began = time.perf_counter()
        texts = self._board.read()
        latency = round((time.perf_counter() - began) * 1_000, 2)
        reports = [found for found in map(decode_report, texts) if found is not None]
        if not reports:
            return None
        return state_of(
            together([each.activity for each in reports]),
            self._outline,
            version=_usual(each.version for each in reports),
            switch=_usual(each.switch for each in reports),
            at=time.time(),
            store={"kind": self._kind, "up": True, "latency_ms": latency},
            processes=len({each.process for each in reports}),
            shared=True,
        )

    def close(self) -> None:
        """Close the connection."""
        self._board.close()


def _usual(values: Iterable[str]) -> str:
    """Return the value that most processes have. They differ for a moment, while one of them has newer rules."""
    return Counter(values).most_common(1)[0][0]


THE_RULES = 0
"""The user of a `Live` for which the rules say `observe: {live: true}`."""


def live_of(limiter: RateLimiter) -> "Live":
    """Return the only `Live` of a limiter."""
    return limiter.kept(Live, lambda: Live(limiter))


class Live:
    """The state of a limiter, together with all processes that report to the same storage. Threads may share it.

    The process reports while there are users, until the limiter is closed, in a thread of its own. No request and no
    event loop waits for it.
    """

    _starting = lazy(lock)

    def __init__(self, limiter: RateLimiter) -> None:
        self._limiter = ref(limiter)
        self._users: set[int] = set()
        self._observer: Observer | None = None
        self._sharing: Sharing | None = None
        self._thread: threading.Thread | None = None
        self._outline: Outline | None = None
        self._made: _Made | None = None
        self._once = Once()

    def begin(self, user: int) -> None:
        """Begin to report for this user, a number of its own. May be called twice.

        The thread starts with the first request of each process, or with the first `state`.
        """
        limiter = self._limiter()
        if limiter is None or user in self._users:
            return
        if self._observer is None:
            self._observer = Observer(limiter)
            reset_after_fork(self)
            limiter.at_close(self._stop)
            limiter.at_first_request(self._start)
        self._users.add(user)
        limiter.engine.on_denial = self._observer.table.add

    def end(self, user: int) -> None:
        """Stop reporting if this was the last user. May be called twice."""
        self._users.discard(user)
        limiter = self._limiter()
        if not self._users:
            if limiter is not None:
                limiter.engine.on_denial = None
            self._stop()

    def state(self) -> LiveState:
        """Return what the page shows, as values of JSON. The docstring of this module has the fields.

        The caller must not change it, and must hold the limiter. It may wait for the store, so an event loop should
        call it in a thread. If there are many rules, it may be a second old.
        """
        limiter = self._limiter()
        if limiter is None:
            raise ReferenceError("the limiter no longer exists")
        if LIMITERS[limiter]:  # after its end, only a request starts the thread
            self._start()
        made = self._made
        if made is None or time.monotonic() - made.at >= EVERY:
            made = _Made(time.monotonic(), self._make(limiter))
            self._made = made if len(made.state["rules"]) > _MANY else None
        return made.state

    def _make(self, limiter: RateLimiter) -> LiveState:
        sharing = self._sharing
        others = None if sharing is None else sharing.others()
        observer, rules = self._observer or Observer(limiter), limiter.rules
        outline = self._outline
        if outline is None or outline.rules_of is not rules:
            outline = self._outline = Outline(rules)
        observer.sample()
        own = activity = observer.activity(limiter)
        if others is not None and others.together is not None:
            activity = together([own, others.together])
        return state_of(
            activity,
            outline,
            version=limiter.state.version,
            switch=limiter.switch.setting.word,
            at=observer.now() / SECOND,
            store=_store(limiter, sharing, deciding=own.requests > 0),
            processes=len({process_name(), *(each.process for each in (others.reports if others else ()))}),
            shared=others is not None,
        )

    def after_fork(self) -> None:
        """Begin again in the child of a fork, which does not have the parent's thread."""
        abandon(self._sharing)
        self._thread = self._sharing = self._made = None
        limiter = self._limiter()
        if self._observer is not None and limiter is not None:
            self._observer.reset(limiter)

    def _start(self) -> None:
        """Start the thread, unless it runs. Never raises."""
        limiter = self._limiter()
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                return
            if limiter is None or not self._users:
                return
            self._sharing = sharing = Sharing(limiter.storage_url, limiter.rules.parts[0].domain)
            self._thread = threading.Thread(target=self._run, args=(sharing,), name="ratelimit_mw live", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no more threads: the next call of `state` tries again
                self._thread = self._sharing = None

    def _stop(self) -> None:
        with self._starting:
            sharing, self._sharing, self._thread = self._sharing, None, None
        if sharing is not None:
            sharing.stop()

    def _run(self, sharing: Sharing) -> None:
        try:
            while self._round(sharing) and sharing.wait():
                pass
        finally:
            sharing.end()

    def _round(self, sharing: Sharing) -> bool:
        """Sample the counts and exchange them. Return False if the limiter no longer exists."""
        limiter, observer = self._limiter(), self._observer
        if limiter is None or observer is None:
            return False
        try:
            observer.sample()
            if sharing.possible:
                sharing.exchange(observer.report(limiter))
        except Exception as error:  # noqa: BLE001 - the app must not notice, and the next round may succeed
            self._once(logger.error, "the live page can't be kept up to date: %s (logged once)", described(error))
        return True


def _store(limiter: RateLimiter, sharing: Sharing | None, *, deciding: bool) -> LiveState:
    """Return what is known of the store: by the last exchange, and by the last decision if there were some lately."""
    tally, latency_ms = limiter.engine.tally, None
    up = tally.store_up
    if sharing is not None and sharing.server:
        up = not sharing.away and (up or not deciding)
        latency_ms = sharing.latency_ms if up else None
    return {"kind": tally.store, "up": up, "latency_ms": latency_ms}
