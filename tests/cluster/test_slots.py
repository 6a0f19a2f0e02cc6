"""What a node is asked and how its answers are read, without a node: the conversation is a generator."""

import struct

import pytest
from redis.crc import key_slot

from ratelimit_mw import ManualClock
from ratelimit_mw.algorithms import with_overdraft
from ratelimit_mw.errors import CounterError, ErrorReply, Redirected, StoreUnavailable, WrongNode
from ratelimit_mw.model import Ask, Outcome, Quota, Reply
from ratelimit_mw.stores.base import DECIDE, Intent
from ratelimit_mw.stores.memory import MemoryStore
from ratelimit_mw.stores.redis.cluster import by_slot, over_slots
from ratelimit_mw.stores.redis.codec import away, encode
from ratelimit_mw.stores.redis.topology import _table, converse_by_slot, slot_of

QUOTA = Quota("fixed_window", 5, 1_000_000)
NO_SCRIPT = ErrorReply("NOSCRIPT No matching script.")
MOVING = ErrorReply("TRYAGAIN Multiple keys request during rehashing of slot")


def request(number, **options):
    key = f"d:r:{{{number}}}"
    return [Ask(key, QUOTA)], Intent(slot=slot_of(key), **options)


def answer(command):
    """What the script says: everything is allowed."""
    keys = int(command[2])
    nonce, time = command[3 + keys : 5 + keys]
    return nonce + struct.pack("<d", int(time or 1)) + struct.pack("<?qqqq", True, 4, 1, 0, 0) * keys


def names(pipeline):
    return [command[0].decode() for command in pipeline]


def scripts(requests):
    return {encode([request], 7).script.digest for request in requests}


def held(requests, react, known=None):
    """The results, and the names of the commands of each pipeline; `react(command, number)` makes the replies."""
    conversation = converse_by_slot(requests, 7, scripts(requests) if known is None else known)
    pipelines = []
    try:
        pipeline = next(conversation)
        while True:
            pipelines.append(names(pipeline))
            pipeline = conversation.send([react(command, len(pipelines) - 1) for command in pipeline])
    except StopIteration as end:
        return end.value, pipelines


def test_each_slot_has_a_call_of_its_own_in_one_pipeline():
    results, pipelines = held([request(1), request(2), request(1)], lambda command, _: answer(command))
    assert results == [Reply(7, (Outcome(True, 4, 1),))] * 3
    assert pipelines == [["EVALSHA", "EVALSHA"]]


def test_the_first_call_of_the_next_pipeline_teaches_the_script():
    results, pipelines = held(
        [request(1), request(2)], lambda command, number: answer(command) if number else NO_SCRIPT
    )
    assert all(isinstance(result, tuple) for result in results)
    assert pipelines == [["EVALSHA", "EVALSHA"], ["EVAL", "EVALSHA"]]


def test_each_script_of_a_pipeline_is_taught_by_the_first_call_that_needs_it():
    other = Quota("token_bucket", 5, 1_000_000, burst=5)
    asked = [request(1), request(2), *(([Ask(f"d:r:{{{n}}}", other)], Intent(slot=n)) for n in (3, 4))]
    results, pipelines = held(asked, lambda command, number: answer(command) if number else NO_SCRIPT)
    assert all(isinstance(result, tuple) for result in results)
    assert pipelines == [["EVALSHA"] * 4, ["EVAL", "EVALSHA", "EVAL", "EVALSHA"]]


def test_a_script_that_the_node_has_not_had_yet_travels_with_the_first_call():
    known = set()
    for names_of_commands in (["EVAL", "EVALSHA"], ["EVALSHA", "EVALSHA"]):
        results, pipelines = held([request(1), request(2)], lambda command, _: answer(command), known)
        assert all(isinstance(result, tuple) for result in results)
        assert pipelines == [names_of_commands]


def test_a_node_that_never_learns_is_away():
    results, pipelines = held([request(1)], lambda *_: NO_SCRIPT)
    assert away(results[0])
    assert len(pipelines) == 4


def test_what_shares_a_slot_that_moves_is_asked_alone():
    def react(command, pipeline):
        return answer(command) if pipeline else MOVING

    results, pipelines = held([request(1), request(1), request(2)], react)
    assert isinstance(results[0], tuple)
    assert isinstance(results[1], tuple)
    assert type(results[2]) is WrongNode
    assert pipelines == [["EVALSHA", "EVALSHA"], ["EVALSHA", "EVALSHA"]]


def test_asking_is_sent_before_each_redirected_request_only():
    def react(command, _):
        return b"OK" if command == (b"ASKING",) else answer(command)

    results, pipelines = held([request(1, asking=True), request(1, asking=True), request(1)], react)
    assert all(isinstance(result, tuple) for result in results)
    assert pipelines == [["ASKING", "EVALSHA", "ASKING", "EVALSHA", "EVALSHA"]]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        pytest.param("MOVED 5 127.0.0.1:7000", (("127.0.0.1", 7000), False), id="moved"),
        pytest.param("MOVED 5 :7000", (("", 7000), False), id="moved to another port of the same host"),
        pytest.param("ASK 5 ::1:7000", (("::1", 7000), True), id="asked elsewhere, by IPv6"),
    ],
)
def test_a_redirection_says_where(error, expected):
    results, _ = held([request(1)], lambda *_: ErrorReply(error))
    assert isinstance(results[0], Redirected)
    assert (results[0].address, results[0].asking) == expected
    assert not away(results[0])


@pytest.mark.parametrize(
    "error", ["MOVED", "MOVED 5", "MOVED 5 here", "ASK 5 127.0.0.1:x", "ASK 5 h:70000", "ASK 5 h:0", "MOVED 5 h:1_0"]
)
def test_a_redirection_to_nowhere_is_an_error_of_the_node(error):
    results, _ = held([request(1)], lambda *_: ErrorReply(error))
    assert type(results[0]) is StoreUnavailable


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        pytest.param("CLUSTERDOWN The cluster is down", StoreUnavailable, id="the cluster is down"),
        pytest.param("CLUSTERDOWN Hash slot not served", CounterError, id="nobody has this slot"),
        pytest.param("LOADING Redis is loading", StoreUnavailable, id="loading"),
    ],
)
def test_another_error_is_that_slots_alone(error, kind):
    def react(command, _):
        return ErrorReply(error) if command[3] == b"d:r:{1}" else answer(command)

    results, _ = held([request(1), request(2)], react)
    assert type(results[0]) is kind
    assert isinstance(results[1], tuple)


def test_a_reply_to_another_question_ends_the_conversation():
    with pytest.raises(StoreUnavailable, match="another request"):
        held([request(1)], lambda command, _: bytes(16 + 33))


def test_a_slot_is_that_of_what_stands_in_the_braces():
    assert slot_of("d:r:{x}") == slot_of("e:s:{x}") == key_slot(b"x")
    assert by_slot(["d:r:{x}", "d:r:{y}", "d:s:{x}"]) == {slot_of("{x}"): [0, 2], slot_of("{y}"): [1]}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([[0, 1, [b"a", 7, b"id"]], [2, 2, [b"b", 8, b"id"]]], [("a", 7), ("a", 7), ("b", 8)], id="names"),
        pytest.param([[0, 0, [b"", 7, b"id"]], [2, 2, [None, 8]]], [("here", 7), None, ("here", 8)], id="no names"),
        pytest.param([[0, 0, [b"a", 7, b"id", []], [b"replica", 9, b"id"]]], [("a", 7), None, None], id="a replica"),
    ],
)
def test_the_table_of_slots_is_read(rows, expected):
    assert _table(rows, "here")[:3] == expected


@pytest.mark.parametrize("rows", [pytest.param(b"OK", id="a word"), pytest.param([[1]], id="too short"), None])
def test_what_is_no_table_is_no_answer(rows):
    with pytest.raises(StoreUnavailable):
        _table(rows, "here")


class TestSpanning:
    """Of a request over two slots: what is given back, and what its reply is where a part is silent."""

    ASKS = (Ask("d:r:{1}", QUOTA, 2), Ask("d:r:{2}", QUOTA, 3))
    YES, NO = Outcome(True, 1, 9), Outcome(False, 0, 9, 5)

    def sent(self, *results, commit=True):
        """What is sent after these results of the parts: the refunds, and the steps that go on; or the reply."""
        steps = over_slots((self.ASKS, Intent(commit)), by_slot([ask.key for ask in self.ASKS]), list)
        next(steps)
        return after(steps, results), steps

    def test_where_one_denies_the_other_is_given_back_at_its_own_time(self):
        (back,), steps = self.sent(Reply(7, [self.YES]), Reply(8, [self.NO]))
        assert (back[0], back[1].charged_at) == ([self.ASKS[0]], 7)
        looked = Outcome(True, 3, 0)
        assert after(steps, [Reply(10, [looked])]) == Reply(8, [looked, self.NO])

    def test_what_cannot_be_returned_stays_charged(self):
        _, steps = self.sent(Reply(7, [self.YES]), Reply(8, [self.NO]))
        assert after(steps, [StoreUnavailable("gone")]) == Reply(8, [self.YES, self.NO])

    def test_a_look_gives_nothing_back(self):
        reply, _ = self.sent(Reply(7, [self.YES]), Reply(8, [self.NO]), commit=False)
        assert reply == Reply(8, [self.YES, self.NO])

    def test_a_silent_part_leaves_the_other_charged_and_the_rest_to_on_error(self):
        with pytest.raises(StoreUnavailable, match="gone"):
            self.sent(Reply(7, [self.YES]), StoreUnavailable("gone"))

    def test_a_denial_is_certain_whoever_is_silent(self):
        reply, _ = self.sent(StoreUnavailable("gone"), Reply(8, [self.NO]))
        assert reply == Reply(8, [Outcome(True, 0, 0), self.NO])


def after(steps, results):
    """What the steps yield or return after these results."""
    try:
        return steps.send(results)
    except StopIteration as end:
        return end.value


LIMITS = (("a", 10), ("b", 10), ("c", 0))


def test_a_denial_in_one_slot_takes_back_the_charges_of_others_but_no_overdraft():
    store = MemoryStore(clock=ManualClock(1_700_000_000))
    late, usual, gate = (Ask(f"d:r:{{{name}}}", Quota("fixed_window", limit, 60_000_000), 4) for name, limit in LIMITS)
    late = late._replace(quota=with_overdraft(late.quota))

    def answered(part):
        asks, intent = part
        if intent.charged_at is not None:  # a server answers a refund with a look
            store.ask(part)
            return store.decide([ask._replace(cost=0) for ask in asks], commit=False)
        return store.ask(part)

    asks = [late, usual, gate]
    conversation = over_slots((asks, DECIDE), by_slot([ask.key for ask in asks]), list)
    refunds = conversation.send([answered(part) for part in next(conversation)])
    with pytest.raises(StopIteration) as end:
        conversation.send([answered(part) for part in refunds])
    assert [outcome[:2] for outcome in end.value.value.outcomes] == [(True, 6), (True, 10), (False, 0)]
    left = [store.decide([ask._replace(cost=0)]).outcomes[0].remaining for ask in (late, usual)]
    assert left == [6, 10]
