"""The verdict on a request with several counters."""

from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.decision.verdict import Verdict
from ratelimit_mw.model import NEVER, Ask, Banned, Charge, Outcome, Quota, Reply, Rule

QUOTA = Quota("fixed_window", 9, 60)
AN_ADMISSION_FROM_ANY_SPARE_PART = (
    Charge(Rule("throttled", shadow=True), Ask("t", Quota("fixed_window", 9, 60, spare=3), 1, True)),
    Outcome(True, 9, 0, 0),
)
"""A shadow that decides nothing. If a limit has a spare part, each outcome is made anew."""


@st.composite
def decided(draw):
    """A charge, and what its counter has decided."""
    shadow = draw(st.booleans())
    rule = Rule("r", shadow=shadow, quota_group=draw(st.sampled_from(["", "", "", "g"])) if shadow else "")
    if draw(st.booleans()):
        row = (True, draw(st.integers(0, 3)), 7, 0, draw(st.sampled_from([0, 0, 5, 9])))
        row = draw(st.sampled_from([tuple, Outcome._make]))(row)
    else:
        wait = draw(st.sampled_from([0, 1, 5, NEVER]))
        row = draw(st.sampled_from([Outcome, Banned]))(False, draw(st.integers(0, 3)), 7, wait)
    return Charge(rule, Ask("k", QUOTA, 1, shadow)), row


@given(st.lists(decided(), min_size=2, max_size=5))
def test_a_counter_that_decides_nothing_changes_no_verdict(pairs):
    def verdict(*more):
        charges, rows = zip(*pairs, *more, strict=True)
        return Verdict(charges, Reply(5, rows))

    few, many = verdict(), verdict(AN_ADMISSION_FROM_ANY_SPARE_PART)
    for name in ("allowed", "binding", "delay", "shadowed", "over", "simple", "wait", "reason", "rule", "limit"):
        assert getattr(few, name) == getattr(many, name), name
    assert list(few.outcomes) == list(many.outcomes)[:-1]
    assert [type(each) for each in few.outcomes] == [type(each) for each in many.outcomes][:-1]
    assert [ask for ask in many.owed if ask.quota is QUOTA] == few.owed
    decision = many.decision
    assert few.decision == decision._replace(policies=decision.policies[:-1])
