"""The numbers that the README shows are those that were measured."""

from bench.overview import MARKS, README, RESULTS, alone, comparisons, tables


def test_the_readme_has_the_tables_of_the_results():
    (shown,) = MARKS.findall(README.read_text())
    assert shown == tables(), "python -m bench overview"


def test_every_case_with_peers_is_compared():
    cases = {comparison.case.partition(":")[0] for comparison in comparisons()}
    assert cases == {
        "ASGI, memory, one rule",
        "WSGI, memory, one rule",
        "asyncio, Redis, 100 in flight",
        "asyncio, Redis, one at a time",
        "ASGI, Redis, 100 in flight",
        *(f"WSGI, Redis, {threads} threads" for threads in (1, 8, 32)),
        *(f"threads, Redis, {threads} at once" for threads in (1, 8, 32)),
    }
    assert all(comparison.times > 0 for comparison in comparisons())
    assert len(list(alone())) >= 10


def test_the_pictures_are_there():
    assert all(
        path.stat().st_size > 10_000 for path in map(RESULTS.joinpath, ("overview.png", "leases.png", "elastic.png"))
    )
