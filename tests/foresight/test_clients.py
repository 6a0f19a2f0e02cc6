"""What a log tells of the clients that a limit would hit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.foresight.clients import NO_AGENT, Facts, Having, agent_of, fair, judge

CHROME = "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36"
SAFARI = (
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_5) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 Safari/605.1.15"
)
GOOGLE = "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)"


@pytest.mark.parametrize(
    ("text", "family"),
    [
        (CHROME, "Chrome"),
        (f"{CHROME} Edg/126.0.2592.68", "Edge"),
        (SAFARI, "Safari"),
        ("Mozilla/5.0 (Windows NT 10.0; rv:127.0) Gecko/20100101 Firefox/127.0", "Firefox"),
        (GOOGLE, "Googlebot/"),
        (CHROME.replace("Chrome/", "HeadlessChrome/"), "HeadlessChrome/"),
        ("curl/8.5.0", "curl/"),
        ("python-requests/2.32.3", "python-requests/"),
        ("Go-http-client/2.0", "Go-http-client/"),
        ("my-shop-app/3.1", "my-shop-app/"),
        ("Mozilla/5.0", "an unknown user agent"),
        ("", NO_AGENT),
    ],
)
def test_a_user_agent_has_a_family(text, family):
    assert agent_of(text) == family


@given(st.text(max_size=600))
def test_any_user_agent_has_a_short_family(text):
    assert 0 < len(agent_of(text)) <= 42


def facts(**words):
    found = {
        "requests": 100,
        "paths": [("/", 40), ("/a", 30)],
        "statuses": [(200, 100)],
        "agents": [("Chrome", 100)],
        "parts": 0.0,
        "period": 0,
    }
    return Facts(**(found | words))


@pytest.mark.parametrize(
    ("told", "kind", "why"),
    [
        pytest.param(facts(parts=0.6), "person", "loads images", id="a browser with what belongs to its pages"),
        pytest.param(facts(), "program", "loads no images", id="a browser without it"),
        pytest.param(facts(agents=[("curl/", 100)], parts=0.6), "program", "says curl", id="a program by its name"),
        pytest.param(facts(agents=[("Chrome", 70), ("curl/", 30)], parts=0.6), "person", "", id="a program beside it"),
        pytest.param(facts(agents=[(NO_AGENT, 100)]), "program", "no user agent", id="no user agent"),
        pytest.param(facts(paths=[("/login", 95)], statuses=[(401, 95)]), "program", "gets 401", id="one refused path"),
        pytest.param(facts(period=10_000_000), "program", "every 10 seconds", id="a period"),
        pytest.param(facts(period=60_000_000), "program", "every minute", id="a period of a minute"),
        pytest.param(facts(paths=[("/x", 99)]), "unclear", "one path only", id="one path"),
        pytest.param(facts(paths=[("/x/*", 99)], parts=0.6), "person", "", id="one folder"),
        pytest.param(
            facts(agents=[("Chrome", 50), ("Safari", 30), ("Firefox", 20)]), "unclear", "3 browsers", id="an office"
        ),
        pytest.param(facts(requests=3, parts=0.6), "unclear", "3 requests tell too little", id="few requests"),
        pytest.param(facts(requests=1, agents=[("curl/", 1)]), "program", "says curl", id="one request of a program"),
    ],
)
def test_a_client_is_judged_with_a_reason(told, kind, why):
    found, reason = judge(told, Having(parts=True, agents=True))
    assert (found, why in reason) == (kind, True), reason


@pytest.mark.parametrize("told", [facts(), facts(agents=[(NO_AGENT, 100)])])
def test_what_the_whole_log_lacks_speaks_for_no_kind(told):
    assert judge(told, Having(parts=False, agents=False))[0] == "unclear"


def test_each_step_has_as_many_clients_as_there_is_room_for():
    steps = {place: place // 40 for place in range(120)} | {120: 9}
    assert len(fair(list(steps), steps.__getitem__, 1000)) == 121
    found = fair(list(steps), steps.__getitem__, 31)
    assert found == [*range(10), *range(40, 50), *range(80, 90), 120]
