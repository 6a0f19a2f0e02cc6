"""The times in logs."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.foresight.logs.entry import any_time, common_time, duration

AT = datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC)
ZONES = st.integers(-720, 720).map(lambda minutes: timezone(timedelta(minutes=minutes)))
TIMES = st.tuples(st.integers(31_536_000_000_000, 4_102_444_800_000_000), ZONES).map(
    lambda parts: datetime.fromtimestamp(0, UTC).astimezone(parts[1]) + timedelta(microseconds=parts[0])
)
NO_TIMES = (
    *("", "-", "now", "-5", "1969-12-31T00:00:00Z", "9999-12-31T23:59:59-14:00", "\N{ARABIC-INDIC DIGIT THREE}" * 10),
    *("31/Feb/2015:10:05:03 +0000", "17/Mai/2015:10:05:03 +0000", "17/May/2015:24:05:03 +0000"),
    *("17/May/2015:10:60:03 +0000", "17/May/2015:10:05:61 +0000", "17/May/2015:10:05:0x +0000"),
    "17/May/0000:10:05:03 +0000",
)


def micros(time):
    return round(time.replace(microsecond=0).timestamp()) * 1_000_000 + time.microsecond


@given(TIMES)
def test_every_form_of_a_time_is_the_same_time(time):
    whole = time.replace(microsecond=0)
    assert common_time(whole.strftime("%d/%b/%Y:%H:%M:%S %z")) == micros(whole)
    assert common_time(time.strftime("%d/%b/%Y:%H:%M:%S.%f %z")) == micros(time)
    assert any_time(time.isoformat()) == micros(time)
    seconds = round(whole.timestamp())
    assert any_time(f"{seconds}.{time.microsecond:06}") == micros(time)
    assert any_time(f"[{whole.strftime('%d/%b/%Y:%H:%M:%S %z')}]") == micros(whole)


@pytest.mark.parametrize("text", ["1431857103123", "1431857103123000", "1431857103123000000", "1431857103.123"])
def test_the_size_of_a_number_decides_its_unit(text):
    assert any_time(text) == micros(AT) + 123_000


def test_a_time_without_a_zone_is_utc():
    assert any_time("2015-05-17 10:05:03") == micros(AT)


@pytest.mark.parametrize("text", NO_TIMES)
def test_a_text_that_is_not_a_time_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"time|month|day|hour|minute|second|format|string|year"):
        any_time(text)


@given(st.text(max_size=40))
def test_no_text_raises_another_error(text):
    try:
        assert any_time(text) >= 0
    except ValueError:
        assert duration(text, 1.0) >= -1


@pytest.mark.parametrize(
    ("text", "length"), [("0.25", 250_000), ("-", -1), ("", -1), ("nan", -1), ("-1", -1), ("1e99", -1)]
)
def test_a_duration_that_is_unknown_is_minus_one(text, length):
    assert duration(text, 1_000_000.0) == length
