"""Every format of logs is read alike: the eight requests of the logs in this folder."""

import bz2
import gzip
import lzma
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from importlib import import_module

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratelimit_mw.foresight import logs
from ratelimit_mw.foresight.logs import Log
from ratelimit_mw.foresight.logs.entry import LogEntry, Unreadable
from ratelimit_mw.foresight.logs.formats import NAMED, UVICORN, UnusableLog, find_format
from ratelimit_mw.foresight.logs.patterns import PatternFormat
from ratelimit_mw.foresight.logs.structured import PRODUCTS, NamedFormat
from tests.foresight.logs_of import FORMATS, LOGS, START, entries

zstd = import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")

QUOTE = '/quote?x="y"'
EIGHT = [
    (0, "192.0.2.1", "GET", "/", 200),
    (1, "192.0.2.1", "GET", "/items?page=2", 200),
    (1, "192.0.2.2", "POST", "/login", 401),
    (2, "2001:db8::1", "GET", "/caf%C3%A9", 200),
    (3, "192.0.2.2", "POST", "/login", 401),
    (3, "192.0.2.1", "GET", "/search?q=%22a+b%22", 200),
    (4, "192.0.2.1", "GET", QUOTE, 404),
    (5, "192.0.2.2", "POST", "/login", 200),
]
NAMES = {
    "nginx.json": "json (nginx)",
    "caddy.json": "json (Caddy)",
    "traefik.json": "json (Traefik)",
    "envoy.json": "json (Envoy)",
    "csv.csv": "csv",
    "google.json": "json (Google Cloud)",
    "cloudflare.json": "json (Cloudflare)",
    **dict.fromkeys(("cloudfront.log", "iis.log"), "w3c"),
    **dict.fromkeys(("kubernetes.log", "docker.log", "compose.log", "combined_more.log"), "combined"),
    "nginx_timed.log": "the given format",
    "apache_timed.log": "the given format",
}


def address(text):
    """An address without the port that Envoy and uvicorn write behind it."""
    return re.sub(r"^\[(.*)\]:\d+$|^([\d.]+):\d+$", lambda found: found[1] or found[2], text)


@pytest.mark.parametrize("name", FORMATS)
def test_the_eight_requests_are_read_from_each_format_in_order_of_time(name):
    found, log = entries(LOGS / name, ["status"], form=FORMATS[name])
    assert log.format.name == NAMES.get(name, name.partition(".")[0])
    read = [((each.at - START) / 1e6, address(each.ip), each.method, each.target, each.status) for each in found]
    assert [(*line[:3], line[3].replace("%22y%22", '"y"'), line[4]) for line in read] == EIGHT
    assert (log.unreadable.count, log.unreadable.without_request) == (0, 0)


@pytest.mark.parametrize(
    ("name", "places", "user"),
    [
        ("combined.log", {}, "user"),
        ("main.log", {}, "user"),
        ("caddy.json", {}, "user"),
        ("traefik.json", {}, "user"),
        ("nginx.json", {}, "user"),
        ("csv.csv", {"user": "account"}, "user"),
        ("csv.csv", {"account": "6"}, "account"),
        ("apache_timed.log", {}, "user"),
        ("combined.log", {"account": "remote_user"}, "account"),
    ],
)
def test_a_further_field_is_read_where_it_is(name, places, user):
    found, _ = entries(LOGS / name, [user], form=FORMATS[name], places=places)
    assert [each.extra for each in found] == [(None,)] * 7 + [("ann",)]


@pytest.mark.parametrize("name", ["nginx_timed.log", "apache_timed.log", "nginx.json", "caddy.json", "traefik.json"])
def test_durations_are_in_microseconds(name):
    found, _ = entries(LOGS / name, ["duration"], form=FORMATS[name])
    assert {each.duration for each in found} == {250_000}


@pytest.mark.parametrize("name", ["caddy.json", "traefik.json"])
def test_a_header_is_read_from_the_headers_in_json_whatever_its_case(name):
    found, _ = entries(LOGS / name, ["header:user-agent", "header:cookie", "header:x-none"])
    assert {each.extra for each in found} == {("curl/8.5.0", None, None)}


@pytest.mark.parametrize(
    ("form", "line", "target"),
    [
        ("$msec $remote_addr $request_method $uri $status", "7.0 192.0.2.1 GET /a 200", "/a"),
        ("$msec $remote_addr $request_method $uri $args $status", "7.0 192.0.2.1 GET /a b=1 200", "/a?b=1"),
        ("$msec $remote_addr $request_method $uri $args $status", "7.0 192.0.2.1 GET /a - 200", "/a"),
        ("$msec $time_iso8601 $remote_addr $uri $status", "7.0 2026-03-01T12:00:00Z 192.0.2.1 /a 200", "/a"),
        ("$msec $remote_addr $status $status $uri", "7.0 192.0.2.1 200 404 /a", "/a"),
    ],
)
def test_a_format_may_lack_the_query_or_tell_a_field_twice(tmp_path, form, line, target):
    path = tmp_path / "access.log"
    path.write_text(line + "\n")
    (found,) = entries(path, ["status"], form=form)[0]
    assert found[:5] == (7_000_000, "192.0.2.1", "GET", target, 200)


@pytest.mark.parametrize("opener", [gzip.open, bz2.open, lzma.open, zstd.open])
def test_a_compressed_log_is_read_whatever_its_name(opener, tmp_path):
    path = tmp_path / "access.log.1"
    with opener(path, "wb") as file:
        file.write((LOGS / "combined.log").read_bytes())
    assert len(entries(path)[0]) == 8


def test_a_log_of_several_frames_is_read_as_pzstd_writes_it(tmp_path):
    path = tmp_path / "access.log.zst"
    skipped = b"\x50\x2a\x4d\x18\4\0\0\0size"
    path.write_bytes(2 * (skipped + zstd.compress((LOGS / "combined.log").read_bytes())))
    assert len(entries(path)[0]) == 16


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress, zstd.compress])
@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-20], lambda data: data[:20] + b"junk" * 9 + data[56:], lambda data: data[:10] + b"junk"],
)
def test_a_damaged_log_is_an_error_that_names_it(compress, damage, tmp_path):
    path = tmp_path / "access.log"
    path.write_bytes(damage(compress((LOGS / "combined.log").read_bytes())))
    with pytest.raises(OSError, match=r"access\.log is damaged"):
        entries(path)


def test_junk_behind_a_gzip_file_is_damage(tmp_path):
    path = tmp_path / "access.log"
    path.write_bytes(gzip.compress((LOGS / "combined.log").read_bytes()) + b"junk")
    with pytest.raises(OSError, match=r"access\.log is damaged"):
        entries(path)


def test_a_pipe_with_a_name_is_read_as_standard_input_is(tmp_path):
    path = tmp_path / "access.log"
    os.mkfifo(path)
    with ThreadPoolExecutor() as pool:
        pool.submit(path.write_bytes, gzip.compress((LOGS / "combined.log").read_bytes()))
        assert len(entries(path)[0]) == 8
        pool.submit(path.write_bytes, b"")
        with closing(Log(str(path), Unreadable())) as log:
            assert log.position == 0


def test_a_log_without_ends_of_lines_is_not_called_empty(tmp_path):
    path = tmp_path / "access.log"
    path.write_bytes((LOGS / "combined.log").read_bytes().replace(b"\n", b"\0") * 1500)
    with pytest.raises(UnusableLog, match="longer than 1 MiB"):
        entries(path)


@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_lines_may_end_in_any_way(end, tmp_path):
    path = tmp_path / "access.log"
    lines = (LOGS / "common.log").read_text().splitlines()
    path.write_bytes((end or "\n").join(lines).encode() + end.encode())
    assert len(entries(path)[0]) == 8


def test_unreadable_lines_are_counted_and_three_are_kept(tmp_path):
    path = tmp_path / "access.log"
    good = (LOGS / "combined.log").read_text()
    path.write_text(good * 10 + "one\ntwo\n\n" + good + "three\nfour\n")
    found, log = entries(path)
    assert (len(found), log.unreadable.count, log.unreadable.shown) == (88, 4, ["one", "two", "three"])


def test_a_method_in_json_has_ascii_letters(tmp_path):
    path = tmp_path / "access.log"
    good = (LOGS / "caddy.json").read_text()
    path.write_text(good + good.splitlines()[0].replace('"GET"', '"G\\u00eaT"') + "\n")
    found, log = entries(path)
    assert (len(found), log.unreadable.count, log.unreadable.without_request) == (8, 0, 1)


def test_a_line_that_is_not_json_is_unreadable(tmp_path):
    path = tmp_path / "access.log"
    path.write_text((LOGS / "caddy.json").read_text() * 10 + "one\n{}\n")
    found, log = entries(path)
    assert (len(found), log.unreadable.count, log.unreadable.shown) == (80, 2, ["one", "{}"])


def test_only_texts_and_numbers_in_json_are_values():
    line = '{"time": 1772366400, "target": "/", "a": true, "b": {"c": 1}, "d": [true, "x", 7], "e": 1.5, "f": null}'
    form = find_format("json", [line], {"time": "time", "target": "target", **{name: name for name in "abdef"}})
    (found,) = form.reader([*"abdef"], Unreadable()).read(line.encode() + b"\n")
    assert found.extra == (None, None, "x, 7", "1.5", None)


def test_a_line_that_is_no_request_is_not_unreadable(tmp_path):
    path = tmp_path / "access.log"
    tls = '192.0.2.9 - - [01/Mar/2026:12:00:00 +0000] "\\x16\\x03\\x01" 400 0 "-" "-"\n'
    path.write_text((LOGS / "combined.log").read_text() + tls)
    found, log = entries(path)
    assert (len(found), log.unreadable.count, log.unreadable.without_request) == (8, 0, 1)


def test_a_line_that_is_cut_within_its_user_agent_is_a_request(tmp_path):
    path = tmp_path / "access.log"
    good = (LOGS / "combined.log").read_text()
    path.write_text(good * 2 + good.splitlines()[0].rstrip('"') + "\n")
    found, log = entries(path, ["status", "agent"])
    assert (len(found), log.unreadable.count) == (17, 0)
    assert {each.agent for each in found} == {"", "Mozilla/5.0 (X11; Linux x86_64)"}


def test_a_line_longer_than_a_mebibyte_is_unreadable(tmp_path):
    path = tmp_path / "access.log"
    good = (LOGS / "combined.log").read_bytes()
    path.write_bytes(good + b"x" * 3_000_000 + b"\n" + good)
    found, log = entries(path)
    assert (len(found), log.unreadable.count) == (16, 1)


def test_the_time_of_nginx_is_the_end_of_a_request():
    text = '$remote_addr [$time_local] "$request" $request_time'
    log = PatternFormat("own", text).reader([], Unreadable())
    (entry,) = log.read(b'192.0.2.1 [01/Mar/2026:12:00:10 +0000] "GET / HTTP/1.1" 3.500\n')
    assert (entry.at - START, entry.duration) == (6_500_000, 3_500_000)


@pytest.mark.parametrize(
    ("text", "line", "at"),
    [
        ('$time_iso8601 "$request"', '2026-03-01T13:00:00+01:00 "GET / HTTP/1.1"', 0),
        ('$msec "$request"', '1772366400.250 "GET / HTTP/1.1"', 250_000),
        ('%{%Y-%m-%d %H:%M:%S}t "%r"', '2026-03-01 12:00:01 "GET / HTTP/1.1"', 1_000_000),
        ('%{msec}t "%r"', '1772366400123 "GET / HTTP/1.1"', 123_000),
        ('%{usec}t "%r"', '1772366400123456 "GET / HTTP/1.1"', 123_456),
        ('%{begin:%Y-%m-%d %H:%M:%S}t "%r"', '2026-03-01 12:00:01 "GET / HTTP/1.1"', 1_000_000),
        ('%{end:usec}t "%r"', '1772366400123456 "GET / HTTP/1.1"', 123_456),
        ('%{%Y-%m-%dT%H:%M:%S}t.%{msec_frac}t%{%z}t "%r"', '2026-03-01T12:00:01.123+0000 "GET / HTTP/1.1"', 1_000_000),
        ('%{sec}t.%{usec_frac}t "%r"', '1772366401.123456 "GET / HTTP/1.1"', 1_000_000),
        ('%t "%r"', '[01/Mar/2026:07:00:00 -0500] "GET / HTTP/1.1"', 0),
    ],
)
def test_a_format_is_compiled_with_its_time(text, line, at):
    form = PatternFormat("own", text)
    (entry,) = form.reader([], Unreadable()).read(line.encode() + b"\n")
    assert (entry.at - START, entry.method, entry.target) == (at, "GET", "/")
    assert form.fits(line)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("$remote_addr $status", "no known variable for the time"),
        ("[$time_local]", "no known variable for the request"),
        ("nothing", "neither one of auto"),
        ('$time_local $host$remote_addr "$request"', "no text between"),
        ("$time_local $remote_addr $uri$host", "no text between"),
    ],
)
def test_a_format_that_cannot_be_used_is_refused(text, problem):
    with pytest.raises(UnusableLog, match=problem) as refused:
        find_format(text, ["a line"], {})
    assert refused.value.usage


def test_the_default_format_of_uvicorn_is_refused_with_a_configuration_to_copy():
    lines = [
        'INFO:     127.0.0.1:50000 - "GET / HTTP/1.1" 200 OK',
        'INFO:     127.0.0.1:5 - "GET /x HTTP/1.1" 404 Not Found',
    ]
    with pytest.raises(UnusableLog) as refused:
        find_format("auto", lines, {})
    assert UVICORN in str(refused.value)
    assert not refused.value.usage


def test_an_unknown_format_shows_its_first_line():
    with pytest.raises(UnusableLog, match="The first line is: what is this"):
        find_format("auto", ["what is this", "and this"], {})


def test_a_format_is_detected_if_nine_of_ten_lines_are_in_it():
    line = (LOGS / "combined.log").read_text().splitlines()[0]
    assert find_format("auto", [line] * 9 + ["x"], {}).name == "combined"
    with pytest.raises(UnusableLog):
        find_format("auto", [line] * 8 + ["x"] * 2, {})


def test_a_format_is_detected_only_if_its_addresses_are_addresses():
    line = (LOGS / "common.log").read_text().splitlines()[0]
    with pytest.raises(UnusableLog, match=r"look like 'common', but have 'example.com' in place of an address \(%h\)"):
        find_format("auto", [f"example.com {line}"], {})
    assert find_format("auto", [line] * 9 + [line.replace("192.0.2.1", "example.com")], {}).name == "common"


AGENT = {"main", "nginx", "common", "csv", "uvicorn", "nginx_timed", "apache_timed", "haproxy"}
"""The logs of this folder without a user agent, or with another one."""


@pytest.mark.parametrize("name", FORMATS)
def test_the_user_agent_is_read_from_each_format_that_has_it(name):
    found, _ = entries(LOGS / name, ["agent"], form=FORMATS[name])
    agents = {each.agent for each in found}
    assert len(agents) == 1
    assert name.partition(".")[0] in AGENT or agents & {
        "curl/8.5.0",
        "Mozilla/5.0 (X11; Linux x86_64)",
        "Mozilla/5.0 (Windows NT 10.0; Win64; x64)",
    }


TURNED = [
    "combined.log",
    "caddy.json",
    "csv.csv",
    "cloudfront.log",
]


@pytest.mark.parametrize("name", TURNED)
def test_a_file_that_begins_with_its_newest_line_is_read_from_its_end(name, tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_BLOCK", 500)
    monkeypatch.setattr(logs, "_TURNED", 1)
    monkeypatch.setattr(logs, "_LEAST_TURNED", 5)
    text = (LOGS / name).read_text()
    *lines, newest, last = text.splitlines(keepends=True)
    lines += [last, newest]
    head = [line for line in lines if line.startswith(("#", "time,"))]
    path = tmp_path / "access.log"
    path.write_text("".join(head + lines[len(head) :][::-1]))
    found, log = entries(path, ["status"], disorder=1)
    assert [(round((each.at - START) / 1e6), each.method) for each in found] == [(line[0], line[2]) for line in EIGHT]
    assert log.unreadable.count == 0


def test_a_compressed_log_that_begins_with_its_newest_line_is_refused_with_the_command_that_turns_it(tmp_path):
    path = tmp_path / "access.log.gz"
    lines = [f'192.0.2.1 - - [01/Mar/2026:12:0{9 - minute}:00 +0000] "GET / HTTP/1.1" 200 5\n' for minute in range(10)]
    path.write_bytes(gzip.compress("".join(lines).encode()))
    with pytest.raises(UnusableLog, match=r"`zcat \S+ \| tac \| ratelimit-mw replay - …`"):
        entries(path)


GROWING = [place * 4 for place in range(1000)]
JITTER = [time - 59 * (place * 37 % 100) // 100 for place, time in enumerate(GROWING)]
BURST = [place // 20 for place in range(1000)]
ORDERS = {
    "in order": (GROWING, False),
    "the newest line first": (GROWING[::-1], True),
    "out of order inside a minute": (JITTER, False),
    "the newest line first, out of order inside a minute": (JITTER[::-1], True),
    "ten lines, the newest first": ([time * 30 for time in range(10)][::-1], True),
    "all within a minute": (BURST[::-1], False),
    "of one time": ([5] * 1000, False),
    "a clock that was set back by an hour early": ([3600 + time for time in BURST[:200]] + BURST[200:], False),
    "a clock that was set back by an hour": ([3600 + time for time in BURST[:500]] + BURST[500:], False),
    "last lines of long requests": ([*BURST[:-2], -3600, -7200], False),
    "two files, the newer one first": (GROWING[500:] + GROWING[:500], False),
    "ten files, the newest first": ([time for at in range(900, -1, -100) for time in GROWING[at : at + 100]], False),
}


@pytest.mark.parametrize(("times", "turned"), ORDERS.values(), ids=ORDERS)
def test_a_log_begins_with_its_newest_line_if_it_is_in_order_from_its_end(times, turned, tmp_path):
    path = tmp_path / "access.log.gz"
    stamps = [f"{12 + time // 3600}:{time // 60 % 60:02}:{time % 60:02}" for time in times]
    lines = [f'192.0.2.1 - - [01/Mar/2026:{stamp} +0000] "GET / HTTP/1.1" 200 5\n' for stamp in stamps]
    path.write_bytes(gzip.compress("".join(lines).encode()))
    with pytest.raises(UnusableLog, match="newest line") if turned else nullcontext():
        entries(path)


def test_an_unknown_place_is_refused_with_the_known_ones():
    line = (LOGS / "combined.log").read_text().splitlines()[0]
    with pytest.raises(UnusableLog, match=r"no 'x'; it has \$remote_addr"):
        find_format("combined", [line], {"user": "x"})


def test_json_of_unknown_names_needs_places():
    line = '{"t": 1772366400, "who": "192.0.2.1", "verb": "GET", "deep": {"path": ["/a"]}}'
    for places in ({}, {"time": "t"}, {"target": "deep.path"}):
        with pytest.raises(UnusableLog, match="--field time=NAME"):
            find_format("auto", [line], places)
    form = find_format("json", [line], {"time": "t", "ip": "who", "method": "verb", "target": "deep.path"})
    assert form.reader([], Unreadable()).read(line.encode() + b"\n") == [LogEntry(START, "192.0.2.1", "GET", "/a")]


READERS = [
    *(PatternFormat(name, text) for name, text in NAMED.items()),
    *(NamedFormat(name, places) for name, places in PRODUCTS.items()),
    NamedFormat("csv", {"time": ("1",), "target": ("2",)}, ","),
]
LINES = [line for path in sorted(LOGS.iterdir()) for line in path.read_bytes().splitlines()]


@given(
    st.one_of(
        st.binary(max_size=200),
        st.tuples(st.sampled_from(LINES), st.binary(max_size=12), st.integers(0, 300), st.integers(0, 5)).map(
            lambda parts: parts[0][: parts[2]] + parts[1] + parts[0][parts[2] + parts[3] :]
        ),
    )
)
def test_no_line_raises_an_exception(line):
    for form in READERS:
        unreadable = Unreadable()
        found = form.reader(["status", "duration", "user", "header:x-forwarded-for"], unreadable).read(line + b"\n")
        lines = [part for part in line.split(b"\n") if part and not part.isspace()]
        assert len(found) + unreadable.count + unreadable.without_request <= len(lines)
        for entry in found:
            assert all(text.encode("latin-1") is not None for text in (entry.ip, entry.method, entry.target))
