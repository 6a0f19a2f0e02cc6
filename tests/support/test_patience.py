import pytest

from tests.support.patience import at_most, eventually, three_tries


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


@pytest.mark.parametrize(("failures", "passes"), [(0, True), (2, True), (3, False)])
def test_what_fails_three_times_fails(failures, passes):
    tries = []

    @three_tries
    def test(number):
        tries.append(number)
        assert len(tries) > failures
        return "done"

    if passes:
        assert test(7) == "done"
        assert tries == [7] * (failures + 1)
    else:
        with pytest.raises(AssertionError):
            test(7)
        assert len(tries) == 3


def test_an_exception_is_not_tried_again():
    tries = []

    @three_tries
    def test():
        tries.append(1)
        raise ValueError

    with pytest.raises(ValueError):
        test()
    assert len(tries) == 1
