"""The rules of an app that asks a service: all that is known here is what to ask.

Addresses, methods, paths, hosts, tiers and entries are sent as they are, because the rules of the service match them.
All other values are hashed with `client.secret`. Clients write most of these texts, and the service refuses a whole
batch for one that it cannot use. None is therefore too long, or has half of a surrogate pair.
"""

import json
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from ratelimit_mw.algorithms import NOTHING
from ratelimit_mw.identity.attributes import Reader
from ratelimit_mw.identity.fields import BY_ADDRESS
from ratelimit_mw.identity.request import EntriesRequest, MappingRequest, Request
from ratelimit_mw.model import Ask, Charge, Rule
from ratelimit_mw.rules.compiled import BLOCKED, NamedRule
from ratelimit_mw.rules.ruleset import REFUSED, RuleSet, Selection

ASKED = "(service)"
"""The name of the rule that stands for all rules of the service, as while it is away."""

_PLAIN = frozenset(("ip", "method", "host", "tier", "route"))
_LONGEST = 512
"""The longest JSON of a value that is sent as it is. A question of 32 entries fits into one body."""

_HEAD = 64
"""The characters of a longer value that are sent, because a descriptor may have `*` behind them. Its hash follows."""

_LONGEST_PATH = 4096
"""The most bytes of a path. The service takes no more. A path that is cut would avoid the rules that match its end."""

MOST_ATTRIBUTES = 32
"""The most attributes or entries of a question, see `service.checks`."""

_PREFLIGHT = ("origin", "access-control-request-method")

_write = json.JSONEncoder(separators=(",", ":")).encode


class AskingRules(RuleSet):
    """What one domain of a service is asked. Exemptions and overrides apply here, and such a request is not asked.

    The arguments are those of `RuleSet`, without rules.
    """

    def __init__(self, **sections: Any) -> None:
        super().__init__(**sections)
        self._rule = Rule(ASKED, self.storage.on_error, domain=self.domain)
        attributes, client = self.attributes, self.client
        own = [*(("user",) if client.user else ()), *(("tier",) if client.tier else ()), *client.attributes]
        attributes.reader("ip")  # so that `attributes` knows of its use
        self._readers: list[tuple[str, Reader]] = [(name, attributes.reader(name)) for name in ("path", "host", *own)]
        names = ("remote_address", "method", "path", "host", *own)
        self._end = f'"domain":{quoted(self.domain)}}}'
        self.asking = "{" + self._question(dict.fromkeys(names, '"127.0.0.1"'))
        """The question that tries the service: it has all attributes that requests have."""

    def plan(self, request: Request, cost: int = 1, named: str = "") -> tuple[Charge, ...]:
        """Return the charge whose ask is the question about a request, or none if the request is exempt.

        `named` is the JSON of further members of the question.
        """
        if type(request) is EntriesRequest:
            entries = [f"[{self._matched(key)},{self._matched(value)}]" for key, value in request.entries]
            return self._charges_of(f'"entries":[{_joined(entries)}],{named}{self._end}', cost) if entries else ()
        return self._in_each(request, lambda view, agreed: self._asked(view, self.select(view, agreed), cost, named))

    def plan_rule(self, asked: NamedRule, request: Request, cost: int = 1) -> Sequence[Charge] | None:
        """Return the charge that asks for one rule of the service. Raises ValueError if the app sets its limit."""
        name, key, limit = asked
        if limit is not None:
            raise ValueError(f"the limit {limit!r} can't be used: the service decides by its own rules")
        named = {"rule": name} if key is None else {"rule": name, "key": key and self.attributes.digest(key)}
        return self.plan(request, cost, f"{_write(named)[1:-1]},")

    def _asked(self, request: Request, selection: Selection, cost: int, named: str) -> tuple[Charge, ...]:
        free = selection[2]
        if free is not None:
            return BLOCKED if free == REFUSED else ()
        if len(request.path) > _LONGEST_PATH // 4 and len(_text(request.path).encode()) > _LONGEST_PATH:
            return BLOCKED
        return self._charges_of(self._question(self._attributes_of(request), named), cost)

    def _charges_of(self, question: str, cost: int) -> tuple[Charge, ...]:
        return (Charge(self._rule, Ask(f"{self.key}:{ASKED}:{{{question}", NOTHING, cost)),)

    def _question(self, found: dict[str, str], named: str = "") -> str:
        """The question with these attributes, whose values are JSON, without its first brace."""
        attributes = _joined([f"{quoted(name)}:{value}" for name, value in found.items()])
        return f'"attributes":{{{attributes}}},{named}{self._end}'

    def _attributes_of(self, request: Request) -> dict[str, str]:
        """The attributes of a request that the service gets, each with its JSON."""
        found: dict[str, str] = {}
        address = self.attributes.address(request)
        if address is not None:
            found["remote_address"] = quoted(address)
        if request.method:
            found["method"] = self._matched(request.method)
        for name, read in self._readers:
            value = request.path if name == "path" and request.context is not None else read(request)
            if value is not None:
                found[name] = self._json(name, value, address)
        if request.method == "OPTIONS" and request.context is not None:
            for name in _PREFLIGHT:
                lines = request.header_lines(name)
                if len(lines) == 1:
                    found[f"header:{name}"] = self._matched(lines[0])
        elif isinstance(request, MappingRequest):
            for name, value in (*request.values.items(), *request.raw.items()):
                if value and name != "ip" and not name.startswith("("):
                    found[name] = self._json(name, value, address)
        return found

    def _json(self, name: str, value: str, address: str | None) -> str:
        """The JSON of an attribute."""
        if name == "path":
            return quoted(_text(value))
        if name in _PLAIN or name.startswith("path:"):
            return self._matched(value)
        return quoted(self.attributes.digest_of(name)(f"ip={address}" if value == BY_ADDRESS else value))

    def _matched(self, value: str) -> str:
        """The JSON of a value that rules of the service match."""
        written = quoted(value)
        if len(written) <= _LONGEST and (value.isascii() or value == _text(value)):
            return written
        return quoted(f"{_text(value[:_HEAD])}#{self.attributes.digest(value)}")


def client_of(key: str) -> str:
    """Return the key of an ask, with the client in place of the question. Logs have it."""
    stem, _, _ = key.partition("{")
    found = json.loads(key[len(stem) :]).get("attributes", {})
    named = (("ip", found.get("remote_address")), ("user", found.get("user")))
    return f"{stem}{{{'+'.join(f'{name}={value}' for name, value in named if value)}}}"


def _text(value: str) -> str:
    """Return the value with a question mark for each half of a surrogate pair."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def _joined(found: Sequence[str]) -> str:
    if len(found) > MOST_ATTRIBUTES:
        raise ValueError(f"an app sends a service at most {MOST_ATTRIBUTES} attributes or entries")
    return ",".join(found)
