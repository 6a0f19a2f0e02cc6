"""`ratelimit-mw replay`."""

import csv
import gc
import io
import json
import os
import threading
from pathlib import Path

import pytest

from ratelimit_mw.cli.common import console_of, table_of
from ratelimit_mw.cli.replayed import rows_to_show
from tests.cli.test_command import command
from tests.foresight.logs_of import LOGS
from tests.foresight.reports import curve
from tests.foresight.test_replay import NOON, SAMPLE, line

RULES = "domain: shop\nclient: {secret: s}\nrules:\n  - {name: everything, limit: 2 per minute}\n"
SHADOW = "  - {name: pages, match: {path: '/p/*'}, limit: 1 per minute, shadow: true}\n"

OBEDIENT = (
    "The log's clients did not know of these limits. Clients that wait for Retry-After send fewer requests, and others "
    "try again."
)


CURL = "program: its user agent says curl"


def hit(rule):
    """What is said of the only client of the log."""
    return [
        f"clients that {rule} limits",
        "client        peak  requests  paths                            statuses  user agent  like a",
        "ip=192.0.2.1     5         5  /p/0 20 %, /p/1 20 %, /p/2 20 %  200       curl        " + CURL,
        "",
    ]


@pytest.fixture
def replay(run):
    """A function that replays `access.log` in a folder that has rules."""
    Path("rules.yaml").write_text(RULES + SHADOW)
    Path("access.log").write_text("".join(line(second, path=f"/p/{second}") for second in range(5)))
    return lambda *words: run("replay", "--rules", "rules.yaml", *(words or ("access.log",)))


@pytest.mark.parametrize(("log", "code"), [("access.log", 0), ("absent.log", 1)])
def test_the_garbage_collector_looks_less_often_until_the_end(replay, monkeypatch, log, code):
    usual, asked = gc.get_threshold(), []
    monkeypatch.setattr(gc, "set_threshold", lambda *threshold: asked.append(threshold))
    assert replay(log)[0] == code
    rarely, restored = asked
    assert (rarely[0] > usual[0], restored) == (True, usual)


def test_the_result_begins_with_a_sentence_and_has_a_row_for_each_rule(replay):
    code, out, err = replay()
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "access.log: main",
        "2026-03-01 12:00:00 to 2026-03-01 12:00:04 UTC",
        "",
        "3 of 5 requests would have been denied, of 1 client. The shadow rules would deny 1 more request, of 1 client.",
        "",
        "rule        requests  denied    share  clients  worst minute           denials over time",
        "everything         5       3  60.00 %        1  3 at 2026-03-01 12:00  █",
        "○ pages            5       4  80.00 %        1  4 at 2026-03-01 12:00  █",
        "○ a shadow rule: it denies nothing, and would have denied these requests",
        "",
        "most limited clients",
        "client        rule        denied  first denial         last denial",
        "ip=192.0.2.1  ○ pages          4  2026-03-01 12:00:01  2026-03-01 12:00:04",
        "ip=192.0.2.1  everything       3  2026-03-01 12:00:02  2026-03-01 12:00:04",
        "",
        "what if ○ pages had another limit than 1 per minute (exact)",
        "limit  denied  of requests  limited  of clients",
        "  → 1       4      80.00 %        1    100.00 %",
        "    2       3      60.00 %        1    100.00 %",
        "    3       0       0.00 %        0      0.00 %",  # it is charged only for what `everything` admits
        "",
        *hit("○ pages"),
        "what if everything had another limit than 2 per minute (exact)",
        "limit  denied  of requests  limited  of clients",
        "    1       4      80.00 %        1    100.00 %",
        "  → 2       3      60.00 %        1    100.00 %",
        "    3       2      40.00 %        1    100.00 %",
        "    4       1      20.00 %        1    100.00 %",
        "    5       0       0.00 %        0      0.00 %",
        "",
        *hit("everything"),
        OBEDIENT,
    ]


def test_the_three_limits_that_deny_most_have_a_what_if(replay):
    rules = [
        f"  - {{name: r{number}, match: {{path: /p/{number}}}, limit: {number} per minute}}" for number in range(4)
    ]
    Path("rules.yaml").write_text("\n".join(["domain: shop", "client: {secret: s}", "rules:", *rules]))
    _, out, _ = replay()
    shown = [line for line in out.splitlines() if line.startswith("what if")]
    assert [line.split()[2] for line in shown] == ["r0", "r1", "r2"]
    assert "1 more limit has a what-if: --rule NAME shows that of one rule" in out
    _, out, _ = replay("access.log", "--rule", "r3")
    assert "what if r3 had another limit than 3 per minute (exact)" in out
    assert "more limit" not in out


def test_rules_that_decide_together_have_a_what_if_by_replays(replay):
    Path("rules.yaml").write_text(
        f"{RULES}  - {{name: slow, limit: 3 per hour}}\n  - {{name: lax, limit: 9 per hour}}\n"
    )
    why = "its decisions depend on more than its own counter"
    _, out, _ = replay()
    for name, limit in (("everything", "2 per minute"), ("slow", "3 per hour")):
        assert f"what if {name} had another limit than {limit} (replayed, because {why})" in out.splitlines()
    assert f"no what-if for 'lax' ({why}): `--rule NAME` replays the log at eight limits of a rule" in out.splitlines()
    _, out, _ = replay("access.log", "--rule", "lax")
    assert f"what if lax had another limit than 9 per hour (replayed, because {why})" in out.splitlines()
    assert "no what-if" not in out


def test_json_has_the_whole_result(replay):
    code, out, _ = replay("access.log", "--json", "--by", "minute", "--rule", "everything")
    found = json.loads(out)
    assert code == 0
    assert (found["requests"], found["denied"], found["clients_denied"], found["formats"]) == (5, 3, 1, ["main"])
    (rule,) = found["rules"]
    assert (rule["rule"], rule["denied"], rule["denials"]) == ("everything", 3, {"2026-03-01T12:00:00Z": 3})
    assert [client["rule"] for client in found["most_limited"]] == ["everything"]
    (curve,) = found["curves"]
    assert (curve["rule"], curve["limits"], curve["denied"]) == ("everything", [1, 2, 3, 4, 5], [4, 3, 2, 1, 0])
    assert found["without_curve"] == []
    assert found["lines"] == {
        "all": 5,
        "skipped": 0,
        "unreadable": 0,
        "shown": [],
        "without_request": 0,
        "late": 0,
        "status_429": 0,
    }


@pytest.mark.parametrize(
    ("words", "code"), [(("60%",), 0), (("59.9%",), 1), (("1",), 2), (("nothing",), 2), (("101%",), 2)]
)
def test_fail_above_decides_on_the_exit_code(replay, words, code):
    assert replay("access.log", "--fail-above", *words)[0] == code


def test_fail_above_counts_only_the_denials_of_the_named_rule(replay):
    assert replay("access.log", "--rule", "pages", "--fail-above", "0%")[0] == 0
    code, _, err = replay("access.log", "--rule", "everything", "--fail-above", "1%")
    assert (code, err) == (1, "ratelimit-mw: 60 % of the requests would be denied, more than 1 %\n")


@pytest.mark.parametrize(
    ("words", "code"), [((), 0), (("--count-shadow",), 1), (("--count-shadow", "--rule", "pages"), 1)]
)
def test_what_shadow_rules_would_deny_has_a_sentence_and_counts_for_fail_above_if_asked(replay, words, code):
    Path("rules.yaml").write_text("domain: shop\nclient: {secret: s}\nrules:\n" + SHADOW)
    found, out, _ = replay("access.log", "--fail-above", "79%", *words)
    assert found == code
    assert (
        "0 of 5 requests would have been denied: all rules are in shadow. The shadow rules would deny 4 requests, of "
        "1 client.\n" in out
    )
    Path("rules.yaml").write_text("shadow: true\n" + RULES)
    assert "The shadow rules would deny 3 requests, of 1 client.\n" in replay()[1]


def test_a_log_without_readable_addresses_has_no_result(replay):
    Path("access.log").write_text("".join(line(second, f"host{second}.example.com") for second in range(9)))
    code, out, err = replay("access.log", "--format", "main")
    assert (code, out) == (1, "")
    assert err == (
        "ratelimit-mw: 9 of 9 requests have no readable address in $remote_addr of main, such as 'host0.example.com': "
        "they count as one client. `--field ip=…` says where the address is\n"
    )
    code, out, _ = replay("access.log", "--format", "main", "--lenient")
    assert (code, "9 of 9 requests have no readable address" in out) == (0, True)
    Path("rules.yaml").write_text("domain: d\nrules: [{name: all, by: global, limit: 1 per minute}]\n")
    assert replay("access.log", "--format", "main")[0] == 0


def test_the_address_of_one_proxy_is_named_with_the_flag_that_takes_the_forwarded_one(replay):
    lines = [line(second, "10.0.0.1", forwarded=f"192.0.2.7, 198.51.100.{second}, 10.0.0.9") for second in range(5)]
    Path("access.log").write_text("".join(lines))
    _, out, _ = replay()
    assert (
        "all of the first lines have the private address 10.0.0.1, which is that of a proxy. "
        "`--field ip=http_x_forwarded_for`" in out
    )
    _, out, _ = replay("access.log", "--field", "ip=http_x_forwarded_for")
    assert "0 of 5 requests would have been denied" in out
    assert "private address" not in out
    Path("rules.yaml").write_text(RULES.replace("{secret: s}", "{secret: s, trusted_proxies: [10.0.0.0/8]}"))
    assert "private address" not in replay()[1]


def test_a_comparison_names_what_is_newly_denied(replay):
    Path("old.yaml").write_text(RULES.replace("2 per", "4 per"))
    _, out, _ = replay("access.log", "--against", "old.yaml")
    assert "newly denied: 2 requests of 1 client\n    ip=192.0.2.1: 2\n  newly allowed: 0 requests" in out
    _, out, _ = replay("access.log", "--against", "rules.yaml", "--json")
    nothing = {"requests": 0, "clients": 0, "most": {}}
    assert json.loads(out)["against"] == {"denied": 3, "newly_denied": nothing, "newly_allowed": nothing}


def test_the_summary_of_a_comparison_is_written_as_markdown(replay):
    Path("access.log").write_text("".join(line(second, user="a|b`[x](http://y)") for second in range(5)))
    Path("old.yaml").write_text(RULES.replace("limit: 2", "by: user, limit: 4"))
    Path("rules.yaml").write_text(RULES.replace("limit", "by: user, limit"))
    code, _, _ = replay("access.log", "--against", "old.yaml", "--markdown", "summary.md")
    text = Path("summary.md").read_text("utf-8")
    assert code == 0
    assert text.startswith("### Replay of the rules on a log\n\n3 of 5 requests would have been denied, of 1 client.\n")
    assert "**newly denied: 1 client**, 2 requests\n\n| client | requests | like a |\n|---|---:|---|\n" in text
    assert (
        "| user=a&#124;b&#96;&#91;x&#93;&#40;http&#58;&#47;&#47;y&#41; | 2 | program&#58; its user agent says curl |"
        in text
    )
    assert "**newly allowed: 0 clients**, 0 requests" in text


def test_the_summary_judges_a_client_by_the_rule_that_was_asked_most(replay):
    text = "".join(line(second, path=f"/{'p' if second < 5 else 'q'}/{second}") for second in range(25))
    Path("access.log").write_text(text.replace("curl", "Firefox/9"))
    Path("old.yaml").write_text(RULES.replace("2 per", "99 per"))
    Path("rules.yaml").write_text(RULES + SHADOW.replace(", shadow: true", ""))
    replay("access.log", "--against", "old.yaml", "--markdown", "summary.md")
    assert "| ip=192.0.2.1 | 23 | unclear&#58; nothing tells them apart here |" in Path("summary.md").read_text("utf-8")


def test_each_denial_is_written_to_a_file(replay):
    replay("access.log", "--denials", "denials.csv")
    rows = list(csv.DictReader(io.StringIO(Path("denials.csv").read_text())))
    assert [(row["time"][-3:], row["rule"], row["shadow"]) for row in rows][:3] == [
        ("01Z", "pages", "True"),
        ("02Z", "everything", "False"),
        ("02Z", "pages", "True"),
    ]
    replay("access.log", "--denials", "denials.jsonl", "--rule", "everything")
    first, *others = [json.loads(text) for text in Path("denials.jsonl").read_text().splitlines()]
    assert len(others) == 2
    assert first == {
        "time": "2026-03-01T12:00:02Z",
        "client": "ip=192.0.2.1",
        "rule": "everything",
        "shadow": False,
        "reason": "limited",
        "retry_after": 88.0,
        "method": "GET",
        "target": "/p/2",
        "status": 200,
    }


def test_text_of_clients_never_reaches_a_terminal_or_a_spreadsheet_as_a_command(replay):
    evil = line(0, path="/\\x1b[31m", user="=cmd()\\x1b]0;x\\x07[bold]") * 20 + "\x1b[31mbad\n"
    Path("evil.log").write_text(evil)
    Path("rules.yaml").write_text("domain: d\nclient: {secret: s}\nrules: [{name: u, by: user, limit: 1 per minute}]\n")
    for words in ((), ("--json",), ("--denials", "d.csv"), ("--denials", "d.jsonl"), ("--against", "rules.yaml")):
        code, out, err = replay("evil.log", "--lenient", *words)
        assert code == 0
        assert "[bold]" in out
        written = "".join(path.read_text() for path in Path().glob("d.*"))
        assert not any(ord(character) < 32 for character in (out + err + written) if character not in "\r\n")
    assert "\n2026-03-01T12:00:00Z,user==cmd()" in Path("d.csv").read_text()


def test_a_log_with_more_than_a_tenth_unreadable_needs_lenient(replay):
    Path("bad.log").write_text(Path("access.log").read_text() + "what\n")
    code, out, err = replay("bad.log", "--format", "main")
    assert "1 of 6 lines could not be read:\n  what\n" in out
    assert (code, err) == (1, "ratelimit-mw: more than 10 % of the lines can't be read; see --format and --lenient\n")
    assert replay("bad.log", "--format", "main", "--lenient")[0] == 0


def test_the_format_of_a_log_of_which_half_is_unreadable_is_found_with_lenient(replay):
    lines = Path("access.log").read_text().splitlines(keepends=True)
    Path("half.log").write_text("".join(f"{good}bad {number}\n" for number, good in enumerate(lines)))
    assert replay("half.log")[0] == 1
    code, out, _ = replay("half.log", "--lenient")
    assert (code, out.splitlines()[0]) == (0, "half.log: main")
    assert "3 of 5 requests would have been denied" in out
    assert "5 of 10 lines could not be read:\n  bad 0\n" in out


@pytest.mark.parametrize(("no_color", "plain"), [(None, False), ("", False), ("1", True)])
def test_a_table_on_a_terminal_is_plain_text_with_no_color(no_color, plain, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    terminal = Terminal()
    console_of(terminal).print(table_of(("rule",), [("everything",)]))
    assert ("\x1b[" in terminal.getvalue()) is not plain


def test_without_an_asked_rule_the_exit_code_is_1(replay):
    Path("rules.yaml").write_text("domain: d\nrules: [{name: api, by: path:id, limit: 1 per minute}]\n")
    code, out, err = replay()
    assert "rule 'api' matched no request" in out
    assert (code, err) == (1, "ratelimit-mw: no rule applied to a request, so the result says nothing\n")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("none.log",), 1, "the log can't be read"),
        (("access.log", "--format", "x"), 2, "neither one of auto, combined"),
        (("access.log", "--field", "usr=x"), 2, "did you mean"),
        (("access.log", "--field", "user"), 2, "NAME=PLACE"),
        (("access.log", "--since", "yesterday"), 2, "is not a time"),
        (("access.log", "--match", "items"), 2, "--match"),
        (("none.log", "--rule", "none"), 2, "there is no rule 'none'"),  # found before a log is read
        (("none.log", "--rule", "everythin"), 2, "did you mean 'everything'?"),
        (("access.log", "--denials", "d.txt"), 2, "must end in .csv or .jsonl"),
        (("access.log", "--since", "2030-01-01"), 1, "there is no request to replay"),
    ],
)
def test_an_unusable_argument_is_reported(replay, words, code, text):
    found, _, err = replay(*words)
    assert (found, text in " ".join(err.replace("│", "").split())) == (code, True), err


def test_rules_that_cannot_be_loaded_are_shown(replay):
    Path("rules.yaml").write_text("domain: d\nrules: [{name: api, limit: often}]\n")
    code, out, err = replay("access.log", "--json")  # a program reads the output
    assert (code, out) == (1, "")
    assert "rules.yaml:2:" in err
    assert err.endswith("ratelimit-mw: these rules can't be loaded\n")


def test_times_select_requests(replay):
    words = ("--since", "2026-03-01T12:00:01Z", "--until", str(NOON + 4))
    assert "1 of 3 requests would have been denied" in replay("access.log", *words)[1]


def test_a_client_can_be_named_by_a_hash(replay):
    _, out, _ = replay("access.log", "--names", "hashed", "--against", "rules.yaml")
    assert "192.0.2.1" not in out


def test_hashed_names_hide_unreadable_lines_which_may_name_clients(replay):
    Path("access.log").write_text(line(0) * 20 + "192.0.2.7 is not a line\n")
    for words in ((), ("--json",)):
        code, out, _ = replay("access.log", "--names", "hashed", "--html", "report.html", *words)
        assert (code, "192.0.2.7" in out + Path("report.html").read_text("utf-8")) == (0, False)
    assert "1 of 21 lines could not be read.\n" in replay("access.log", "--names", "hashed")[1]


@pytest.mark.parametrize(
    "words",
    [
        ("--html", "./access.log"),
        ("--denials", "link.csv"),
        ("--html", "rules.yaml"),
        ("--html", "other.yaml", "--against", "other.yaml"),
        ("--html", "new.csv", "--denials", "new.csv"),
    ],
)
def test_an_output_never_replaces_an_input_or_another_output(replay, words):
    Path("link.csv").symlink_to("access.log")
    Path("other.yaml").write_text(RULES)
    before = {path: path.read_bytes() for path in Path().iterdir()}
    code, _, err = replay("access.log", *words)
    assert (code, "is also an input or another output" in " ".join(err.replace("│", "").split())) == (2, True), err
    assert {path: path.read_bytes() for path in Path().iterdir()} == before


def test_standard_input_is_a_log(tmp_path):
    (tmp_path / "rules.yaml").write_text(RULES)
    words = ("replay", "-", "--rules", "rules.yaml")
    code = f"import sys; sys.stdin = open({str(LOGS / 'combined.log')!r}); from ratelimit_mw.cli import main; main()"
    ran = command(*words, code=code, cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "3 of 8 requests would have been denied, of 2 clients." in ran.stdout


@pytest.mark.skipif(not SAMPLE.exists(), reason="the sample log is not part of the project")
def test_the_sample_log_has_the_result_in_the_documentation(replay):
    page = (LOGS.parents[2] / "docs" / "replay.md").read_text("utf-8")
    rules, shown = (
        page.partition("```yaml\n")[2].partition("```")[0],
        page.partition("```console\n")[2].partition("```")[0],
    )
    Path("rules.yaml").write_text(rules)
    Path("access.log.gz").write_bytes(SAMPLE.read_bytes())
    typed, _, expected = shown.partition("\n")
    assert typed == "$ ratelimit-mw replay access.log.gz --rules rules.yaml"
    lines = iter(replay("access.log.gz")[1].splitlines())
    wanted = [line for line in expected.splitlines() if line != "…"]
    assert [line for line in wanted if line not in lines] == []  # `in` takes the lines up to this one


def test_the_result_is_written_as_a_page(replay):
    code, out, _ = replay("access.log", "--html", "report.html", "--rule", "everything", "--most", "1")
    text = Path("report.html").read_text("utf-8")
    assert code == 0
    assert out.startswith("access.log: main\n")  # and still printed
    assert text.startswith("<!doctype html>")
    assert "3 of 5 requests would have been denied, of 1 client." in text
    assert "pages" not in text
    replay("access.log", "--html", "again.html", "--rule", "everything", "--most", "1")
    assert Path("again.html").read_text("utf-8") == text


@pytest.mark.parametrize("path", ["missing/report.html", "folder"])
def test_a_page_that_cannot_be_written_is_refused_before_the_log_is_read(replay, path):
    Path("folder").mkdir()
    code, out, err = replay("absent.log", "--html", path)
    assert (code, out) == (2, "")
    assert "is not a file in a folder that exists" in " ".join(err.split())


def test_a_page_that_cannot_be_written_is_an_error_after_the_result(replay):
    code, out, err = replay("access.log", "--html", "/proc/report.html")
    assert (code, "would have been denied" in out) == (1, True)
    assert "'/proc/report.html' can't be written" in err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("absent.log",), 1),
        (("access.log", "--rule", "none"), 2),
        (("access.log", "--denials", "folder.csv"), 2),
    ],
)
def test_an_error_leaves_the_page_of_an_earlier_replay_as_it_was(replay, words, code):
    Path("folder.csv").mkdir()
    Path("old.html").write_text("old")
    assert replay("--html", "old.html", *words)[0] == code
    assert Path("old.html").read_text() == "old"


def test_a_file_of_denials_without_space_is_an_error_that_names_it(replay):
    Path("full.csv").symlink_to("/dev/full")
    code, _, err = replay("access.log", "--denials", "full.csv")
    assert (code, err) == (1, "ratelimit-mw: 'full.csv' can't be written: [Errno 28] No space left on device\n")


def test_denials_are_written_to_a_pipe(replay):
    os.mkfifo("pipe.csv")
    found = []
    reader = threading.Thread(target=lambda: found.append(Path("pipe.csv").read_text()), daemon=True)
    reader.start()
    assert replay("access.log", "--denials", "pipe.csv")[0] == 0
    reader.join(30)
    assert found[0].startswith("time,")
    assert Path("pipe.csv").is_fifo()


@pytest.mark.parametrize(
    ("in_force", "harmless", "rows"),
    [
        (5, 17, [1, 3, 5, 7, 9, 11, 13, 15, 17]),
        (4, 17, [1, 3, 4, 5, 7, 9, 11, 13, 15, 17]),
        (23, 17, [2, 5, 8, 11, 14, 17, 20, 23]),
        (0, None, [0, 1, 5, 9, 13, 17, 21, 25, 29]),
    ],
)
def test_the_rows_to_show_have_the_limit_in_force_and_the_first_that_denies_nothing(in_force, harmless, rows):
    limits = tuple(range(1, 31))
    denied = tuple(0 if harmless is not None and place >= harmless else 90 - place for place in range(30))
    assert rows_to_show(curve(limit=limits[in_force], limits=limits, denied=denied)) == rows
