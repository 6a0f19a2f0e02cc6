"""`${NAME}` in the values of a configuration."""

import pytest

from ratelimit_mw import ConfigurationError
from ratelimit_mw.config.tree import Place, Problems, expand
from tests.rules.corpus import load_text, problems_of
from tests.support.rules import load_rules

ENVIRON = {"NAME": "value", "EMPTY": "", "ZERO": "010", "NUMBER": "7", "NESTED": "${NAME}", "YAML": "x\nrules: [evil"}
WRONG = "a reference to the environment must be ${NAME} or ${NAME:-default}; they can't be nested"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("plain", "plain", id="nothing to expand"),
        pytest.param("$NAME and $", "$NAME and $", id="a dollar alone is a dollar"),
        pytest.param("${NAME}", "value", id="a variable"),
        pytest.param("a-${NAME}-${NUMBER}", "a-value-7", id="two within a text"),
        pytest.param("${EMPTY}", "", id="set and empty"),
        pytest.param("${EMPTY:-x}", "x", id="a default stands in for an empty one, as in a shell"),
        pytest.param("${UNSET:-x y:z}", "x y:z", id="a default"),
        pytest.param("${UNSET:-}", "", id="an empty default"),
        pytest.param("${NAME:-x}", "value", id="a default that is not needed"),
        pytest.param("$${NAME}", "${NAME}", id="two dollars are one"),
        pytest.param("${NESTED}", "${NAME}", id="what a variable holds is not read again"),
    ],
)
def test_expands(text, expected):
    assert expand(text, ENVIRON, Place(), Problems()) == (expected, True)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        pytest.param("${UNSET}", "the environment variable UNSET is not set", id="unset"),
        pytest.param("${NAME", WRONG, id="not closed"),
        pytest.param("${}", WRONG, id="no name"),
        pytest.param("${1A}", WRONG, id="a bad name"),
        pytest.param("${NAME-x}", WRONG, id="a dash without its colon"),
        pytest.param("${UNSET:-${NAME}}", WRONG, id="one within another"),
    ],
)
def test_what_cannot_be_expanded_is_said(text, wrong):
    problems = Problems()
    assert not expand(text, ENVIRON, Place(), problems)[1]
    assert [problem.message for problem in problems.in_order()] == [wrong]


def test_a_value_is_typed_as_if_it_had_stood_there():
    assert load_text("domain: d\nresponse:\n  status: 4${NUMBER}0\nrules: []\n", ENVIRON).response.status == 470
    (said,) = problems_of("domain: d\nresponse: {status: '4${NUMBER}0'}\nrules: []\n", ENVIRON)
    assert said.startswith("r.yaml:2:20: response.status: must be a whole number, not '470'")


def test_text_stays_text_whatever_it_looks_like():
    rule_set = load_text("domain: ${ZERO}\nclient: {secret: '${NUMBER}'}\nrules: []\n", ENVIRON)
    assert rule_set.domain == "010"
    assert rule_set.client.secret == "7"
    assert load_text("domain: d\nclient:\n  secret: ${NUMBER}\nrules: []\n", ENVIRON).client.secret == "7"
    assert (
        load_text("domain: d\nclient:\n  secret: ${EMPTY:-}\n  user: ${EMPTY}\nrules: []\n", ENVIRON).client.user
        is None
    )


def test_a_variable_cannot_write_yaml():
    said = problems_of("domain: ${YAML}\nrules: []\n", ENVIRON)
    assert said == ["r.yaml:1:9: domain: 'x\\nrules: [evil' contains a character that can't be printed"]


COSTS = "write a whole number, an attribute, python:package.module:function or response:X-Cost"


def test_a_variable_that_is_not_set_is_said_once_at_its_line_beside_all_else():
    text = "domain: ${D}\nstorage:\n  url: ${U}\nrules:\n  - {name: a, limit: '${L}', by: [ip, '${B}'], cost: x}\n"
    assert problems_of(text) == [
        "r.yaml:1:9: domain: the environment variable D is not set",
        "r.yaml:3:8: storage.url: the environment variable U is not set",
        "r.yaml:5:22: rules[0].limit: the environment variable L is not set",
        "r.yaml:5:39: rules[0].by[1]: the environment variable B is not set",
        f"r.yaml:5:54: rules[0].cost: there is no attribute 'x' ({COSTS})",
    ]


def test_the_same_holds_in_a_mapping():
    config = {"domain": "${NAME}", "response": {"status": "4${NUMBER}0"}, "rules": []}
    rule_set = load_rules(config, environ=ENVIRON)
    assert (rule_set.domain, rule_set.response.status) == ("value", 470)
    with pytest.raises(ConfigurationError, match=r"^domain: the environment variable NAME is not set$"):
        load_rules({**config, "response": {}}, environ={})


def test_an_entry_whose_variable_is_not_set_is_not_empty():
    said = problems_of("domain: d\nexempt: [{'header:X-A': '${UNSET}'}]\nrules: []\n", ENVIRON)
    assert said == ["r.yaml:2:25: exempt[0].header:X-A: the environment variable UNSET is not set"]


def test_a_secret_in_a_url_is_never_shown():
    said = problems_of("domain: d\nstorage: {url: 'redis//me:${PASSWORD}@host'}\nrules: []\n", {"PASSWORD": "hunter2"})
    assert said == [
        "r.yaml:2:16: storage.url: is not a storage URL (for example memory:// or redis://localhost:6379/0)"
    ]
