"""A list of very many values is few objects: the garbage collector, which stops every thread, has nothing to visit."""

import gc
from ipaddress import ip_address, ip_network
from types import BuiltinFunctionType, FunctionType, ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.config import yaml
from ratelimit_mw.config.file import RULES
from ratelimit_mw.config.load import Document, examine, load_documents
from ratelimit_mw.config.tree import Items, Map, Problems, Scalar, convert
from ratelimit_mw.config.words.selection import EXEMPT as EXEMPT_WORD
from ratelimit_mw.identity.address import Networks
from tests.identity.requests import asgi
from tests.support.rules import load_rules

MANY = 10_000
ADDRESSES = [f"10.{n // 65536}.{n // 256 % 256}.{n % 256}" for n in range(MANY)]
LINES = "".join(f"      - {address}\n" for address in ADDRESSES)
EXEMPT = f"domain: d\nexempt:\n  - ip:\n{LINES}rules: [{{name: a, limit: 5/m}}]\n"
MATCH = f"domain: d\nrules:\n  - name: a\n    limit: 5/m\n    match:\n     ip:\n{LINES}"


def visited(kept):
    """How many objects the collector visits because this one is kept. Code is not counted: it is there anyway."""
    found, left = {}, [kept]
    while left:
        each = left.pop()
        if isinstance(each, FunctionType):
            left.extend(each.__closure__ or ())
        elif gc.is_tracked(each) and id(each) not in found and not isinstance(each, CODE):
            found[id(each)] = each
            left.extend(gc.get_referents(each))
    return len(found)


CODE = (type, ModuleType, BuiltinFunctionType)


@pytest.mark.parametrize("text", [pytest.param(EXEMPT, id="exempt"), pytest.param(MATCH, id="match")])
def test_ten_thousand_addresses_are_few_objects(text):
    rules = load_documents([Document("f", text.encode())])
    assert visited(rules) < MANY / 10
    assert rules.plan(asgi(peer=ADDRESSES[-1])) != rules.plan(asgi(peer="192.0.2.1"))


def test_the_tree_of_ten_thousand_addresses_is_few_objects():
    tree = yaml.parse(EXEMPT, "f", {}, Problems())
    gc.collect(0)  # its first pass over the youngest of them
    assert visited(tree) < 100
    assert isinstance(tree, Map)
    listed = tree["exempt"][0]["ip"]
    assert [item.text for item in listed] == ADDRESSES
    assert listed[MANY - 1].place._replace(order=0) == (0, "f", MANY + 3, 9, f"exempt[0].ip[{MANY - 1}]")


def test_a_mapping_with_a_long_list_is_not_copied():
    """A copy is one call of pickle, which stops every thread."""
    tree = yaml.parse(EXEMPT + MATCH.partition("\n")[2].replace("rules:", "more:"), "f", {}, Problems())
    assert isinstance(tree, Map)
    assert tree["exempt"][0] is tree["exempt"][0]
    assert tree["more"][0] is tree["more"][0]


def test_a_rule_with_many_tiers_is_not_copied():
    tiers = "".join(f"      tier{n}: 5/m\n" for n in range(MANY))
    tree = yaml.parse(f"domain: d\nrules:\n  - name: a\n    limit:\n{tiers}", "f", {}, Problems())
    assert isinstance(tree, Map)
    assert tree["rules"][0] is tree["rules"][0]


@pytest.mark.parametrize("text", [pytest.param(EXEMPT, id="exempt"), pytest.param(MATCH, id="match")])
def test_the_values_of_a_mapping_with_a_long_list_are_not_copied(tmp_path, text):
    file = tmp_path / "rules.yaml"
    file.write_text(text)
    [(values, _)] = examine(str(file)).files
    listed = values[EXEMPT_WORD] if text is EXEMPT else values[RULES]
    assert listed[0] is listed[0]


TEXT = """\
- plain
- 'quoted'
- 12
- '12'
- true
- ~
- ""
- "two\\nlines"
- ${UNSET}
- after an unusable one
- &anchor {a: [b, c]}
- *anchor
- [nested, [more]]
- &text anchored
- *text
- 1.50
- 010
- "  blanks  "
"""


def test_each_item_keeps_its_text_its_type_and_its_place():
    tree = yaml.parse(TEXT, "f", {}, Problems())
    assert isinstance(tree, Items)
    scalars = [(item.text, item.value, item.place.line, item.place.path) for item in tree if isinstance(item, Scalar)]
    assert scalars == [
        ("plain", "plain", 1, "[0]"),
        ("quoted", "quoted", 2, "[1]"),
        ("12", 12, 3, "[2]"),
        ("12", "12", 4, "[3]"),
        ("true", True, 5, "[4]"),
        ("~", None, 6, "[5]"),
        ("", "", 7, "[6]"),
        ("two\nlines", "two\nlines", 8, "[7]"),
        ("after an unusable one", "after an unusable one", 10, "[9]"),
        ("anchored", "anchored", 14, "[13]"),
        ("anchored", "anchored", 14, "[13]"),
        ("1.50", 1.5, 16, "[15]"),
        ("010", "010", 17, "[16]"),
        ("  blanks  ", "  blanks  ", 18, "[17]"),
    ]


VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)


@given(st.lists(VALUES | st.lists(VALUES, max_size=3), max_size=6))
def test_a_list_from_code_keeps_what_it_was_given(values):
    tree = convert({"list": values}, {"": ""}, Problems())
    assert isinstance(tree, Map)
    listed = tree["list"]
    assert isinstance(listed, Items)
    kept = [item.value for item in listed if isinstance(item, Scalar)]
    expected = [each for each in values if not isinstance(each, list)]
    assert [str(each) for each in kept] == [str(each) for each in expected if "${" not in str(each)] or "${" in str(
        values
    )


ADDRESS = st.integers(0, 15).map(lambda n: f"10.0.0.{n}") | st.integers(0, 15).map(lambda n: f"2001:db8::{n:x}")


@given(st.lists(st.tuples(ADDRESS, st.integers(0, 4)), max_size=8), ADDRESS)
def test_an_address_is_found_in_the_networks_that_contain_it(listed, address):
    networks = [ip_network((each, ip_address(each).max_prefixlen - bits), strict=False) for each, bits in listed]
    table = Networks()
    table.add(map(str, networks), "value")
    assert table.find(address) == ["value"] * any(ip_address(address) in network for network in networks)


@pytest.mark.parametrize(
    ("written", "peer", "found"),
    [
        pytest.param("192.0.2.1", "192.0.2.1", True, id="an address"),
        pytest.param("192.0.2.0/24", "192.0.2.9", True, id="a network"),
        pytest.param("::ffff:192.0.2.1", "192.0.2.1", True, id="a mapped address"),
        pytest.param("2001:DB8::1", "2001:db8::1", True, id="another spelling"),
        pytest.param("192.0.2.1", "192.0.2.2", False, id="another address"),
    ],
)
def test_an_exempt_address_is_found_however_it_is_written(written, peer, found):
    rules = load_rules(
        {"domain": "d", "exempt": [{"ip": [written]}], "rules": [{"name": "a", "limit": "5 per minute"}]}
    )
    assert (not rules.plan(asgi(peer=peer))) is found
