import pytest

from tests.support.patience import at_most, eventually


def test_what_comes_about_is_returned():
    answers = iter([None, 0, "there"])
    assert eventually(lambda: next(answers)) == "there"


def test_what_never_comes_about_fails():
    with pytest.raises(AssertionError, match=r"within 0\.05 s"):
        eventually(lambda: False, within=0.05)


def test_what_takes_too_long_fails():
    with at_most(60):
        pass
    with pytest.raises(AssertionError, match=r"\d s"), at_most(0):
        pass
