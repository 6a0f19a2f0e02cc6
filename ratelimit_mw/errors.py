"""The exceptions of the package, the problems that they carry, and the hints in their messages.

Apps may catch the exceptions that are marked *public*. All others are handled inside the package; no call of the
public surface raises them. The tree has every exception class of the package. A class that is defined elsewhere
has its module behind it:

    Exception
    ├── ValueError
    │   ├── ConfigurationError      public: the rules cannot be used
    │   ├── BadRequest              the body of a request to the service cannot be used (service.checks)
    │   ├── UnusableLog             a log is in no known format, too short or too large (foresight.logs.formats)
    │   ├── NotRefundable           hits cannot be given back to a limit (envoy.lists)
    │   ├── WindowTooLong           the times of a log are too far apart for the curve (foresight.what_if.exact)
    │   └── Invalid                 a text or a value of the rules file cannot be used
    │       └── Faults              as above, with several reasons, and what can be used of it (config.tree)
    ├── StoreUnavailable            public: the store does not answer within the deadline
    │   ├── NoAnswer                there is no answer at all, or no connection
    │   ├── Late                    one request has no answer, others have
    │   ├── PermanentFault          waiting cannot heal it: the store, or its URL, must be changed
    │   │   └── NameTaken           another user has taken the name of the file of lmdb://
    │   ├── CounterError            one request's counters cannot be used
    │   └── WrongNode               another node of the cluster must be asked
    │       └── Redirected          as above, and that node is known
    ├── LimitExceeded               public: a rule denied a block of code
    ├── VersionConflict             another writer changed the record first
    ├── ErrorReply                  Redis answered with an error
    ├── NotSent                     a deferred request did not reach the app
    ├── Unsendable                  a deferred request can never reach the app
    ├── Lost                        a deferred request may have reached the app
    ├── Refused                     the service cannot decide on a request (service.messages)
    │   ├── NotPermitted            as above, because the caller may not give hits back (service.should_rate_limit)
    │   └── TooLong                 as above, because a text or the message is too long (service.messages)
    ├── Unanswerable                a request to /auth cannot be decided (service.auth)
    ├── UnknownApp                  the routes of an app cannot be read (cli.frameworks)
    └── _Unreadable                 the rest of a YAML document cannot be read (config.yaml)

    fastapi.HTTPException
    └── RateLimited                 public: a rule denied the request (fastapi)

    werkzeug.exceptions.TooManyRequests
    └── RateLimited                 public: a rule denied the request (flask)
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ratelimit_mw.model import Decision

__all__ = ["ConfigurationError", "LimitExceeded", "Problem", "StoreUnavailable"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong in a rules file.

    Args:
        message: What is wrong, as one sentence. It begins with the dotted path of the key, if there is one.
        file: The name of the file; "" for a mapping.
        line: The line, counted from 1; 0 if it is unknown.
        column: The column, counted from 1; 0 if it is unknown.
        hint: What would be right, as the nearest valid word; "" if nothing is near.
    """

    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    hint: str = ""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part)
        text = f"{place}: {self.message}" if place else self.message
        return f"{text} ({self.hint})" if self.hint else text


_SHOWN = 100
"""The most problems in the text of a `ConfigurationError`. A log entry must not be endless."""


class ConfigurationError(ValueError):
    """The rules cannot be used.

    The text has one line for each of the first 100 problems. `problems` has all of them.

    Args:
        problems: Every problem found, in the order of the file.
    """

    problems: tuple[Problem, ...]
    """Every problem found, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems[:_SHOWN]]
        if len(self.problems) > _SHOWN:
            lines.append(f"… and {len(self.problems) - _SHOWN} more problems")
        super().__init__("\n".join(lines))


@contextmanager
def collecting(problems: list[Problem]) -> Iterator[None]:
    """Add to `problems` those of a ConfigurationError that the block raises. The code behind the block goes on."""
    try:
        yield
    except ConfigurationError as error:
        problems += error.problems


class LimitExceeded(Exception):
    """A rule denied a block of code, see `RateLimiter.limited`.

    Args:
        decision: The decision of the rule.
    """

    decision: Decision
    """The decision of the rule."""

    def __init__(self, decision: Decision) -> None:
        self.decision = decision
        by = f" by the rule {quoted(decision.rule)}" if decision.rule is not None else ""
        again = f"; retry after {decision.retry_after:g} s" if math.isfinite(decision.retry_after) else ""
        super().__init__(f"denied{by}{again}")


class VersionConflict(Exception):
    """A record was not written, because another writer came first. Read it again and repeat the change.

    Records are the overrides, the switch and the rules that a Redis database holds.

    Args:
        version: The version that the record has now.
    """

    version: int
    """The version that the record has now."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"another change came first: the version is now {version}")


class StoreUnavailable(Exception):
    """The store does not answer within its deadline.

    A decision does not raise it: the `on_error` of each rule applies instead. A store of your own must raise it, and
    nothing else, when it cannot answer.
    """


class NoAnswer(StoreUnavailable):
    """There is no answer or no connection within the deadline."""


class Late(StoreUnavailable):
    """One request has no answer within the deadline. Other requests are answered, so the store itself is well."""


class PermanentFault(StoreUnavailable):
    """A fault that waiting cannot heal, such as a wrong password. It is logged as an error, and again each minute.

    Args:
        fault: What is wrong.
        remedy: What the operator can do, as one sentence without a full stop.
    """

    remedy: str
    """What the operator can do, as one sentence without a full stop."""

    def __init__(self, fault: str, remedy: str) -> None:
        super().__init__(fault, remedy)
        self.remedy = remedy

    def __str__(self) -> str:
        return str(self.args[0])


class NameTaken(PermanentFault):
    """Another user has taken the name of the file of `lmdb://`. Each process counts for itself until that changes."""


class CounterError(StoreUnavailable):
    """The counters of one request cannot be used, because a key has another type, for example. The store is well."""


class WrongNode(StoreUnavailable):
    """A node of a cluster is well but did nothing: another node must be asked, or the same one later."""


class Redirected(WrongNode):
    """The node names the node to ask instead.

    Args:
        address: Its host and port. An empty host is the host of the node that answered.
        asking: True if the slot is on the move: only this request goes there, after `ASKING`.
    """

    def __init__(self, address: tuple[str, int], *, asking: bool) -> None:
        super().__init__(f"another node serves the slot: {address[0]}:{address[1]}")
        self.address = address
        self.asking = asking


class ErrorReply(Exception):
    """Redis answered with an error. The text is the server's."""


class Invalid(ValueError):
    """A text or a value cannot be used. `hint` says what would be right; it is "" if nothing is near."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class NotSent(Exception):
    """A deferred request did not reach the app. It can be sent again."""


class Unsendable(Exception):
    """A deferred request can never reach the app: no HTTP client sends it."""


class Lost(Exception):
    """A deferred request may have reached the app. Whether the app served it is unknown."""


@contextmanager
def extra(name: str) -> Iterator[None]:
    """Import in this block what the extra `name` brings. If a module is missing, the error says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{error}; it comes with the extra {name}: pip install 'ratelimit_mw[{name}]'", name=error.name
        ) from None


_OTHER_NAMES = {
    **dict.fromkeys(("rate", "rate_limit", "ratelimit", "quota"), "limit"),
    **dict.fromkeys(("key", "identifier", "key_func"), "by"),
    **dict.fromkeys(("address", "client_ip", "ip_address", "remote_addr", "$binary_remote_addr", "$remote_addr"), "ip"),
    **dict.fromkeys(("$remote_user", "user_id", "username"), "user"),
    **dict.fromkeys(("$host", "$server_name", "$http_host"), "host"),
    **dict.fromkeys(("$uri", "$request_uri", "url", "uri", "endpoint"), "path"),
    **dict.fromkeys(("burst_size", "max_burst"), "burst"),
    **dict.fromkeys(("requests_per_unit", "average", "max_tokens", "capacity"), "requests"),
    **dict.fromkeys(("unit", "period", "interval", "window", "fill_interval"), "per"),
    **dict.fromkeys(("exclude", "skip", "whitelist", "allowlist"), "exempt"),
    **dict.fromkeys(
        ("default_limits", "application_limits", "ratelimit_default", "limits", "default_throttle_rates"), "rules"
    ),
    **dict.fromkeys(
        ("storage_uri", "ratelimit_storage_uri", "ratelimit_storage_url", "redis", "redis_url", "backend"), "storage"
    ),
    "strategy": "algorithm",
}
"""Words of other limiters → our words."""


def near(word: str, valid: Iterable[str], other_names: Mapping[str, str] = _OTHER_NAMES) -> str:
    """Return the hint for a mistyped word: the valid word that is most similar to it, or that means the same.

    Args:
        word: The word that was written.
        valid: The valid words.
        other_names: The words of other limiters, each with the valid word that means the same.

    Returns:
        "did you mean '…'?", or "" if no valid word is similar.
    """
    from difflib import get_close_matches  # late, because most processes have no mistakes

    spelled = {choice.lower(): choice for choice in valid}
    meant = other_names.get(word.lower().replace("-", "_"), "")
    found = [choice for choice in spelled if choice == meant or sorted(choice) == sorted(word.lower())]
    found = found or get_close_matches(word.lower(), spelled, n=1, cutoff=0.67)
    return f"did you mean '{spelled[found[0]]}'?" if found else ""


def nearest(word: str, valid: Iterable[str]) -> str:
    """Return the hint of `near`. If no valid word is similar, the hint lists all of them."""
    choices = list(valid)
    return near(word, choices) or f"known: {', '.join(choices)}"


def quoted(text: str, longest: int = 60) -> str:
    """Return `text` for a message: in quotes, shortened to `longest` characters, with control characters escaped."""
    return repr(text if len(text) <= longest else text[: longest - 1] + "…")
