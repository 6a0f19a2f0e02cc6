"""`ratelimit-mw show`."""

from collections.abc import Iterable
from itertools import chain
from typing import Annotated

import typer

from ratelimit_mw.cli.counters import (
    Found,
    Limits,
    chosen,
    chosen_preflights,
    known_rule,
    nearest_full,
    read,
    scanned,
    stems,
)
from ratelimit_mw.cli.engine import opened, shared_store
from ratelimit_mw.cli.options import DEFAULT_CONFIG, Attribute, Config, Ip, Json, Most, Storage, Tier, User, attributes
from ratelimit_mw.cli.output import say, say_json, say_table
from ratelimit_mw.decision.explanation import seconds


def show(
    rule: Annotated[str, typer.Argument(help="The rule's name.")],
    *,
    ip: Ip = None,
    user: User = None,
    tier: Tier = None,
    attribute: Attribute = None,
    most: Most = 20,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Show a rule's counters: those of one client, or of all, the fullest first. Nothing is charged.

    A client's counters of CORS preflights are shown if it has sent some.

    Where a limit goes by tier, the default's is shown.
    """
    given = attributes(ip, user, tier, attribute)
    with opened(config, storage) as limiter:
        limits = Limits(limiter.rules)
        known_rule(limits, rule)
        keys = chosen(limits, limiter.rules, rule, given) if given else None
        store = shared_store(limiter.rules, storage)
        try:
            found = read(store, limits, scanned(store, stems(limits, rule)) if keys is None else keys)
            if keys is not None:
                preflights = read(store, limits, chosen_preflights(limits, limiter.rules, rule, given))
                found = chain(found, (each for each in preflights if each.used and each.reset_after))
            tell(nearest_full(found, most), as_json=as_json)
        finally:
            store.close()


def tell(counters: Iterable[Found], *, as_json: bool) -> None:
    """Print counters, one in a line."""
    counters = list(counters)
    if as_json:
        say_json(counters)
    elif not counters:
        say("no counters: nobody has been counted lately")
    else:
        columns = ("rule", "client", "limit", "algorithm", ">used", ">left", ">as if unused in")
        say_table(columns, map(_row, counters))


def _row(counter: Found) -> tuple[object, ...]:
    return (
        counter.rule,
        counter.identity,
        counter.limit,
        counter.algorithm,
        f"{counter.used:.0%}",
        counter.remaining,
        seconds(counter.reset_after),
    )
