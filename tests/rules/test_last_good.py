"""A file breaks and a worker dies: the next worker goes by the last good rules of the server's other workers."""

import json
import os
import signal
import stat
import sys
import time
from pathlib import Path

import httpx2 as httpx
import pytest

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw.config.load import Document
from ratelimit_mw.reload.database import RulesDatabase
from tests.rules.living import ASGI, WSGI, limit_of, text
from tests.support.apps import gunicorn, uvicorn
from tests.support.patience import eventually
from tests.support.processes import in_child

BROKEN = {
    "half a file": "domain: d\nrules:\n  - {name: new, by: ip, lim",
    "an empty file": "",
    "a wrong limit": text("5 per fortnight", name="new"),
    "a variable that is not set": text("'${THAT_IS_NOT_SET} per minute'", name="new"),
    "no file": None,
}

SERVERS = {
    "uvicorn": (uvicorn, ASGI, 2, []),
    "gunicorn": (gunicorn, WSGI, 2, []),
    "gunicorn, one worker": (gunicorn, WSGI, 1, []),
    "gunicorn, gevent": (gunicorn, WSGI, 2, ["-k", "gevent"]),
    "gunicorn --preload": (gunicorn, WSGI, 2, ["--preload"]),
}


def put(file, content):
    if content is None:
        file.unlink()
    else:
        file.with_suffix(".new").write_text(content)
        file.with_suffix(".new").replace(file)


@pytest.fixture
def kept():
    """Finds the files that the workers of this process have stored."""
    if sys.platform != "linux":
        pytest.skip("only on Linux")

    def found():
        return sorted(Path("/dev/shm").glob(f"*ratelimit_mw-{os.geteuid()}-*-{os.getpid()}-*"))

    yield found
    for each in found():
        each.unlink() if each.is_symlink() or not each.is_dir() else each.rmdir()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("uvicorn", "half a file"),
        ("gunicorn", "no file"),
        *(
            pytest.param(name, "half a file", marks=pytest.mark.soak)
            for name in ("gunicorn", "gunicorn, one worker", "gunicorn, gevent", "gunicorn --preload")
        ),
    ],
)
def test_a_server_outlives_a_broken_file_and_a_dying_worker(tmp_path, kept, monkeypatch, name, wrong):
    serve, app_text, workers, args = SERVERS[name]
    (tmp_path / "served.py").write_text(app_text)
    file = tmp_path / "rules.yaml"
    start = {"workers": workers, "cwd": tmp_path, "args": args}
    start["env"] = {"RULES": str(file)}

    def answers(app):
        """What each worker says, by its pid."""
        found = {}
        for _ in range(12):
            try:
                pid, *said = httpx.get(app.url, timeout=30).text.split()
            except httpx.TransportError:  # a connection that the killed worker had taken
                continue
            found[int(pid)] = said
        return found

    put(file, text("5000 per minute", reload="100ms", name="first"))
    with serve("served:app", **start) as app:
        eventually(lambda: len(answers(app)) == workers)
        put(file, text("5000 per minute", reload="100ms", name="old"))
        eventually(lambda: {said[1] for said in answers(app).values()} == {"old"})
        put(file, BROKEN[wrong])
        eventually(lambda: "stays in force" in app.log)
        victim = next(iter(answers(app)))
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: (found := answers(app)) and len(found) == workers and victim not in found)
        eventually(lambda: set(map(tuple, answers(app).values())) == {("True", "old")})
        assert "ERROR ratelimit_mw rules: " in app.log
        assert "which another worker of this server stored, is in force" in app.log
        put(file, text("5000 per minute", reload="100ms", name="new"))
        eventually(lambda: set(map(tuple, answers(app).values())) == {("False", "new")})
        assert "Traceback" not in app.log
    put(file, BROKEN[wrong])
    assert_no_worker_starts(lambda: serve("served:app", **start), monkeypatch)


def assert_no_worker_starts(serve, monkeypatch):
    """Some servers end with their first worker that refuses to start, others go on trying."""

    def wait(app, _workers, ready):
        eventually(lambda: app.log.count("ConfigurationError: ") >= 2 or app.process.poll() is not None)
        assert "ConfigurationError: " in app.log
        assert ready not in app.log

    monkeypatch.setattr("tests.support.apps._wait", wait)
    with serve():
        pass


class Child:
    """A fork's child: to the package, a worker that this process, its server, has started."""

    @staticmethod
    def run(work):
        """What `work` returns in a child, or the text of the ConfigurationError that it raises."""

        def said():
            try:
                return work()
            except ConfigurationError as error:
                return f"refused: {error}"

        return in_child(said)


def started(config, checks=()):
    """A worker with these rules: the limit in force, and whether it goes by what another one has left."""

    def work():
        with RateLimiter(config) as limiter:
            for check in checks:
                limiter.require(check)
            return [limit_of(limiter), limiter.state.error is not None]

    return Child.run(work)


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "rules.yaml"
    file.write_text(text("5 per minute"))
    return file


class TestWhatIsLeft:
    def test_it_is_for_this_user_alone_and_before_variables_are_read(self, file, kept, monkeypatch):
        monkeypatch.setenv("SOME_SECRET", "hunter2")
        file.write_text(text("5 per minute", client="{user: 'header:X-User', secret: '${SOME_SECRET}'}"))
        assert started(file) == [5, False]
        (left,) = kept()
        assert stat.S_IMODE(left.stat().st_mode) == 0o600
        assert "hunter2" not in left.read_text()
        assert json.loads(left.read_text())[1][1] == [[str(file), file.read_text()]]

    def test_a_fresh_start_leaves_nothing_and_takes_nothing(self, file, kept):
        with RateLimiter(file):
            pass
        assert kept() == []
        started(file)
        put(file, BROKEN["half a file"])
        with pytest.raises(ConfigurationError):
            RateLimiter(file)

    def test_each_configuration_has_its_own(self, file, kept, tmp_path):
        other = tmp_path / "other.yaml"
        other.write_text(text("9 per minute"))
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "a.yaml").write_text(text("3 per minute", domain="a"))
        (folder / "b.yaml").write_text(text("7 per minute", domain="b"))
        configs = {file: 5, other: 9, folder: 3}
        assert {config: started(config)[0] for config in configs} == configs
        for each in (file, other, folder / "b.yaml"):
            put(each, BROKEN["half a file"])
        assert {config: started(config) for config in configs} == {
            config: [limit, True] for config, limit in configs.items()
        }

    def test_a_file_with_a_byte_order_mark_and_every_kind_of_letter(self, file, kept):
        file.write_bytes(b"\xef\xbb\xbf" + text("5 per minute", response="{message: 'żółw 🐢 \u2028'}").encode())
        assert started(file) == [5, False]
        put(file, None)
        assert started(file) == [5, True]

    def test_what_a_worker_took_up_later_replaces_it(self, file, kept):
        def work():
            with RateLimiter(file) as limiter:
                put(file, text("6 per minute"))
                limiter.reload()
                return limit_of(limiter)

        assert Child.run(work) == 6
        put(file, BROKEN["a wrong limit"])
        assert started(file) == [6, True]

    def test_a_worker_with_the_older_rules_of_its_parent_does_not_replace_it(self, file, kept):
        with RateLimiter(file) as preloaded:
            put(file, text("6 per minute"))
            assert started(file) == [6, False]
            put(file, BROKEN["a wrong limit"])
            Child.run(lambda: limit_of(preloaded))
        assert started(file) == [6, True]

    @pytest.mark.parametrize("wrong", BROKEN)
    def test_it_is_taken_whatever_is_wrong_with_the_newest(self, file, kept, wrong):
        assert started(file) == [5, False]
        put(file, BROKEN[wrong])
        assert started(file) == [5, True]
        put(file, text("6 per minute"))
        assert started(file) == [6, False]

    def test_a_worker_that_took_it_leaves_it_for_the_next(self, file, kept):
        assert started(file) == [5, False]
        put(file, BROKEN["a wrong limit"])
        assert [started(file) for _ in range(3)] == [[5, True]] * 3

    def test_rules_that_this_app_can_not_use_are_never_left(self, file, kept):
        def check(rules):
            if rules.rules[0].name != "a":
                raise ConfigurationError([])

        assert started(file, [check]) == [5, False]
        put(file, text("9 per minute", name="b"))
        assert started(file, [check]) == [5, True]
        assert started(file, [check]) == [5, True]

    def test_a_variable_that_is_gone_refuses_as_before(self, file, kept, monkeypatch):
        monkeypatch.setenv("LIMIT", "5")
        file.write_text(text("'${LIMIT} per minute'"))
        assert started(file) == [5, False]
        monkeypatch.delenv("LIMIT")
        assert "LIMIT is not set" in started(file)

    def test_a_text_is_not_read_twice_for_variables(self, file, kept, monkeypatch):
        monkeypatch.setenv("NAME", "${OTHER}")
        file.write_text(text("5 per minute", name="'${NAME}'"))
        assert started(file) == [5, False]
        put(file, None)
        assert started(file) == [5, True]


def linked(left):
    left.rename(left.with_suffix(".x"))
    left.symlink_to(left.with_suffix(".x"))


SPOILT = {
    "open to others": lambda left: left.chmod(0o644),
    "of another user": lambda left: os.chown(left, 12345, 12345),
    "a link": linked,
    "a pipe": lambda left: (left.unlink(), os.mkfifo(left, 0o600)),
    "empty": lambda left: left.write_text(""),
    "no text": lambda left: left.write_bytes(b"\x80\x04\x95pickle"),
    "of another form": lambda left: left.write_text('{"frame": 7, "rules": []}'),
    "numbers": lambda left: left.write_text('[null, ["v", [["n", 7]]]]'),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_file_that_can_not_be_trusted_or_read_is_not_used(file, kept, spoil):
    if "chown" in spoil.__code__.co_names and os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    assert started(file) == [5, False]
    (left,) = kept()
    spoil(left)
    put(file, BROKEN["a wrong limit"])
    assert "fortnight" in started(file)


def test_a_worker_starts_although_nothing_can_be_stored(file, kept):
    assert started(file) == [5, False]
    (left,) = kept()
    left.unlink()
    left.mkdir()
    (left / "in its way").touch()
    try:
        assert started(file) == [5, False]
    finally:
        (left / "in its way").unlink()


def test_the_files_of_servers_that_have_ended_are_removed(file, kept):
    started(file)
    (left,) = kept()
    own, user, namespace, parent, begun, digest = left.name.split("-")
    gone = [
        f"{own}-{user}-{namespace}-{parent}-{int(begun) - 1}-{digest}",  # the pid was given to another process
        f"{own}-{user}-{namespace}-{2**22 + 1}-1-{digest}",  # beyond the greatest pid
        f".{own}-{user}-{namespace}-{2**22 + 1}-1-{digest}.0a1b2c3d",
    ]
    odd = f"{own}-{user}-{namespace}-odd"
    other = f"{own}-{user}-7-{2**22 + 1}-1-{digest}"  # of another namespace, whose processes are not visible here
    for name in (*gone, other, odd):
        left.with_name(name).write_text("")
    try:
        started(file)
        assert [name for name in (*gone, other) if left.with_name(name).exists()] == [other]
    finally:
        for name in (other, odd):
            left.with_name(name).unlink()


class TestDatabase:
    def push(self, any_server, content):
        with_it = RulesDatabase(any_server.url)
        with_it._append([Document("r.yaml", content.encode())], "", "", None)  # past the check that a push makes
        with_it.close()

    @pytest.mark.parametrize("around", ["none", "a file", "a mapping"])
    def test_rules_that_break_there(self, any_server, tmp_path, kept, around):
        file = tmp_path / "frame.yaml"
        file.write_text(f"domain: d\nstorage: {{timeout: 5s}}\nrules: {{source: '{any_server.url}'}}\n")
        given = {"domain": "d", "rules": {"source": any_server.url}}
        config = {"none": any_server.url, "a file": file, "a mapping": given}[around]
        self.push(any_server, text("5 per minute"))
        assert started(config) == [5, False]
        self.push(any_server, BROKEN["a wrong limit"])
        assert started(config) == [5, True]
        self.push(any_server, text("6 per minute"))
        assert started(config) == [6, False]

    @pytest.mark.parametrize("around", ["none", "a file"])
    def test_a_database_that_is_away(self, fresh_server, tmp_path, kept, around):
        file = tmp_path / "frame.yaml"
        file.write_text(f"domain: d\nrules: {{source: '{fresh_server.url}'}}\n")
        config = fresh_server.url if around == "none" else file
        self.push(fresh_server, text("5 per minute"))
        assert started(config) == [5, False]
        fresh_server.kill()
        assert started(config) == [5, True]
        put(file, BROKEN["half a file"])
        assert around == "none" or started(config) == [5, True]

    def test_nothing_of_it_is_ever_in_redis(self, any_server, file, kept):
        file.write_text(text("5 per minute", storage=f"{{url: '{any_server.url}', timeout: 5s}}"))
        assert started(file) == [5, False]
        assert any_server.keys() == []


class TestHalfWritten:
    @pytest.mark.parametrize(
        "half",
        [
            pytest.param("", id="empty"),
            pytest.param("domain: d\nrules:\n  - {name: a, by", id="broken"),
            pytest.param("domain: d\nrules: []\n", id="shorter, and good"),
        ],
    )
    def test_a_file_is_read_again_after_it_has_settled(self, tmp_path, monkeypatch, half):
        file = tmp_path / "rules.yaml"
        file.write_text(half)

        def meanwhile(_seconds):  # the other program writes its second half while this one waits
            if file.read_text() == half:
                file.write_text(text("5 per minute"))

        monkeypatch.setattr(time, "sleep", meanwhile)
        monkeypatch.setattr("ratelimit_mw.reload.source.SETTLING", 60)  # a slow machine reads it in time, too
        with RateLimiter(file) as limiter:
            assert limit_of(limiter) == 5
