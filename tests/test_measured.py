"""The benchmark: its traffic, its bars and its report, and that the pages show what was measured."""

import gc
import importlib
import os
from functools import partial
from itertools import islice

import pytest

from bench.measure import Collections, Effort, Figure, Spread, alone, beside, in_turn
from bench.pages import PAGES, PICTURE, blocks, headlines, published, rows, shared_table
from bench.report import Results, bar, number, part, read, summary
from bench.shared import CHECK_TITLE, MEMORY, PACED_TITLE, REDIS, SIZE_TITLE, at_once, p999, rate_title
from bench.table import ROWS, UNMEASURED
from bench.traffic import CLIENTS, KNOWN, NAMES, STREAMS, Request, known, new, zipf

CONDITIONS = {
    "commit": "0123456789",
    "date": "2026-11-22",
    "machine": {"cpu": "a processor", "cores": 2, "system": "Linux"},
    "load": 0.1,
    "python": "3.11.7",
    "versions": {"limits": "5.8.0"},
}
FIGURES = [
    beside("Zipf", [5.0, 6.0, 7.0], "slowapi", [50.0, 60.0, 35.0], "us", at_most=1 / 6),
    beside("100 in flight", [70.0], "limits", [10.0], "/s", at_least=8),
    alone("pause", [1.0, 2.0, 9.0], "ms", at_most=5, worst=True, note="9 reloads"),
    alone("over-admission", [0.0], "%", at_most=0.0, detail=True),
    alone("admitted", [80.0], "/s"),
    alone("calls", [0.5], "", detail=True),
]
RESULTS = Results(CONDITIONS, {"asgi-memory": FIGURES[:1], "redis-asyncio": FIGURES[1:2], "reload": FIGURES[2:]})


def test_the_pages_have_the_tables_of_the_last_full_run():
    results = read()
    assert {page: published(page) for page in PAGES} == blocks(results), "python -m bench --tables"
    assert list(results.rows) == [row.name for row in ROWS if row.name in results.rows or row.name not in UNMEASURED]
    assert all(results.rows.values())
    assert not results.conditions["commit"].endswith("changed")


def test_the_pages_have_a_place_for_each_table():
    assert {page.name: sorted(published(page)) for page in PAGES} == {
        "benchmarks.md": ["first", "shared"],
        "scaling.md": ["capacity"],
        "consistency.md": ["leases"],
        "throttling.md": ["elastic"],
        "moving-from-envoy-ratelimit.md": ["sizing"],
        "README.md": ["headlines"],
        "figures.md": ["rows"],
    }


def test_the_headlines_have_the_worst_case_beside_the_best():
    def figures(prefix, peer, *streams):
        return [beside(f"{prefix}{stream}", [5.0], peer, [50.0], "us") for stream in streams]

    one, zipf, new = (NAMES[stream] for stream in ("one", "Zipf", "new"))
    found = {
        "asgi-memory": figures("", "slowapi", one, zipf),
        "asgi-memory-new": figures("", "slowapi", new),
        "wsgi-memory": figures("", "flask-limiter", one, zipf, new),
        "redis-asyncio": figures("acheck: ", "limits, fixed window", one, zipf, new),
    }
    lines = headlines(Results(CONDITIONS, found)).splitlines()
    assert lines[0].count("best case") == lines[0].count("worst case") == 1
    assert [line.count("**5 µs** (") for line in lines[2:]] == [3, 3, 3]


def test_the_table_of_shared_counters_has_a_line_for_each_store():
    found = [
        beside(CHECK_TITLE, [20.0], MEMORY, [10.0], "us"),
        beside(rate_title(4), [30_000.0], REDIS, [6_000.0], "/s"),
        alone(PACED_TITLE, [0.4], "ms"),
        alone(SIZE_TITLE, [112.0], "MB"),
    ]
    assert shared_table(Results(CONDITIONS, {"shared": found})).splitlines()[2:] == [
        "| `lmdb://` | 20 µs | 30 000 a second | 0.4 ms |",
        "| Redis on a unix socket |  | 6 000 a second |  |",
        "| `memory://`, not shared | 10 µs |  |  |",
        "| `limits` in memory, not shared |  |  |  |",
        "",
        "A file with a million counters takes 112 MB.",
    ]
    assert shared_table(RESULTS) == "The last full run did not measure this.\n"


def test_the_pictures_are_there():
    pictures = (PICTURE, *(PICTURE.with_name(f"{name}.png") for name in ("leases", "elastic", "shed")))
    assert all(path.stat().st_size > 10_000 for path in pictures)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_row_is_measured_by_functions_that_exist(row):
    for path in row.measured_by:
        module, _, function = path.partition(".")
        assert callable(getattr(importlib.import_module(f"bench.{module}"), function))


def test_figures_outlive_json():
    assert [Figure.from_dict(figure.as_dict()) for figure in FIGURES] == FIGURES


def test_a_bar_holds_for_the_median_of_the_ratios():
    assert FIGURES[0].ratio == Spread(0.1, 0.1, 0.2)
    assert FIGURES[0].met


def test_a_rate_below_its_bar_misses_it():
    assert FIGURES[1].met is False


def test_a_bar_for_the_worst_round_ignores_the_median():
    assert FIGURES[2].met is False


def test_a_figure_without_a_bar_is_neither_reached_nor_missed():
    assert FIGURES[4].met is None


def test_the_table_has_the_rows_their_bars_and_the_conditions():
    assert rows(RESULTS).splitlines() == [
        "| | ratelimit_mw | beside it | ours ÷ theirs | to reach | |",
        "|---|---|---|---|---|---|",
        "| **ASGI, memory, one rule, in a Starlette app: CPU added per request** | | | | | |",
        "| Zipf | 6 µs | slowapi: 50 µs | 1/10 (1/10 to 1/5) | ≤ 1/6 | reached |",
        "| **asyncio, Redis, 100 in flight: one process** | | | | | |",
        "| 100 in flight | 70 a second | limits: 10 a second | 7 (7 to 7) | ≥ 8 | missed |",
        "| **Reload of 1 000 rules, in a process with 100 000 objects of its own** | | | | | |",
        "| pause | 2 ms, at worst 9 | 9 reloads |  | ≤ 5 ms | missed |",
        "| admitted | 80 a second |  |  |  |  |",
        "",
        (
            "One run of commit 0123456789, 2026-11-22: 2 cores of a processor, load 0.1 at its start, Python 3.11.7, "
            "limits 5.8.0. 2 of 4 bars reached."
        ),
    ]


def test_numbers_have_the_digits_that_mean_something():
    assert [number(value) for value in (0.00012, 0.5, 7.25, 42.4, 1234.0, 45_678.0)] == [
        *("0.00012", "0.5", "7.2", "42", "1 234", "45 700")
    ]
    assert [part(value) for value in (1 / 6, 0.75, 1.7, 8.0)] == ["1/6", "0.75", "1.70", "8"]
    assert [bar(figure) for figure in FIGURES] == ["≤ 1/6", "≥ 8", "≤ 5 ms", "≤ 0 %", "", ""]


def test_the_summary_counts_the_bars():
    assert summary(RESULTS) == "2 of 4 bars reached"


def test_a_quick_run_measures_less():
    assert Effort(quick=True).rounds(60) < Effort().rounds(60) == 60
    assert Effort(quick=True).part(2_000) < Effort().part(2_000) == 2_000


# ------------------------------------------------------------------------------------------ contestants


def test_contestants_run_in_processes_of_their_own_and_the_first_round_is_dropped():
    taken = in_turn({"one": (partial, os.getpid), "other": (partial, os.getpid)}, rounds=2)
    (one,), (other,) = ({*pids} for pids in taken.values())
    assert len({one, other, os.getpid()}) == 3
    assert [len(pids) for pids in taken.values()] == [2, 2]


def met(barrier):
    barrier.wait()
    return os.getpid


def test_the_processes_of_a_contestant_start_together():
    taken = at_once({"one": (met,), "other": (met,)}, processes=2, rounds=1)
    assert len({pid for ((*pids,),) in taken.values() for pid in pids}) == 4


def test_one_in_a_thousand_values_exceeds_p999():
    assert [p999(range(number)) for number in (1, 1_000, 4_000)] == [0, 998, 3_995]


def test_a_contestant_that_fails_ends_the_run_with_its_traceback():
    with pytest.raises(RuntimeError, match="ValueError: invalid literal"):
        in_turn({"broken": (partial, int, "x")}, rounds=1)


def test_the_longest_collection_is_noted_only_within_the_block():
    with Collections() as collections:
        gc.collect()
    longest = collections.longest
    gc.collect()
    assert 0 < collections.longest == longest


# ---------------------------------------------------------------------------------------------- traffic


def test_new_clients_and_paths_never_come_again():
    requests = list(islice(new(), 5_000))
    assert len({request.address for request in requests}) == len({request.path for request in requests}) == 5_000
    seen = list(islice(zipf(), 20_000)) + list(islice(known(), KNOWN))
    assert {request.client for request in seen}.isdisjoint(request.client for request in requests)
    assert {request.path for request in seen}.isdisjoint(request.path for request in requests)


def test_zipf_has_many_clients_of_which_few_send_most():
    clients = [request.client for request in islice(zipf(), 50_000)]
    assert 10_000 < len(set(clients)) <= CLIENTS
    assert 0.06 < clients.count(0) / len(clients) < 0.11  # one of the 12.1 that the shares add up to


@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_is_the_same_each_time(stream):
    assert list(islice(STREAMS[stream](), 2_000)) == list(islice(STREAMS[stream](), 2_000))


def test_a_request_has_seven_headers_of_a_browser_a_token_and_a_cookie():
    scope = Request(5, "/items/5").scope()
    assert [name for name, _ in scope["headers"]] == [
        *(b"host", b"connection", b"user-agent", b"accept", b"accept-language", b"accept-encoding", b"referer"),
        *(b"authorization", b"cookie"),
    ]
    assert (scope["method"], scope["path"], scope["raw_path"]) == ("GET", "/items/5", b"/items/5")


def test_both_kinds_of_server_say_the_same_of_a_request():
    request = Request(5, "/items/5")
    scope, environ, attributes = request.scope(), request.environ(), request.attributes()
    headers = {f"HTTP_{name.decode().upper().replace('-', '_')}": value.decode() for name, value in scope["headers"]}
    assert headers.items() <= environ.items()
    assert scope["client"][0] == environ["REMOTE_ADDR"] == attributes["remote_address"]
    assert scope["path"] == environ["PATH_INFO"] == attributes["path"]


def test_no_object_of_a_request_is_that_of_another():
    first, second = (Request(5, "/items/5").scope() for _ in range(2))
    assert first == second
    assert first["path"] is not second["path"]
    for (name, value), (other_name, other_value) in zip(first["headers"], second["headers"], strict=True):
        assert name is not other_name
        assert value is not other_value
