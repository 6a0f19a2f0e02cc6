"""Where rules come from: files, folders, and the rules database with its versions."""

import json
import os
import re
import threading

import pytest

from ratelimit_mw import ConfigurationError, RateLimiter
from ratelimit_mw.config.load import Document, load_documents
from ratelimit_mw.errors import StoreUnavailable, VersionConflict
from ratelimit_mw.reload.database import KEPT, RulesDatabase
from ratelimit_mw.reload.source import FilesSource, open_source
from ratelimit_mw.stores import STORES, open_records
from tests.rules.corpus import request
from tests.rules.living import limit_of, text
from tests.support.rules import load_rules

case = pytest.param


def problems_of(config):
    with pytest.raises(ConfigurationError) as caught:
        load_rules(config, environ={})
    return [str(problem) for problem in caught.value.problems]


def folder(path, **files):
    path.mkdir(exist_ok=True)
    for name, content in files.items():
        (path / f"{name}.yaml").write_text(content)
    return path


class TestFolder:
    def test_every_file_s_rules_apply_to_a_request(self, tmp_path):
        rules = load_rules(folder(tmp_path / "r", shop=text(domain="shop"), mail=text(domain="mail")), environ={})
        keys = [charge.ask.key for charge in rules.plan(request())]
        assert keys == ["mail:a:sw60:{ip=192.0.2.1}", "shop:a:sw60:{ip=192.0.2.1}"]

    def test_check_asks_one_domain_and_raises_for_an_unknown_one(self, tmp_path):
        files = folder(tmp_path / "r", shop=text("1 per hour", domain="shop"), mail=text("2 per hour", domain="mail"))
        with RateLimiter(files) as limiter:
            client = {"ip": "192.0.2.1"}
            assert [limiter.check(client, domain="shop").allowed for _ in range(2)] == [True, False]
            assert [limiter.check(client, domain="mail").allowed for _ in range(3)] == [True, True, False]
            for ask in (limiter.check, limiter.peek, limiter.explain, limiter.reset):
                with pytest.raises(LookupError, match=r"'shpo', which does not exist \(did you mean 'shop'\?\)"):
                    ask(client, domain="shpo")
            limiter.reset(client, domain="shop")
            assert limiter.check(client, domain="shop").allowed
            assert not limiter.check(client).allowed

    async def _twins(self, limiter):
        client = {"ip": "192.0.2.1"}
        peeked = await limiter.apeek(client, domain="shop")
        first, second = [await limiter.acheck(client, domain="shop") for _ in range(2)]
        await limiter.areset(client, domain="shop")
        return [peeked.allowed, first.allowed, second.allowed, (await limiter.acheck(client, domain="shop")).allowed]

    def test_the_twins_ask_one_domain_too(self, tmp_path):
        import asyncio

        files = folder(tmp_path / "r", shop=text("1 per hour", domain="shop"), mail=text("0 per hour", domain="mail"))
        with RateLimiter(files) as limiter:
            assert asyncio.run(self._twins(limiter)) == [True, True, False, True]

    def test_storage_client_and_response_of_one_file_hold_for_all(self, tmp_path):
        shared = text(
            domain="a", client="{user: header:X-User, secret: s}", response="{status: 420}", storage="{timeout: 1s}"
        )
        other = "domain: b\nrules:\n  - {name: mine, by: user, limit: 1 per hour}\n"
        rules = load_rules(folder(tmp_path / "r", a=shared, b=other), environ={})
        assert (rules.response.status, rules.storage.timeout, rules.client.user) == (420, 1.0, "header:X-User")
        assert [charge.rule.name for charge in rules.plan(request(headers={"X-User": "ann"}))] == ["a", "mine"]

    def test_hidden_files_and_others_are_not_read(self, tmp_path):
        path = folder(tmp_path / "r", shop=text())
        (path / ".hidden.yaml").write_text("nonsense")
        (path / "notes.txt").write_text("nonsense")
        (path / "b.yml").write_text(text(domain="b"))
        assert [part.domain for part in load_rules(path, environ={}).parts] == ["b", "d"]

    def test_attributes_are_read_of_a_mapping_whichever_file_names_them(self, tmp_path):
        one = 'domain: a\nattributes: {plan: "header:X-Plan"}\nrules:\n  - {name: a, by: plan, limit: 1 per hour}\n'
        with RateLimiter(folder(tmp_path / "r", a=one, b=text(domain="b"))) as limiter:
            assert limiter.peek({"plan": "gold"}).policies[0].rule == "a"
            assert limiter.rules.of("b").domain == "b"

    @pytest.mark.parametrize(
        ("files", "said"),
        [
            case(
                {"a": text(domain="a", response="{status: 420}"), "b": text(domain="b", response="{status: 429}")},
                ["b.yaml:2:1: 'response' is already in a.yaml (only one file may have this section)"],
                id="a second response",
            ),
            case(
                {"a": text(), "b": text()},
                ["b.yaml:1:1: a.yaml already has the domain 'd'"],
                id="a domain twice",
            ),
            case(
                {
                    "a": text(domain="a", attributes="{x: 'header:A'}"),
                    "b": text(domain="b", attributes="{x: 'header:B'}"),
                },
                ["b.yaml:2:1: 'x' is 'header:A' in a.yaml, but 'header:B' here"],
                id="an attribute that means two things",
            ),
            case(
                {"a": text("nonsense", domain="a"), "b": "- 1\n"},
                [
                    (
                        "a.yaml:3:30: rules[0].limit: 'nonsense' is not a limit (write N per [M] millisecond, second, "
                        "minute, hour, day, week, month or year, for example 100 per minute; or unlimited)"
                    ),
                    "b.yaml:1:1: a rules file must be a mapping with domain and rules, not a list",
                ],
                id="every file's problems at once",
            ),
            case(
                {"a": text(domain="a", client="{user: 'nowhere:x'}"), "b": text(domain="b")},
                ["a.yaml:2:16: client.user: WRONG"],
                id="a wrong client, once though it holds for both",
            ),
            case(
                {"a": "domain: a\nrules: {source: 'redis://h/0'}\n", "b": text(domain="b")},
                ["a.yaml:2:1: 'source' is only allowed if the configuration is a single file or mapping"],
                id="rules that are elsewhere, in a folder",
            ),
        ],
    )
    def test_what_the_files_do_not_agree_on_is_said(self, tmp_path, monkeypatch, files, said):
        folder(tmp_path / "r", **files)
        monkeypatch.chdir(tmp_path / "r")
        found = [line.removeprefix("./") for line in problems_of(".")]
        assert [re.sub(r"'nowhere:x' is not a source.*", "WRONG", line) for line in found] == said

    def test_a_folder_without_rules(self, tmp_path):
        assert problems_of(tmp_path) == [
            f"{tmp_path}: no rules files in this folder (their names end in .yaml or .yml)"
        ]


class TestFiles:
    def test_what_has_not_changed_is_the_same_object(self, tmp_path):
        file = tmp_path / "r.yaml"
        file.write_text(text())
        source = FilesSource(file)
        assert source.fetch() is source.fetch()

    @pytest.mark.parametrize("folder_", [False, True], ids=["a file", "a folder"])
    @pytest.mark.parametrize("way", ["written over", "renamed over", "a link that is turned", "same time and size"])
    def test_a_change_is_seen_however_it_is_made(self, tmp_path, way, folder_):
        place = tmp_path / "r"
        place.mkdir()
        file = place / "r.yaml"
        old, new = text("5 per minute"), text("7 per minute")
        if way == "a link that is turned":  # as Kubernetes does with a ConfigMap
            for name, content in (("..1", old), ("..2", new)):
                (place / name).mkdir()
                (place / name / "r.yaml").write_text(content)
            (place / "..data").symlink_to("..1")
            file.symlink_to("..data/r.yaml")
        else:
            file.write_text(old)
        source = FilesSource(place if folder_ else file)
        before = source.fetch()
        stat = file.stat()
        if way == "written over":
            file.write_text(new)
        elif way == "renamed over":
            (tmp_path / "new").write_text(new)
            (tmp_path / "new").replace(file)
        elif way == "same time and size":
            file.write_text(new)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        else:
            (place / "..next").symlink_to("..2")
            (place / "..next").replace(place / "..data")
        after = source.fetch()
        assert after.version != before.version
        assert after.documents[0].content == new.encode()

    def test_a_file_that_comes_or_goes_changes_a_folder(self, tmp_path):
        place = folder(tmp_path / "r", a=text(domain="a"))
        source = FilesSource(place)
        versions = [source.fetch().version]
        folder(place, b=text(domain="b"))
        versions.append(source.fetch().version)
        (place / "b.yaml").unlink()
        versions.append(source.fetch().version)
        assert versions[0] == versions[2] != versions[1]

    def test_touched_and_no_more_it_is_the_same_version(self, tmp_path):
        file = tmp_path / "r.yaml"
        file.write_text(text())
        source = FilesSource(file)
        before = source.fetch()
        os.utime(file, (1, 1))
        assert source.fetch() is before

    def test_a_file_that_is_gone(self, tmp_path):
        file = tmp_path / "r.yaml"
        file.write_text(text())
        source = FilesSource(file)
        source.fetch()
        file.unlink()
        with pytest.raises(ConfigurationError, match="can't read the rules file: No such file"):
            source.fetch()

    def test_a_file_that_never_rests_is_not_read_by_halves(self, tmp_path):
        file = tmp_path / "r.yaml"
        file.write_text(text())
        stopped = threading.Event()

        def write():
            number = 0
            while not stopped.wait(0.0005):
                number += 1
                os.utime(file, ns=(number, number))

        source = FilesSource(file)
        before = source.fetch()
        writer = threading.Thread(target=write)
        writer.start()
        try:
            assert source.fetch() is before
        finally:
            stopped.set()
            writer.join()


class TestTable:
    @pytest.mark.parametrize("scheme", ["lmdb", "memory"])
    def test_a_store_that_is_no_server_is_no_source(self, scheme):
        with pytest.raises(ConfigurationError, match=f"rules can't be in {scheme}://; use redis://"):
            open_source(f"{scheme}://shop")

    def test_each_scheme_opens_a_source_without_connecting(self):
        urls = {
            "redis": "redis://u:hunter2@h/0",
            "rediss": "rediss://h/0",
            "unix": "unix:///s",
            "redis+sentinel": "redis+sentinel://h:1/main/0",
            "redis+cluster": "redis+cluster://h:1",
        }
        assert set(urls) == {scheme for scheme, kind in STORES.items() if kind.server}
        for url in urls.values():
            source = open_source(url)
            assert "hunter2" not in source.name
            source.close()

    def test_a_url_that_can_t_be_read(self):
        with pytest.raises(ConfigurationError, match=r"^rules: "):
            open_source("redis+sentinel://h:1")

    def test_a_mapping_never_changes(self):
        source = open_source({"domain": "d"})
        assert source.fetch() is source.fetch()
        assert not source.longest


# ------------------------------------------------------------------------------------------ the rules database


@pytest.fixture
def database(any_server):
    database = RulesDatabase(any_server.url)
    yield database
    database.close()


def document(limit="5 per minute", **more):
    return [Document("r.yaml", text(limit, **more).encode())]


class TestDatabase:
    def test_push_and_pull(self, tmp_path, database):
        file = tmp_path / "limits.yaml"
        file.write_text(text())
        assert database.push(file, author="ann", comment="first") == 1
        assert database.pull() == (Document("limits.yaml", text().encode()),)
        (only,) = database.list()
        assert (only.number, only.author, only.comment, only.files) == (1, "ann", "first", ("limits.yaml",))

    def test_a_folder_and_a_mapping_can_be_pushed(self, tmp_path, database):
        database.push(folder(tmp_path / "r", a=text(domain="a"), b=text(domain="b")))
        assert [name for name, _ in database.pull()] == ["a.yaml", "b.yaml"]
        database.push({"domain": "m", "rules": [{"name": "r", "limit": "1/s"}]})
        assert load_documents(database.pull(), environ={}).domain == "m"

    def test_what_would_not_load_is_refused_with_its_lines(self, database):
        with pytest.raises(ConfigurationError, match=r"r\.yaml:2:1: unknown key 'storag'"):
            database.push(document(storag="x"))
        with pytest.raises(ConfigurationError, match="can't read"):
            database.push("no/such/file.yaml")
        with pytest.raises(ConfigurationError, match="refer to another source"):
            database.push([Document("r.yaml", b"domain: d\nrules: {source: 'redis://h/0'}\n")])
        assert database.list() == ()

    def test_a_push_on_a_base_that_has_passed_changes_nothing(self, database):
        database.push(document())
        assert database.push(document("6 per minute"), base=1) == 2
        with pytest.raises(VersionConflict) as caught:
            database.push(document("7 per minute"), base=1)
        assert caught.value.version == 2
        assert [version.number for version in database.list()] == [2, 1]

    def test_pushes_at_once_lose_none(self, any_server):
        def push(number):
            own = RulesDatabase(any_server.url)
            for n in range(5):
                own.push(document(f"{number * 5 + n + 1} per minute"))
            own.close()

        threads = [threading.Thread(target=push, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        database = RulesDatabase(any_server.url)
        assert [version.number for version in database.list(100)] == list(range(40, 0, -1))
        texts = {database.pull(number)[0].content for number in range(1, 41)}
        assert texts == {text(f"{n} per minute").encode() for n in range(1, 41)}
        database.close()

    def test_diff_and_rollback(self, database):
        database.push(document())
        database.push(document("9 per minute"))
        changed = [line for line in database.diff(1).splitlines() if line[0] in "+-" and line[:3] not in ("+++", "---")]
        assert changed == [
            "-  - {name: a, by: ip, limit: 5 per minute}",
            "+  - {name: a, by: ip, limit: 9 per minute}",
        ]
        assert database.diff(2, 2) == ""
        assert database.rollback(1, author="bob") == 3
        assert database.pull(3) == database.pull(1)
        assert database.list(1)[0].comment == "as version 1"

    def test_a_version_that_there_is_not(self, database):
        with pytest.raises(LookupError, match="no rules yet"):
            database.pull()
        database.push(document())
        with pytest.raises(LookupError, match="no version 2"):
            database.rollback(2)

    def test_the_oldest_versions_go(self, any_server, database):
        for _ in range(KEPT + 2):
            database.push(document())
        assert len(database.list(1000)) == KEPT
        assert any_server.admin.hlen("ratelimit_mw:rules") == 2 * KEPT + 1
        assert any_server.admin.ttl("ratelimit_mw:rules") == -1

    def test_books_by_name_are_apart(self, any_server, database):
        other = RulesDatabase(f"{any_server.url}#shop")
        other.push(document(domain="shop"))
        assert other.name.endswith("#shop")
        assert database.list() == ()
        other.close()

    def test_a_server_that_is_away(self, fresh_server):
        database = RulesDatabase(fresh_server.url)
        database.push(document())
        fresh_server.stop()
        with pytest.raises(StoreUnavailable):
            database.list()
        with pytest.raises(ConfigurationError, match="is unavailable"):
            database.fetch()
        fresh_server.start()
        assert database.push(document()) == 1
        database.close()

    def test_memory_is_no_database(self):
        with pytest.raises(ValueError, match="can't be in memory://"):
            RulesDatabase("memory://")


class TestLimiterOnADatabase:
    def test_it_goes_by_the_newest_version(self, any_server, database):
        database.push(document("5 per minute"))
        database.push(document("7 per minute"))
        with RateLimiter(any_server.url) as limiter:
            assert limit_of(limiter) == 7
            assert limiter.state.version == "2"

    def test_one_that_was_deleted_and_filled_again_is_read_again(self, any_server, database):
        database.push(document("5 per minute"))
        with RateLimiter(any_server.url) as limiter:
            any_server.admin.delete("ratelimit_mw:rules")
            database.push(document("7 per minute"))
            limiter.reload()
            assert limit_of(limiter) == 7
            assert limiter.state.version == "1"

    def test_an_empty_one_has_no_rules_to_begin_with(self, any_server):
        with pytest.raises(ConfigurationError, match=r"is empty \(fill it with: ratelimit-mw rules push\)"):
            RateLimiter(any_server.url)

    def test_a_file_can_say_that_the_rules_are_there(self, tmp_path, any_server, database):
        database.push(document("7 per minute"))
        frame = tmp_path / "r.yaml"
        frame.write_text(f"domain: d\nresponse: {{status: 420}}\nrules: {{source: '{any_server.url}'}}\n")
        with RateLimiter(frame) as limiter:
            assert limit_of(limiter) == 7
            assert limiter.rules.response.status == 420
            database.push(document("8 per minute"))
            limiter.reload()
            assert limit_of(limiter) == 8
            frame.write_text(frame.read_text().replace("420", "429"))
            limiter.reload()
            assert limiter.rules.response.status == 429
            frame.write_text(text("3 per minute"))
            limiter.reload()
            assert limit_of(limiter) == 3

    def test_a_mapping_can_say_so_too(self, any_server, database):
        database.push(document("7 per minute"))
        with RateLimiter({"domain": "d", "rules": {"source": any_server.url}}) as limiter:
            assert limit_of(limiter) == 7

    def test_with_a_file_around_it_starts_while_the_database_is_away(self, fresh_server, caplog):
        with RateLimiter({"domain": "d", "rules": {"source": fresh_server.url}}) as limiter:
            assert "is empty" in caplog.text
            assert "no request is limited until the rules can be read" in caplog.text
            assert limit_of(limiter) is None
            RulesDatabase(fresh_server.url).push(document("7 per minute"))
            limiter.reload()
            assert limit_of(limiter) == 7
        fresh_server.stop()
        with RateLimiter({"domain": "d", "rules": {"source": fresh_server.url}}) as limiter:
            assert limit_of(limiter) is None
        with pytest.raises(ConfigurationError, match="is unavailable"):
            RateLimiter(fresh_server.url)

    def test_rules_that_can_t_be_used_stop_the_start_all_the_same(self, any_server):
        put = {"rules:1": json.dumps({"r.yaml": "domain: d\nrules: 1\n"})}
        records = open_records(any_server.url)
        records.write("ratelimit_mw:rules", put)
        records.close()
        with pytest.raises(ConfigurationError, match=r"r\.yaml:2:8"):
            RateLimiter({"domain": "d", "rules": {"source": any_server.url}})

    @pytest.mark.parametrize(
        ("frame", "said"),
        [
            case({"rules": {"source": "URL", "sauce": 1}}, "unknown key 'sauce'", id="another key"),
            case({"rules": {"source": "memory://"}}, "rules can't be in memory://", id="memory"),
            case({"rules": {"source": 5}}, "is not a storage URL", id="no URL"),
            case(
                {"rules": {"source": "URL"}, "exempt": []}, "'exempt' must be in the rules at the source", id="exempt"
            ),
            case(
                {"domain": "e", "rules": {"source": "URL"}},
                "no rules for the domain 'e' (it has rules for 'd')",
                id="domain",
            ),
        ],
    )
    def test_a_file_around_it_that_is_wrong(self, any_server, database, frame, said):
        database.push(document())
        frame = {"domain": "d", **frame}
        if frame["rules"]["source"] == "URL":
            frame["rules"] = {**frame["rules"], "source": any_server.url}
        with pytest.raises(ConfigurationError) as caught:
            RateLimiter(frame)
        assert said in str(caught.value)
