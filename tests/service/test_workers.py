"""Several processes of the service: their ports, and what their supervisor does."""

import os
import re
import signal
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from ratelimit_mw.errors import ConfigurationError
from ratelimit_mw.service import Settings, serve
from ratelimit_mw.service.settings import of_workers
from tests.support.patience import WITHIN, eventually
from tests.support.service import OK, OVER_LIMIT, RULES, Serving, asking, request, rules_at

pytest.importorskip("lmdb", reason="the processes share counters in a file")


def test_the_ports_of_the_processes_follow_each_other_and_sockets_have_a_number():
    settings = Settings.read(grpc="8181", http="unix:/run/rl.sock", admin="[::1]:0", workers="3")
    parts = of_workers(settings)
    assert [part.workers for part in parts] == [1, 1, 1]
    assert [[str(each) for each in part.addresses.values()] for part in parts] == [
        [f"127.0.0.1:818{number}", f"unix:/run/rl.sock.{number}", "[::1]:0"] for number in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (
            {},
            "--grpc, --http and --admin: each needs 2 ports of its own in a row, for example from 8181, 8581 and 9090",
        ),
        ({"grpc": "65535"}, "--workers: the last ports of 2 processes are above 65535"),
        ({"grpc": "0", "workers": "0"}, "--workers: '0' is not a number from 1 to 256"),
        ({"grpc": "0", "workers": "257"}, "--workers: '257' is not a number from 1 to 256"),
    ],
)
def test_ports_that_overlap_or_do_not_exist_are_refused(texts, why):
    with pytest.raises(ConfigurationError) as raised:
        Settings.read(**{"workers": "2", **texts})
    assert [str(problem) for problem in raised.value.problems] == [why]


def test_processes_that_share_no_counters_are_refused_with_the_other_reasons(tmp_path):
    path = tmp_path / "taken"
    path.touch()
    (tmp_path / "s.2").touch()
    flags = {"grpc": f"unix:{tmp_path / 's'}", "http": "off", "admin": "off", "workers": "2"}
    with pytest.raises(ConfigurationError) as raised:
        serve(Settings.read(rules=str(rules_at(tmp_path, RULES)), **flags))
    memory, taken = raised.value.problems
    assert memory.message == "--workers: 2 processes cannot share the counters of memory://"
    assert "lmdb://" in memory.hint
    assert taken.message.startswith(f"--grpc: unix:{tmp_path / 's.2'} can't be used: ")
    assert not (tmp_path / "s.1").exists()


@contextmanager
def two_workers(tmp_path, *words):
    with Serving(
        rules_at(tmp_path, RULES), "--workers", "2", "--storage", f"lmdb://{tmp_path / 'counters'}", *words
    ) as service:
        eventually(lambda: any("2 workers, for the list of the proxy: " in line for line in service.lines))
        yield service


def targets(service):
    """Where gRPC is served, from the latest processes that were started."""
    ready = [line for line in service.lines if "INFO ready: " in line]
    return re.findall(r"grpc at ([^\s,]+)", "\n".join(ready[-2:]))


def ask(target, user):
    with grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        return asking(channel)(request("shop", [("user", user)]), timeout=WITHIN)


def children(pid):
    """The processes that run of those that this one has started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid):
    """Whether there is such a process, and no one only has to ask for its exit code."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_the_processes_share_counters_and_reload_and_drain_together(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("check 0123456789abcdef\n")
    with two_workers(tmp_path, "--token-file", str(tokens), "--allow-anyone") as service:
        first, second = targets(service)
        line = next(line for line in service.lines if "for the list of the proxy" in line)
        assert re.findall(r"grpc at (\S+) (\S+);", line) in ([(first, second)], [(second, first)])
        codes = [ask(target, "ann").overall_code for target in (first, second, first, second)]
        assert codes == [OK, OK, OK, OVER_LIMIT]
        tokens.write_text("nonsense\n")
        for number in (2, 4):  # each process has noticed it, and reads the file again at the signal
            eventually(lambda: sum("the tokens can't be used" in line for line in service.lines) == number)  # noqa: B023 - it is called in this round
            service.signal(signal.SIGHUP)
        service.signal(signal.SIGTERM)
        assert service.ended() == 0
    assert sum("INFO stopped" in line for line in service.lines) == 2
    assert "INFO all workers have stopped" in service.lines[-1]


def test_a_process_that_ends_is_started_again_at_its_ports(tmp_path):
    with two_workers(tmp_path, "--grpc", f"unix:{tmp_path / 's'}") as service:
        before = children(service.process.pid)
        os.kill(before[1], signal.SIGKILL)
        eventually(lambda: len([line for line in service.lines if "INFO ready: " in line]) == 3)
        assert any(line.endswith("has ended (exit code -9). It starts again in 1 s") for line in service.lines)
        after = children(service.process.pid)
        assert (after[0], len(after)) == (before[0], 2)
        assert [ask(f"unix:{tmp_path / 's'}.{number}", "ann").overall_code for number in (1, 2)] == [OK, OK]


def test_the_processes_end_if_their_supervisor_was_killed(tmp_path):
    with two_workers(tmp_path) as service:
        found = children(service.process.pid)
        service.signal(signal.SIGKILL)
        service.ended()
        eventually(lambda: not any(map(is_running, found)))


def test_a_second_signal_ends_all_processes_at_once(tmp_path):
    with two_workers(tmp_path, "--drain", "1h") as service:
        found = children(service.process.pid)
        service.signal(signal.SIGTERM)
        eventually(lambda: sum("INFO draining" in line for line in service.lines) == 2)
        service.signal(signal.SIGTERM)
        assert service.ended() == 128 + signal.SIGTERM
        assert not any(map(is_running, found))


def test_if_a_process_does_not_get_ready_the_service_does_not_start(tmp_path):
    rules = RULES.replace("storage: {", "storage: {url: 'redis://127.0.0.1:1/0', required: true, ")
    with (
        pytest.raises(RuntimeError, match="did not start") as raised,
        Serving(rules_at(tmp_path, rules), "--workers", "2"),
    ):
        pass
    assert "did not get ready (exit code 3), so all of them stop" in str(raised.value)
