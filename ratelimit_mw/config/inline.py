"""Inline limits: reads what a decorator declares, as `limited("5 per minute", by="user")`, and compiles it to a rule.

The text is read and compiled by the words of a rules file, so it means what it would mean there.
"""

import re

from ratelimit_mw.config.documents import convert
from ratelimit_mw.config.tree import Map, Place, Problems
from ratelimit_mw.config.word import Values
from ratelimit_mw.config.words.limit import parse_limit
from ratelimit_mw.config.words.rule import RULE, compile_rule
from ratelimit_mw.config.words.selection import NAME
from ratelimit_mw.errors import ConfigurationError, DurationError, Problem, quoted
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.identity.identifier import attributes_of
from ratelimit_mw.rules.compiled import CompiledRule, Matching
from ratelimit_mw.rules.inline import InlineLimit
from ratelimit_mw.settings import ClientSettings

_CUSTOM = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def reads_as_limit(text: str) -> bool:
    """Return True if `text` is a limit, False if it is the name of a rule.

    Raises ConfigurationError for a text that begins with a number and is not a limit: it is a limit with a mistake.
    """
    try:
        parse_limit(text)
    except DurationError as error:
        if text.strip()[:1].isdigit():
            raise ConfigurationError([Problem(f"limited({quoted(text)}): {error}", hint=error.hint)]) from None
        return False
    return True


def validate_inline(limit: InlineLimit, cost: int) -> None:
    """Check an inline limit where it is declared, before there is a rules file.

    A name in `by` that is not built in may be an attribute of the file. That is known when the limit is compiled.

    Args:
        limit: The limit. Its name is used only if it is shared.
        cost: What each request will be charged.

    Raises:
        ConfigurationError: No rules file could use the limit. The error has every problem found.
    """
    names = [name for entry in limit.by for name in attributes_of(entry)]
    known = Attributes(ClientSettings(""))
    possible = {name: "header:X" for name in names if _CUSTOM.fullmatch(name) and not _is_built_in(name, known)}
    attributes = Attributes(ClientSettings("", attributes=possible), {"secret"})  # the file may have a secret
    InlineRules(Values(Map(Place())), "", attributes, 0).compile(limit, cost)


def _is_built_in(name: str, attributes: Attributes) -> bool:
    return attributes.known(name) or name in ("global", "route", "connection")


class InlineRules:
    """Compiles inline limits by the settings of one rules file. See `rules.inline.InlineCompiler`.

    Args:
        file: The values of the file. Its lists are not needed.
        domain: The domain of the file.
        attributes: The attributes that rules may use.
        rank: The rank of the rules that are made: behind those of the file.
    """

    def __init__(self, file: Values, domain: str, attributes: Attributes, rank: int) -> None:
        self._file = file
        self._domain = domain
        self._attributes = attributes
        self._rank = rank

    def compile(self, limit: InlineLimit, cost: int = 1) -> CompiledRule:
        """Return the rule of a limit. It is on demand, and has the defaults of a rule in the file.

        `cost` is only checked: the one who asks for the rule passes it.

        Raises ConfigurationError with every problem of the limit.
        """
        problems = Problems()
        words: dict[str, object] = {"name": limit.name if limit.shared else "inline", "limit": limit.limit}
        if limit.by:
            words["by"] = list(limit.by)
        if cost > 1:
            words["cost"] = cost
        node = convert({**words, "on_demand": True}, {}, problems)
        if isinstance(node, Map):
            # A qualified name may be longer than the names in a file.
            rule = RULE.read(node, problems).with_value(NAME, limit.name)
            made = compile_rule(self._rank, rule, self._file, self._domain, {}, Matching(), self._attributes, problems)
            if not problems:
                return made
        of = f" of {limit.name}" if limit.name else ""
        raise ConfigurationError(
            [
                Problem(f"the limit {quoted(limit.limit)}{of}: {problem.message}", hint=problem.hint)
                for problem in problems.in_order()
            ]
        )
