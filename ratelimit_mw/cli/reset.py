"""`ratelimit-mw reset`."""

from functools import partial
from typing import Annotated

import typer

from ratelimit_mw.cli.counters import Limits, chosen, chosen_preflights, known_rule, scanned, stems
from ratelimit_mw.cli.engine import opened, patiently, shared_store
from ratelimit_mw.cli.options import DEFAULT_CONFIG, Attribute, Config, Ip, Json, Storage, Tier, User, attributes
from ratelimit_mw.cli.output import Exit, fail, say, say_json

_BATCH = 200


def reset(
    rule: Annotated[str | None, typer.Argument(help="The rule's name.")] = None,
    *,
    ip: Ip = None,
    user: User = None,
    tier: Tier = None,
    attribute: Attribute = None,
    everything: Annotated[bool, typer.Option("--all", help="The counters of all rules.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before many counters are forgotten.")] = False,
    config: Config = DEFAULT_CONFIG,
    storage: Storage = None,
    as_json: Json = False,
) -> None:
    """Make a rule's counters as if unused: those of one client, or of all, once that is confirmed.

    Those of a client's CORS preflights are forgotten with them. A process that remembers a denial may repeat it for up
    to five seconds.
    """
    given = attributes(ip, user, tier, attribute)
    if (rule is None) != everything or (everything and given):
        fail("say a rule, and perhaps a client; or --all alone", Exit.USAGE)
    with opened(config, storage) as limiter:
        limits = Limits(limiter.rules)
        if rule is not None:
            known_rule(limits, rule)
        keys = chosen(limits, limiter.rules, rule, given) if rule is not None and given else None
        preflights = chosen_preflights(limits, limiter.rules, rule, given) if rule is not None and given else []
        store = shared_store(limiter.rules, storage)
        try:
            if keys is None:
                keys = list(scanned(store, stems(limits, rule)))
                _confirm(f"Forget {len(keys)} counters of {f'{rule!r}' if rule else 'all rules'}?", yes=yes, keys=keys)
            forgotten = [*keys, *preflights]
            for start in range(0, len(forgotten), _BATCH):
                patiently(partial(store.forget, forgotten[start : start + _BATCH]))
        finally:
            store.close()
    if as_json:
        say_json({"reset": keys})
    else:
        say(f"{len(keys)} counter{'s' * (len(keys) != 1)} reset")


def _confirm(question: str, *, yes: bool, keys: list[str]) -> None:
    if keys and not yes:
        typer.confirm(question, abort=True, err=True)
