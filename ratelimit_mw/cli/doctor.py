"""`ratelimit-mw doctor` finds in one command what makes a limit fail silently. `CHECKS` is the table of the checks."""

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from importlib.metadata import distributions, requires
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from ratelimit_mw.cli import Exit
from ratelimit_mw.cli.common import DEFAULT_CONFIG, ConfigArgument, Json, Storage, open_limiter, say_json
from ratelimit_mw.cli.routes import ReadApp, changing_identities, read_app, rows_of
from ratelimit_mw.decision.kill_switch import SWITCH
from ratelimit_mw.errors import PermanentFault, StoreUnavailable
from ratelimit_mw.foresight.wording import counted
from ratelimit_mw.identity.identifier import attributes_of
from ratelimit_mw.model import SECOND, Ask, Quota
from ratelimit_mw.process_local import workers_of_server
from ratelimit_mw.reload.controls import Setting
from ratelimit_mw.rules.domains import Rules
from ratelimit_mw.settings import StorageSettings
from ratelimit_mw.stores import kind_of, open_store, with_domain

State = Literal["ok", "note", "wrong"]
"""`note`: it may be wrong, which the command cannot know."""

_MARKS: Mapping[State, str] = {"ok": "✓", "note": "!", "wrong": "✗"}

_DECISIONS = 20
"""How many decisions are timed."""

_PATIENCE = 2.0
"""The seconds that the command waits for the store."""

_LARGEST_SKEW = 5.0
"""The most seconds by which the clocks of the store and of this machine may differ."""

_START = "start it, or correct the host and the port in the storage URL"
_REMEDIES: Mapping[str, str] = {
    "OOM": "raise maxmemory on the server, or give the counters a server of their own",
    "READONLY": "name the primary in the storage URL, not a replica, or use redis+sentinel://",
    "LOADING": "wait until the server has loaded its data",
}
"""What helps against errors of the server that may pass by themselves, by their codes."""

_OLDEST_REDIS = [6, 2]
_SHOWN = 5
_NOT_HASHED = {"ip", "global", "method", "tier", "host", "path", "route"}
"""The attributes of `by` that are no secret, or whose values anyone can guess."""


class Finding(NamedTuple):
    """What a check has found.

    Attributes:
        state: Whether it is as it should be.
        what: What was found.
        remedy: What to do. "" if nothing is to be done.
    """

    state: State
    what: str
    remedy: str = ""


class Setup(NamedTuple):
    """What is checked.

    Attributes:
        rules: The rules.
        error: Why newer rules are not in force. None if these are the newest.
        switch: The kill switch.
        storage: The store, with the URL that is in use.
        app: What was read of the app. None if none was named.
        workers: How many processes the app has, as far as is known.
    """

    rules: Rules
    error: str | None
    switch: Setting
    storage: StorageSettings
    app: ReadApp | None
    workers: int


def _rules(setup: Setup) -> Iterator[Finding]:
    if setup.error is not None:
        yield Finding(
            "wrong", f"the newest rules are not in force: {setup.error}", "start their server, or correct them"
        )
    yield Finding("ok", counted(len(setup.rules.rules), "rule"))
    shadows = [part.domain for part in setup.rules.parts if part.shadow]
    if shadows:
        yield Finding("wrong", f"shadow: {', '.join(shadows)} is not enforced", "remove shadow: true")


def _switch(setup: Setup) -> Iterator[Finding]:
    word, source = setup.switch.word, setup.switch.source
    if word == "on":
        yield Finding("ok", "the kill switch is on: limits apply")
    else:
        where, remedy = f"in {source}", "ratelimit-mw switch on"
        if source == "environment":
            where, remedy = f"by {SWITCH} in the environment", f"unset {SWITCH}"
        yield Finding("wrong", f"the kill switch is at {word}, {where}: no limit is enforced", remedy)


_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)[^;]*;.*?(?:python_version < ['\"](?P<python>[\d.]+).*)?extra == ['\"](?P<extra>\w+)"
)
"""A requirement of an extra in the metadata, such as `numpy>=1; (python_version < '4') and extra == 'foresight'`."""


def _extras(_setup: Setup) -> Iterator[Finding]:
    """Find the extras whose packages are installed."""
    complete: dict[str, bool] = {}
    for name, python, extra in (
        each.groups() for each in map(_REQUIREMENT.match, requires("ratelimit_mw") or ()) if each
    ):
        if python is None or _numbers(python) > [*sys.version_info[:2]]:
            complete[extra] = complete.get(extra, True) and any(distributions(name=name))
    extras = sorted(complete)
    yield Finding("ok", f"complete: {', '.join(each for each in extras if complete[each]) or 'none'}")
    missing = [each for each in extras if not complete[each]]
    if missing:
        remedy = "if the app needs one: pip install 'ratelimit_mw[NAME]'"
        yield Finding("note", f"not complete: {', '.join(missing)}", remedy)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text.partition("+")[0])]


def _server(setup: Setup) -> Iterator[Finding]:
    """Check the server: rights, round trip, version, clock and eviction policy."""
    if not kind_of(setup.storage.url).server:
        return
    from ratelimit_mw.stores.redis.records import CommandClient  # late: most commands need no server

    store, domain = open_store(replace(setup.storage, timeout=_PATIENCE)), setup.rules.domain
    client, ask = CommandClient(setup.storage.url), Ask(f"{domain}:doctor", Quota("fixed_window", 1_000_000, SECOND))
    with closing(store), closing(client):
        store.connect(domain)
        took = sorted(_timed(lambda: store.decide([ask])) for _ in range(_DECISIONS))
        yield _round_trip(took, setup.storage)
        yield _clock(client, domain)
        yield from _information(client, domain)


def _away(error: StoreUnavailable, url: str) -> Finding:
    """Return the finding on a store, at this URL, that cannot be used."""
    if isinstance(error, PermanentFault):
        remedy = error.remedy
    else:
        remedy = _REMEDIES.get(str(error).split()[0], _START) if kind_of(url).server else "repeat the command"
    return Finding("wrong", f"the store can't be used, so storage.on_error decides: {error}", remedy)


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _round_trip(took: list[float], storage: StorageSettings) -> Finding:
    slowest = took[-1]
    what = (
        f"it decides. {len(took)} decisions took {_milliseconds(took[len(took) // 2])} each, the slowest "
        f"{_milliseconds(slowest)}; storage.timeout is {_milliseconds(storage.timeout)}"
    )
    if slowest < storage.timeout:
        return Finding("ok", what)
    remedy = (
        f"bring the store closer, or set storage.timeout: {slowest * 2000:.0f}ms. For late requests, on_error decides"
    )
    return Finding("wrong", what, remedy)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms"


def _clock(client: Any, domain: str) -> Finding:
    before = time.time()
    seconds, micros = client.ask(domain, "TIME")
    return about_clock(int(seconds) + int(micros) / SECOND - (before + time.time()) / 2)


def about_clock(skew: float) -> Finding:
    """Return the finding on a server whose clock is `skew` seconds before that of this machine."""
    if abs(skew) <= _LARGEST_SKEW:
        return Finding("ok", "its clock agrees with that of this machine")
    what = f"its clock differs from this machine's by {skew:+.0f} s, and X-RateLimit-Reset is by its clock"
    return Finding("wrong", what, "synchronise both clocks (NTP)")


def _information(client: Any, domain: str) -> Iterator[Finding]:
    """Check what INFO says. A user with minimal rights may not ask it."""
    try:
        told = client.ask(domain, "INFO")
    except StoreUnavailable:
        remedy = "look for maxmemory-policy on the server: it must be noeviction if maxmemory is set"
        yield Finding("note", "its version and its eviction policy are unknown: the user may not ask INFO", remedy)
        return
    lines = told.decode("utf-8", "replace").splitlines()
    yield from about_server(dict(line.partition(":")[::2] for line in lines if ":" in line))


def about_server(fields: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings on a server, by the fields of its INFO."""
    known = fields.get("redis_version", "")
    if _numbers(known) < _OLDEST_REDIS:
        yield Finding("wrong", f"it is Redis {known}", "use Redis 6.2 or newer, or Valkey")
    policy = fields.get("maxmemory_policy", "")
    if fields.get("maxmemory", "0") != "0" and policy != "noeviction":
        what = f"maxmemory-policy is {policy}: a full server drops counters, and their clients begin again"
        yield Finding("wrong", what, "set maxmemory-policy noeviction, or give the counters a server of their own")
    else:
        yield Finding("ok", f"Redis {known}, which drops no counter")


def _file(setup: Setup) -> Iterator[Finding]:
    """Check the file of lmdb://: the owner, and space for it to grow. The file is not created."""
    if kind_of(setup.storage.url).server or not kind_of(setup.storage.url).records:
        return
    from ratelimit_mw.stores.shared.file import Location

    location = Location.parse(setup.storage.url)
    with closing(open_store(setup.storage)) as store:
        store.connect(setup.rules.domain)
    path = Path(location.path)
    taken = path.stat().st_blocks * 512 if path.exists() else 0
    free = shutil.disk_usage(path.parent).free
    if free < location.size - taken:
        what = f"{path} may grow to {location.size >> 20} MB, and its file system has {free >> 20} MB left"
        yield Finding("wrong", what, "free space there, or name a smaller size, as in lmdb://?size=64MB")
        return
    what = f"{path} {'can be used' if path.exists() else 'does not exist yet'}, and there is space for it"
    yield Finding("note", what, "run this command as the user of the workers, because the file is theirs")


def _workers(setup: Setup) -> Iterator[Finding]:
    if kind_of(setup.storage.url).records:
        yield Finding("ok", "all processes share the counters")
        return
    remedy = "use lmdb:// for the workers of one machine, redis:// for several machines"
    if setup.workers > 1:
        what = f"memory:// with {setup.workers} workers: clients get up to {setup.workers} times their limits"
        yield Finding("wrong", what, remedy)
    else:
        yield Finding("note", "memory://: each process counts by itself, and a restart resets the counters", remedy)


def _proxies(setup: Setup) -> Iterator[Finding]:
    client = setup.rules.client
    everybody = [str(network) for network in client.trusted_proxies if not network.prefixlen]
    if everybody:
        what = f"client.trusted_proxies has {', '.join(everybody)}: each client can choose its address"
        yield Finding("wrong", what, "list only the addresses of your proxies")
    elif client.trusted_proxies or client.trusted_hops:
        yield Finding("ok", f"the client's address is read from {client.ip_header} of the trusted proxies")
    elif any("ip" in part.attributes.used for part in setup.rules.parts):
        what = "no proxy is trusted: the client's address is the one that connects"
        remedy = "behind a proxy, add it to client.trusted_proxies: otherwise its clients share one counter"
        yield Finding("note", what, remedy)


def _secret(setup: Setup) -> Iterator[Finding]:
    for part in setup.rules.parts:
        counted = {name for rule in part.compiled for entry in rule.by for name in attributes_of(entry)}
        hashed = sorted(name for name in counted - _NOT_HASHED if not name.startswith("path:"))
        if part.client.secret or not hashed:
            yield Finding("ok", f"{part.domain}: no identity in the store can be guessed")
        else:
            what = f"{part.domain}: client.secret is empty, so anyone who reads the store can guess {', '.join(hashed)}"
            yield Finding("wrong", what, "set client.secret: ${RATELIMIT_SECRET} to one value in every process")


def _sessions(setup: Setup) -> Iterator[Finding]:
    for problem in changing_identities(setup.app, setup.rules) if setup.app else ():
        yield Finding("wrong", f"{problem.message}, and then the counter starts again", problem.hint)


def _routes(setup: Setup) -> Iterator[Finding]:
    if setup.app is None:
        yield Finding("note", "no app was read", "name the app with --app package.module:app")
        return
    rows = list(rows_of(setup.app.routes, setup.rules))
    free = [f"{row.shown_methods} {row.path}" for row in rows if not row.rules and not row.exempt]
    if free:
        more = f" and {len(free) - _SHOWN} more" if len(free) > _SHOWN else ""
        what = f"no rule limits {', '.join(free[:_SHOWN])}{more}"
        yield Finding("wrong", what, "add a rule without match.path, such as limit: 100 per minute, or exempt them")
    else:
        yield Finding("ok", f"each of {len(rows)} routes has a rule, or is exempt")


CHECKS: Mapping[str, Callable[[Setup], Iterator[Finding]]] = {
    "rules": _rules,
    "switch": _switch,
    "extras": _extras,
    "server": _server,
    "file": _file,
    "workers": _workers,
    "proxies": _proxies,
    "secret": _secret,
    "sessions": _sessions,
    "routes": _routes,
}
"""The checks by the names that the command shows. Each yields what it has found, or raises StoreUnavailable."""


def doctor(
    config: ConfigArgument = DEFAULT_CONFIG,
    *,
    app: Annotated[
        str | None, typer.Option("--app", metavar="MODULE:APP", help="Check the routes and the sessions of this app.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option("--workers", min=1, help="The processes of the app. Default: WEB_CONCURRENCY, or 1.")
    ] = None,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Find what makes a limit fail silently: the rules, the store, the proxies, the workers, and the routes of the app.

    `✗` is wrong, `!` may be wrong, and each has its remedy. The exit code is 1 if something is wrong.

    Run it where the app runs, with the environment and the user of the app. It charges a counter of its own.
    """
    read = None if app is None else read_app(app)
    with open_limiter(config, storage) as limiter:
        rules, switch = limiter.rules, limiter.engine.planner.switch.setting
        url = with_domain(limiter.storage_url, rules.parts[0].domain)
        where = replace(rules.storage, url=url)
        setup = Setup(rules, limiter.state.error, switch, where, read, workers or workers_of_server(["gunicorn"]))
    found = list(_findings(setup))
    wrong = sum(finding.state == "wrong" for _, finding in found)
    if as_json:
        say_json({"ok": not wrong, "findings": [{"check": name, **finding._asdict()} for name, finding in found]})
    else:
        width = max(len(name) for name, _ in found)
        for name, finding in found:
            typer.echo(f"{_MARKS[finding.state]} {name:<{width}}  {finding.what}")
            if finding.remedy:
                typer.echo(f"  {'':<{width}}  → {finding.remedy}")
        typer.echo(f"{wrong} wrong" if wrong else "nothing is wrong")
    raise typer.Exit(Exit.PROBLEMS if wrong else Exit.OK)


def _findings(setup: Setup) -> Iterator[tuple[str, Finding]]:
    """Yield what each check has found, after its name."""
    for name, check in CHECKS.items():
        try:
            yield from ((name, finding) for finding in check(setup))
        except StoreUnavailable as error:
            yield name, _away(error, setup.storage.url)
