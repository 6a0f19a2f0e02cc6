"""`max_wait` and `max_waiting`: how long a request may wait for its turn at a bucket, and how many may wait."""

from dataclasses import replace

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.config import kinds, readers
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.config.word import Values, Word
from ratelimit_mw.config.words.algorithm import ALGORITHM, write_one_that
from ratelimit_mw.config.words.throttle import THROTTLE, raised, widest
from ratelimit_mw.model import Quota, Rule


def _alter(quota: Quota, rule: Values, _prefix: str) -> Quota:
    if not quota.limit or not ALGORITHMS[quota.algorithm].can_wait:
        return quota
    stated = rule[MAX_WAIT]
    if stated is not None:
        return replace(quota, max_wait=stated)
    if ALGORITHMS[quota.algorithm].queue:
        # A queue's requests may wait as long as the whole queue takes to drain.
        longest = widest(raised(quota, rule[THROTTLE]))
        return replace(quota, max_wait=longest.burst * -(-quota.period // quota.limit))
    return quota


def _check_max_wait(rule: Values, problems: Problems) -> None:
    if rule[MAX_WAIT] is not None and not ALGORITHMS[rule[ALGORITHM]].can_wait:
        problems.add(rule.place("max_wait"), _never_waits(rule), write_one_that(lambda other: other.can_wait))


def _check_max_waiting(rule: Values, problems: Problems) -> None:
    algorithm = ALGORITHMS[rule[ALGORITHM]]
    if rule[MAX_WAITING] is not None and rule[MAX_WAIT] is None and not algorithm.queue:
        waits = f"{rule[ALGORITHM]} waits where max_wait says for how long"
        hint = waits if algorithm.can_wait else write_one_that(lambda other: other.queue)
        problems.add(rule.place("max_waiting"), _never_waits(rule), hint)


def _never_waits(rule: Values) -> str:
    return f"with {rule[ALGORITHM]} no request waits"


MAX_WAIT: Word[int | None] = Word(
    key="max_wait",
    read=readers.duration("1ms", "1m"),
    default=None,
    schema={**kinds.TEXT, "examples": ["500ms", "10s"]},
    about="How long a request may wait for its turn instead of being denied.",
    check=_check_max_wait,
    alter=_alter,
)

MAX_WAITING: Word[int | None] = kinds.optional_number(
    "max_waiting",
    0,
    10_000,
    "How many threads of a process may wait for a turn at once.",
    check=_check_max_waiting,
    fields=lambda rule, _file: {
        "max_waiting": Rule("").max_waiting if rule[MAX_WAITING] is None else rule[MAX_WAITING]
    },
)
