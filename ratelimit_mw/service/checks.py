"""The checks that callers send to `/v1` as JSON: read with all problems at once. Also the JSON of decisions.

No problem quotes what a caller sent. A name that the rules do not have is hashed with the secret of the rules.

This module is internal: its names may change in any release.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

from ratelimit_mw.identity.request import Arguments
from ratelimit_mw.model import Decision
from ratelimit_mw.rules.domains import Rules, rule_names
from ratelimit_mw.rules.inline import ByName

MAX_BODY = 64 * 1024
"""The longest body, in bytes."""

MAX_CHECKS = 100
"""The most checks in one body."""

MAX_ENTRIES = 32
"""The most entries of one descriptor, and the most attributes of one check."""

MAX_TEXT = 4 * 1024
"""The longest key or value, in bytes of UTF-8."""

_MOST_PROBLEMS = 100
_RESET = ("attributes", "entries", "domain", "rule", "key")
_CHECK = (*_RESET, "cost")


class BadRequest(ValueError):
    """A body cannot be used.

    Args:
        problems: Every problem found.
        status: The status of the answer.
        reason: The name under which the request is counted.
    """

    def __init__(self, problems: Sequence[str], status: int = 400, reason: str = "bad_request") -> None:
        super().__init__(f"{len(problems)} problems")
        self.status = status
        self.reason = reason
        self.problems = list(problems[:_MOST_PROBLEMS])
        if len(problems) > _MOST_PROBLEMS:
            self.problems.append(f"… and {len(problems) - _MOST_PROBLEMS} more problems")


class Check(NamedTuple):
    """One check of a body. The fields are the arguments of `RateLimiter.check`."""

    attributes: Arguments
    cost: int
    domain: str | None
    named: ByName


def parsed(body: bytes) -> object:
    """Return the value of a JSON text.

    Raises:
        BadRequest: The text is not JSON in UTF-8.
    """
    try:
        return json.loads(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise BadRequest(["the body is not UTF-8"]) from error
    except json.JSONDecodeError as error:
        raise BadRequest([f"the body is not JSON: {error.msg} at line {error.lineno}"]) from error
    except RecursionError as error:
        raise BadRequest(["the body is nested too deeply"]) from error
    except ValueError as error:  # an integer of thousands of digits
        raise BadRequest(["the body has a number that cannot be used"]) from error


class CheckReader:
    """Reads the checks of a body, and collects all problems.

    Args:
        rules: The rules in force.
    """

    def __init__(self, rules: Rules) -> None:
        self._attributes = rules.attributes
        self._unread = rules.source is not None  # the rules are still to be read, so every name may be right
        self._domains = frozenset(part.domain for part in rules.parts)
        self._rules = rule_names(rules)
        self._rows: Any = False
        self.problems: list[str] = []

    def checks(self, value: object) -> tuple[list[Check], bool]:
        """Return the checks of a body, and whether the body has the form `{"checks": […]}`.

        Raises:
            BadRequest: The body cannot be used.
        """
        if isinstance(value, Mapping) and "checks" in value:
            self._refuse_unknown_keys(value, ("checks", "rows"), "")
            self._rows = value.get("rows", False)
            if type(self._rows) is not bool:
                self._add("rows", "must be true or false")
            listed = value["checks"]
            if not isinstance(listed, list) or not 1 <= len(listed) <= MAX_CHECKS:
                self.problems.append(f"checks: must be a list of 1 to {MAX_CHECKS} checks")
                listed = []
            checks = [self._check(each, f"checks[{index}]", _CHECK) for index, each in enumerate(listed)]
            self._finish()
            return checks, True
        return [self.one(value)], False

    def one(self, value: object, *, with_cost: bool = True) -> Check:
        """Return the only check of a body.

        Raises:
            BadRequest: The body cannot be used.
        """
        check = self._check(value, "", _CHECK if with_cost else _RESET)
        self._finish()
        return check

    def _finish(self) -> None:
        if self.problems:
            raise BadRequest(self.problems)

    def _check(self, value: object, at: str, keys: Sequence[str]) -> Check:
        if not isinstance(value, Mapping):
            self._add(at, "must be an object with attributes or entries")
            return Check({}, 1, None, {})
        self._refuse_unknown_keys(value, keys, at)
        attributes: Arguments = {}
        if ("attributes" in value) == ("entries" in value):
            self._add(at, "must have either attributes or entries")
        elif "attributes" in value:
            attributes = self._attributes_of(value["attributes"], _join(at, "attributes"))
        else:
            attributes = self._entries(value["entries"], _join(at, "entries"))
        cost = value.get("cost", 1)
        if type(cost) is not int or cost < 0:
            self._add(_join(at, "cost"), "must be a whole number of at least 0")
            cost = 1
        return Check(attributes, cost, self._domain(value.get("domain"), _join(at, "domain")), self._named(value, at))

    def _named(self, value: Mapping[str, Any], at: str) -> ByName:
        """The arguments `rule` and `key`. Rows are null for an unknown rule, so that other checks are decided."""
        named: Any = {name: value[name] for name in ("rule", "key") if value.get(name) is not None}
        for name, text in named.items():
            self._require_text(text, _join(at, name), "the value")
        rule = named.get("rule")
        if named and rule is None:
            self._add(_join(at, "key"), "needs a rule")
        elif isinstance(rule, str) and not (self._rows or self._unread or rule in self._rules):
            self._add(_join(at, "rule"), "the rules do not have this rule")
        return named  # type: ignore[no-any-return]  # checked above

    def _attributes_of(self, value: object, at: str) -> Mapping[str, str]:
        if not isinstance(value, Mapping) or len(value) > MAX_ENTRIES:
            self._add(at, f"must be an object of at most {MAX_ENTRIES} attributes")
            return {}
        for name, text in value.items():
            shown = f"{at}.{name}" if name in self._attributes.names() else f"{at}[#{self._attributes.digest(name)}]"
            if not (self._unread or self._attributes.known(name)):
                self._add(shown, f"is not an attribute; known are {', '.join(self._attributes.names())}")
            self._require_text(name, shown, "the name")
            self._require_text(text, shown, "the value")
        return value

    def _entries(self, value: object, at: str) -> Sequence[tuple[str, str]]:
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_ENTRIES:
            self._add(at, f"must be a list of 1 to {MAX_ENTRIES} entries")
            return []
        found = []
        for index, entry in enumerate(value):
            if not isinstance(entry, list) or len(entry) != 2:
                self._add(f"{at}[{index}]", "must be a list of a key and a value")
                continue
            self._require_text(entry[0], f"{at}[{index}]", "the key")
            self._require_text(entry[1], f"{at}[{index}]", "the value")
            found.append((entry[0], entry[1]))
        return found

    def _domain(self, value: object, at: str) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str):
            self._add(at, "must be a string or null")
            return None
        if value not in self._domains and not self._unread:
            self._add(at, "the rules do not have this domain")
        return value

    def _require_text(self, value: object, at: str, what: str) -> None:
        if not isinstance(value, str):
            self._add(at, f"{what} must be a string")
            return
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            self._add(at, f"{what} has half of a surrogate pair")
            return
        if size > MAX_TEXT:
            self._add(at, f"{what} is longer than {MAX_TEXT} bytes")

    def _refuse_unknown_keys(self, value: Mapping[str, object], known: Sequence[str], at: str) -> None:
        for key in value:
            if key not in known:
                self._add(at, f"the key #{self._attributes.digest(key)} is unknown; the keys are {', '.join(known)}")

    def _add(self, at: str, message: str) -> None:
        self.problems.append(f"{at}: {message}" if at else message)


def _join(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def as_row(decision: Decision | None) -> list[Any] | None:
    """Return a decision as JSON has it in `rows`: the values of its fields, in order. None is for an unknown rule.

    Policies are null if the only one says the same as the decision, which is the usual case.
    """
    if decision is None:
        return None
    alike = len(decision.policies) == 1 and decision._replace(policies=()) == decision.policies[0]
    policies = None if alike else [as_row(policy) for policy in decision.policies]
    return [policies if name == "policies" else as_json(value) for name, value in decision._asdict().items()]


def as_json(value: object) -> Any:
    """Return decisions and explanations as JSON has them: fields by name, and null for an infinite time."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if (named := getattr(value, "_asdict", None)) is not None:  # a named tuple
        return {name: as_json(each) for name, each in named().items()}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): as_json(each) for name, each in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, str):
        return [as_json(each) for each in value]
    return value
