"""A value that no request can have limits no client, so it is an error: in `match`, in `exempt`, and their like."""

import jsonschema
import pytest

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw.config.file import json_schema
from tests.rules.corpus import problems_of

HEAD = "domain: shop\nattributes: {lang: header:X-Lang}\nclient: {user: header:X-User, tier: header:X-Tier}\n"
RULE = HEAD + "rules:\n  - name: a\n    limit: 3 per minute\n    match:\n      KEY: VALUE\n"
EXEMPTION = HEAD + "rules: [{name: a, limit: 3 per minute}]\nexempt:\n  -\n\n    KEY: VALUE\n"
LINE = 8

KEYS = ("path", "methods", "ip", "host", "tier", "user", "lang", "header:X", "cookie:x", "query:x")
EMPTY = (
    "",
    "null",
    "~",
    "Null",
    '""',
    "''",
    '"  "',
    "${NOT_SET:-}",
    "[]",
    "[null]",
    "[~]",
    '[""]',
    "[,]",
    "{}",
    "[[]]",
)


def written(form, key, value):
    return form.replace("KEY", f'"{key}"' if ":" in key else key).replace("VALUE", value)


@pytest.mark.parametrize(("key", "value"), [*(("host", value) for value in EMPTY), *((key, '""') for key in KEYS[:2])])
@pytest.mark.parametrize("form", [RULE, EXEMPTION], ids=["match", "exempt"])
def test_an_empty_value_is_an_error_at_its_line(form, key, value):
    problems = problems_of(written(form, key, value))
    assert problems
    for problem in problems:
        assert problem.startswith(f"r.yaml:{LINE}:")


@pytest.mark.parametrize("empty", ["null", '""', "~"])
@pytest.mark.parametrize("key", ["tier", "header:X"])
def test_an_empty_value_in_a_list_is_an_error(key, empty):
    (problem,) = problems_of(written(RULE, key, f"[premium, {empty}]"))
    assert f"rules[0].match.{key}[1]: " in problem


@pytest.mark.parametrize("value", [None, " ", []])
@pytest.mark.parametrize("key", KEYS)
def test_an_empty_value_in_a_mapping_is_an_error(key, value):
    client = {"user": "header:X-User", "tier": "header:X-Tier"}
    config = {"domain": "shop", "client": client, "attributes": {"lang": "header:X-Lang"}}
    with pytest.raises(ConfigurationError, match=rf"rules\[0\]\.match\.{key}"):
        RateLimiter({**config, "rules": [{"name": "a", "limit": "3 per minute", "match": {key: value}}]})
    with pytest.raises(ConfigurationError, match=rf"exempt\[0\]\.{key}"):
        RateLimiter({**config, "rules": [{"name": "a", "limit": "3 per minute"}], "exempt": [{key: value}]})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param(
            written(RULE, "header:X", ""),
            "8:18: rules[0].match.header:X: an empty value matches no request "
            "(write a value, or remove the key to match every value)",
            id="nothing",
        ),
        pytest.param(
            written(RULE, "cookie:x", "null"),
            "8:19: rules[0].match.cookie:x: must be text, not 'null' (put it in quotes if it is text)",
            id="null",
        ),
        pytest.param(
            written(RULE, "host", "."),
            "8:13: rules[0].match.host: '.' is not a host name (for example api.example.com)",
            id="a host of dots",
        ),
        pytest.param(
            HEAD + "rules:\n  - name: a\n    limit: {default: 3/s, '': 5/s}\n",
            "6:31: rules[0].limit.: the name of a tier must not be blank",
            id="a tier",
        ),
        pytest.param(
            HEAD + "overrides: [{client: {user: ' '}, block: true}]\nrules: [{name: a, limit: 3/s}]\n",
            "4:22: overrides[0].client: user is empty",
            id="an override's client",
        ),
        pytest.param(
            HEAD + "entries: [[null]]\ndescriptors: [{key: lang, rate_limit: {unit: day, requests_per_unit: 5}}]\n",
            "4:12: entries[0][0]: must be text, not 'null' (put it in quotes if it is text)",
            id="an entry's key",
        ),
    ],
)
def test_the_message_says_what_is_wrong_and_where(text, said):
    assert problems_of(text) == [f"r.yaml:{said}"]


def test_a_descriptor_without_a_value_stands_for_every_value_as_in_envoy():
    text = HEAD + "descriptors: [{key: lang, value: '', rate_limit: {unit: day, requests_per_unit: 5}}]\n"
    assert problems_of(text) == []


@pytest.mark.parametrize("empty", ["", " ", None, []])
@pytest.mark.parametrize("key", ["host", "tier", "user"])
def test_an_editor_is_told_so_too(key, empty):
    file = {"domain": "shop", "rules": [{"name": "a", "limit": "3/s", "match": {key: empty}}]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(file, json_schema())
