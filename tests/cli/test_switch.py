"""`switch`, over a real server."""

import json

import pytest


@pytest.fixture
def switch(run, any_server):
    return lambda *words: run("switch", *words, "--storage", any_server.url)


def test_a_life(switch):
    assert switch() == (0, "shop: on\n", "")
    code, printed, error = switch("off", "--for", "2h", "--author", "ada", "-m", "incident 12")
    assert (code, error) == (0, "note: the switch is off: everything passes, uncounted (ada: incident 12)\n")
    assert printed.startswith("shop: off until ")
    assert printed.endswith(" UTC, by ada (incident 12)\n")
    assert switch() == (0, printed, error)
    assert switch("shadow", "--author", "")[1] == "shop: shadow without end\n"
    assert switch("on")[:2] == (0, "shop: on\n")
    assert switch()[1] == "shop: on\n"


def test_for_programs(switch):
    made = json.loads(switch("off", "--author", "ada", "--json")[1])
    assert (made["domains"], made["word"], made["until"], made["author"]) == (["shop"], "off", None, "ada")
    assert json.loads(switch("--json")[1]) == made


def test_an_environment_that_says_otherwise_is_pointed_out(switch, monkeypatch):
    monkeypatch.setenv("RATELIMIT_MW", "on")
    note = "note: RATELIMIT_MW=on is set here; a process with this variable ignores the switch\n"
    code, printed, said = switch("off", "--author", "")
    assert (code, said) == (0, note)
    assert printed == "shop: off without end\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(("of",), "the switch can be on, off or shadow, not 'of'", id="another word"),
        pytest.param(("on", "--for", "2h"), "on takes no duration", id="on for a while"),
        pytest.param(("off", "--for", "soon"), "'soon' is not a duration", id="a time that is none"),
    ],
)
def test_what_can_t_be_is_said(switch, words, said):
    code, printed, error = switch(*words)
    assert (code, printed) == (2, "")
    assert said in error


def test_in_memory_there_is_the_environment_only(run):
    code, _, error = run("switch", "off")
    assert code == 2
    assert "the switch is stored with the counters" in error
    assert "RATELIMIT_MW" in error


def test_the_store_is_away(run, fresh_server):
    fresh_server.kill()
    assert run("switch", "off", "--storage", fresh_server.url)[0] == 3
