"""What `Accept` says a client would rather have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.bodies import preferred

JSON, HTML = ("application/json",), ("text/html", "application/xhtml+xml")


@pytest.mark.parametrize(
    ("accept", "place"),
    [
        pytest.param("", 0, id="nothing"),
        pytest.param("text/html", 1, id="a type"),
        pytest.param("TEXT/HTML", 1, id="in capitals"),
        pytest.param("text/*", 1, id="a part of one"),
        pytest.param("application/*;q=0.2, text/*;q=0.3", 1, id="the better part"),
        pytest.param("application/json;q=0.1, */*;q=0.5", 1, id="rather anything else"),
        pytest.param("application/xhtml+xml", 1, id="another name of an offer"),
        pytest.param("text/html;q=0.5, application/json;q=0.5", 0, id="alike: the first"),
        pytest.param("text/*;q=0.9, text/html;q=0.1, application/json;q=0.2", 0, id="the most specific range counts"),
        pytest.param("text/html;level=1;q=0.7, application/json;q=0.6", 1, id="with a parameter"),
        pytest.param("application/json;q=nan, text/html;q=0.001", 1, id="a q that is none"),
        pytest.param("application/json;q=2, text/html;q=0.001", 1, id="a q above 1"),
        pytest.param("application/json; Q = 0.1 , text/html ; q=0.2", 1, id="spaces and capitals"),
        pytest.param("application/json;q=0, text/html;q=0", 0, id="neither: the first"),
        pytest.param(";;;,,,q=1,=", 0, id="nonsense"),
    ],
)
def test_what_is_preferred(accept, place):
    assert preferred(accept, [JSON, HTML]) == place


@given(st.text(st.sampled_from("text/html*application/json;q=01.,  \t\x00é") | st.characters()))
def test_any_text_chooses_one(accept):
    assert preferred(accept, [JSON, HTML]) in (0, 1)
