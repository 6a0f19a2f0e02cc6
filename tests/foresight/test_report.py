"""The page of a replay: it is safe, small, and the same for the same result."""

import re
from collections import Counter
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.foresight.logs.entry import Unreadable
from ratelimit_mw.foresight.report import page
from ratelimit_mw.foresight.report.markup import element
from ratelimit_mw.foresight.report.svg import Scale, spans_of, what_if
from ratelimit_mw.foresight.requests import Gap
from ratelimit_mw.foresight.results import MINUTE, Difference, Result, RulesOutcome, bars_of
from ratelimit_mw.foresight.wording import share
from tests.foresight.reports import HOSTILE, curve, small
from tests.foresight.test_replay import NOON, replayed, shop

VOID = ("input", "meta")


class Tree(HTMLParser):
    """Reads a page. Each element must be closed, and text is collected by section."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts, self.attributes = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)


def words(text):
    """The text of a page as a person reads it."""
    return re.sub(r"\s+", " ", "".join(Tree(text).texts))


@pytest.fixture
def result(tmp_path):
    return small(tmp_path, against=shop({"name": "everything", "limit": "9 per minute"}))


def test_the_report_says_what_the_terminal_says(result):
    text = words(page(result, ["logs/access.log"]))
    outcome = result.outcome
    assert f"{outcome.denied} of {outcome.requests} requests would have been denied, of 4 clients. " in text
    assert "The shadow rules would deny 19 more requests, of 1 client." in text
    assert "access.log" in text
    assert "logs/" not in text
    assert "2026-03-01 12:00:00 to 2026-03-01 12:01:19 UTC" in text
    assert f"Newly denied: {result.difference.newly_denied.total} requests of" in text
    assert "The log's clients did not know of these limits." in text
    assert "1 of 46 lines could not be read" in text


def test_the_policy_allows_only_the_style_and_the_script_with_the_nonce(result):
    text = page(result, ["access.log"])
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    (nonce,) = set(re.findall(r' nonce="([^"]+)"', text))
    assert policy.replace("&#x27;", "'") == (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "base-uri 'none'; form-action 'none'"
    )
    names = [name for name, _ in Tree(text).attributes]
    assert "style" not in names
    assert not any(name.startswith("on") for name in names)
    assert Tree(text).tags.count("script") == Tree(text).tags.count("style") == 1


def test_the_report_loads_nothing(result):
    text = page(result, ["access.log"])
    names = {name for name, _ in Tree(text).attributes}
    assert not names & {"src", "href", "xlink:href", "srcset", "action", "data", "poster", "background"}
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|import\(", text)
    assert "://" not in text


def test_a_client_cannot_write_html_or_control_characters(result):
    text = page(result, ["access.log"])
    assert HOSTILE not in text
    assert HOSTILE[:40] in words(text)  # it is shown as it was written
    assert "img" not in Tree(text).tags
    assert "b" not in re.findall(r"<(b)>", text.partition("<article")[0])  # of the name of a rule
    assert "\\x1b[31m</script>" in words(text)
    assert text.replace("\n", "").isprintable()


def test_a_name_of_a_log_and_of_a_rule_is_escaped(result):
    text = page(result, ["<b>\u202e.log"])
    assert "<b>\u202e" not in text
    assert "Replay of <b>\\u202e.log" in words(text)


def test_the_same_result_has_the_same_bytes(tmp_path):
    first, second = (page(small(tmp_path), ["access.log"]) for _ in range(2))
    assert first == second
    other = page(small(tmp_path, until=(NOON + 30) * 1_000_000), ["access.log"])
    nonces = {re.findall(r'nonce="([^"]+)"', text)[0] for text in (first, other)}
    assert len(nonces) == 2


def test_each_limit_of_a_curve_has_a_row_and_the_limit_in_force_is_said(tmp_path):
    result = small(tmp_path)
    held = result.curves[0]
    text = page(result, ["access.log"]).partition("<article")[2].partition("</article>")[0]
    rows = re.findall(r"<tr[^>]*>(<td.*?)</tr>", text.partition("<details")[2])
    cells = [[re.sub("<[^>]*>", "", cell) for cell in re.findall("<td[^>]*>(.*?)</td>", row)] for row in rows]
    assert [(row[0], row[1], row[3]) for row in cells] == [
        (f"{limit} per minute", f"{denied:,}", f"{clients:,}")
        for limit, denied, clients in zip(held.limits, held.denied, held.clients, strict=True)
    ]
    place = held.in_force
    assert cells[place][2] == f"{100 * held.denied[place] / held.requests:.2f} %"
    assert f"At 5 per minute, {cells[place][2]} of the requests would be denied ({held.denied[place]} of" in words(
        "<div>" + text[text.index(">") + 1 :] + "</div>"
    )


def test_the_report_says_how_a_curve_was_made(result):
    text = words(page(result, ["access.log"]))
    assert "Exact: computed for all limits, and equal to the engine's decisions." in text
    assert "The log was replayed at 3 limits, because it bans." in text


def test_the_head_counts_denials_by_reason_if_there_are_bans_or_blocks(result):
    assert "limited" not in words(page(result, ["access.log"])).partition("Rules")[0]
    result.outcome.reasons = Counter(limited=18, banned=2)
    assert ": 2 banned, 18 limited." in words(page(result, ["access.log"]))


def test_one_rule_is_shown_alone(result):
    result.gaps = [Gap("everything", "everything lacks x"), Gap("users <b>", "users lack y"), Gap("", "all lack z")]
    text = words(page(result, ["access.log"], rule="everything"))
    assert "users" not in text
    assert "everything lacks x" in text
    assert "all lack z" in text


def test_a_result_without_denials_and_curves_has_no_empty_charts(tmp_path):
    (tmp_path / "access.log").write_text('192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5\n')
    result = replayed(tmp_path / "access.log", {"name": "all", "limit": "2 per minute"})
    result.curves, result.without_curve = [], ["install numpy"]
    text = page(result, ["access.log"])
    assert "<svg" not in text
    assert "0 of 1 requests would have been denied." in words(text)
    assert "install numpy" in words(text)


def test_the_limits_that_deny_most_have_a_curve_in_the_order_of_the_file(result):
    made = curve()
    result.curves = [made._replace(rule=f"r{n}", denied=(n,) * len(made.limits)) for n in (1, 9, 2, 8, 3, 7, 4, 6, 5)]
    text = page(result, ["access.log"])
    assert re.findall(r"<h3><span[^>]*>(r\d)</span>", text) == ["r9", "r8", "r7", "r6", "r5"]
    assert "Not shown: 4 limits" in words(text)


def test_a_curve_of_one_limit_and_no_clients_is_drawn(result):
    result.curves = [curve(limits=(5,), windows=[1], peaks=())]
    text = page(result, ["access.log"])
    assert "At 5 per minute, 0.00 % of the requests would be denied (0 of 1)" in words(text)
    assert "clients by their busiest window" not in text


def rule(number):
    """What `RulesOutcome` needs of a rule."""

    class Named:
        name = f"rule-{number}-" + "n" * 60
        shadow = number % 3 == 0

    return Named()


def test_a_million_requests_of_many_clients_and_rules_fit_into_300_kilobytes():
    outcome = RulesOutcome([rule(number) for number in range(40)])
    outcome.requests, outcome.denied = 1_000_000, 600_000
    start = NOON * 1_000_000
    minutes = 90 * 1440
    for place, each in outcome.rules.items():
        each.asked, each.denied, each.clients = 1_000_000, 600_000 - place, 2000
        each.minutes.update({start // MINUTE + minute: minute % 97 + 1 for minute in range(0, minutes, 7)})
    difference = Difference()
    for number in range(2000):
        name = f"user={number}" + "\u202e" * 70 + "&" * 300
        outcome.limited.add(name, start)
        outcome.clients.add((number % 40, name), start)
        outcome.names[number % 40, name] = name
        difference.newly_denied.add(name, start)
        difference.newly_allowed.add(name, start)
    windows = [round(1.003**number) for number in range(4000)]
    limits = tuple(sorted({round(1.17**number) for number in range(60)} | {5}))
    made = curve("", limits, windows)
    unreadable = Unreadable()
    for _ in range(3):
        unreadable.add("<\u202e" * 4000)
    result = Result(
        formats=["combined"] * 100,
        outcome=outcome,
        first=start,
        last=start + minutes * MINUTE - 1,
        gaps=[Gap(f"rule-{number}", "<" * 1000) for number in range(300)],
        unreadable=unreadable,
        difference=difference,
        curves=[made._replace(rule=f"rule-{number}") for number in range(300)],
    )
    text = page(result, ["a" * 1000] * 100, most=100_000)
    assert len(text.encode()) <= 300_000, len(text.encode())
    assert words(text).count("Not shown: ") == 2  # curves and gaps
    others = sum(sum(each.minutes.values()) for each in list(outcome.rules.values())[5:])
    assert f"; 35 other rules {others:,}" in text  # of the rules that deny least


# ------------------------------------------------------------------------------------- the charts


@given(st.floats(1e-6, 1e6), st.floats(1.01, 1e6), st.integers(2, 12))
def test_ticks_are_few_and_within_the_axis(low, factor, most):
    scale = Scale(low, low * factor, 0, 100, log=True)
    ticks = scale.ticks(most)
    assert len(ticks) <= most + 1
    assert all(-0.5 <= scale.at(tick) <= 100.5 for tick in ticks)
    assert ticks == sorted(set(ticks))


@pytest.mark.parametrize(
    ("scale", "most", "ticks"),
    [
        (Scale(1, 120, 0, 1, log=True), 8, [1, 2, 5, 10, 20, 50, 100]),
        (Scale(1, 120, 0, 1, log=True), 5, [1, 3, 10, 30, 100]),
        (Scale(1, 1e6, 0, 1, log=True), 4, [1, 100, 1e4, 1e6]),
    ],
)
def test_ticks_are_round(scale, most, ticks):
    assert scale.ticks(most) == pytest.approx(ticks)


def test_zero_has_a_place_below_a_logarithmic_axis():
    scale = Scale(1, 100, 200, 100, log=True, gap=20)
    assert [scale.at(value) for value in (0, 1, 10, 100)] == pytest.approx([200, 180, 140, 100])


@given(
    st.lists(st.integers(1, 5000), min_size=1, max_size=20),
    st.sets(st.integers(1, 10_000), max_size=20).map(lambda limits: tuple(sorted(limits | {5}))),
    st.sampled_from([780, 340]),
)
def test_every_mark_of_a_curve_is_within_its_chart(windows, limits, width):
    chart = what_if(curve(limits=limits, windows=windows), width)
    places = re.findall(r'points="([^"]*)"', chart)
    assert len(places) == 2
    for each in places:
        points = [tuple(map(float, point.split(","))) for point in each.split()]
        assert len(points) == len(limits)
        assert all(0 <= x <= width and 0 <= y <= 400 for x, y in points)
        for values in zip(*points, strict=True):  # rightwards, and downwards: a higher limit denies no more
            assert list(values) == sorted(values)
    bars = chart.partition('<g class="bar">')[2].partition("</g>")[0]
    assert min(float(y) for y in re.findall(r' y="([^"]*)"', bars)) >= 330  # bars stay below the curves
    assert all(0 <= float(x) <= width for x in re.findall(r' x\d?="([^"]*)"', chart))


@given(st.integers(0, 10**7), st.integers(0, 10**7), st.data())
def test_bars_of_time_are_few_and_hold_every_minute(first, length, data):
    bars = bars_of(first, first + length)
    assert bars.number <= 88
    minutes = data.draw(st.dictionaries(st.integers(first, first + length), st.integers(1, 9), max_size=9))
    assert sum(bars.heights(minutes)) == sum(minutes.values())


@given(st.dictionaries(st.integers(1, 10**9), st.integers(1, 10**6), max_size=30))
def test_spans_of_numbers_are_few_and_lose_no_client(counts):
    spans = list(spans_of(sorted(counts.items())))
    assert len(spans) <= 120
    assert all(low <= high for low, high, _ in spans)
    assert [sum(count for number, count in counts.items() if low <= number <= high) for low, high, _ in spans] == [
        count for _, _, count in spans
    ]
    assert sum(count for _, _, count in spans) == sum(counts.values())


def test_an_element_escapes_texts_and_attributes():
    assert element("p", "<&>", element("b", "x"), title='"<') == '<p title="&quot;&lt;">&lt;&amp;&gt;<b>x</b></p>'
    assert element("input", hidden=True, value=None, aria_label="a") == '<input hidden aria-label="a">'
    assert element("line", x1=1.0, x2=2.25, class_="c") == '<line x1="1" x2="2.2" class="c"/>'


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [(87, 10_000, "0.87 %"), (1, 3, "33.33 %"), (1, 20_001, "<0.01 %"), (1, 20_000, "0.01 %"), (0, 0, "0.00 %")],
)
def test_a_small_share_does_not_look_like_none(part, whole, text):
    assert share(part, whole) == text
