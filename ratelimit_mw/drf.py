"""Django REST framework: a throttle that asks for rules by name. Requires the extra `drf`."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from ratelimit_mw.errors import extra

with extra("drf"):
    from rest_framework.exceptions import Throttled
    from rest_framework.throttling import BaseThrottle

from ratelimit_mw.config.words.overrides import reads_as_limit
from ratelimit_mw.django.views import ADVICE, DjangoHandle, refund_later, synchronous
from ratelimit_mw.http.limits_in_code import LimitInCode, LimitOptions, limit_in_code, name_of_view
from ratelimit_mw.rules.inline import InlineLimit

__all__ = ["RateLimitThrottle"]

_TOO_MANY_REQUESTS = 429


class RateLimitThrottle(BaseThrottle):
    """A throttle that asks for a rule by its name. It replaces ScopedRateThrottle, UserRateThrottle and the like.

    Write it into the `throttle_classes` of a view, or into DEFAULT_THROTTLE_CLASSES. The rule is the `throttle_scope`
    of the view, or the `scope` of a subclass. Without either, requests pass. The middleware
    `ratelimit_mw.django.RateLimitMiddleware` must be in MIDDLEWARE.

    If the rule denies the request, the exception handler of the framework answers: `Throttled`, with the status 429.
    If the `response` section of the rules has another status for the denial, it is used instead. The response also has
    the headers of the denial, such as X-RateLimit-Limit. If the rule makes the request wait, the throttle waits.

    If a scope is not the name of a rule, `manage.py check` reports it, and each request raises LookupError.

    Attributes:
        scope: The name of the rule. None: the `throttle_scope` of the view.
        rate: A limit such as "100 per day", or a function that gets the request and returns one. It takes the place of
            a rule of the file.
            All views with this throttle share it. A scope may be a limit, too. If a `throttle_scope` is a limit, each
            view has counters of its own.
        cost: What a request is charged, as a multiple of the rule's `cost`: a whole number of at least 0, or a
            function that gets the request and returns it.
        by: This and the following are the options of `LimitOptions`.
        algorithm: See `LimitOptions`.
        methods: See `LimitOptions`.
        key: See `LimitOptions`. The functions get the request of the framework.
        exempt_when: See `LimitOptions`.
        refund_when: See `LimitOptions`.
    """

    scope: str | None = None
    rate: str | Callable[[Any], Any] | None = None
    cost: int | Callable[[Any], Any] = 1
    by: str | Sequence[str] | None = None
    algorithm: str | None = None
    methods: Sequence[str] | None = None
    key: Callable[[Any], Any] | None = None
    exempt_when: Callable[[Any], Any] | None = None
    refund_when: Callable[[Any], Any] | None = None

    def __init__(self) -> None:
        self._wait: int | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.limit_of(None)  # a mistake is an error where the class is defined

    @classmethod
    def limit_of(cls, scope: str | None) -> LimitInCode | None:
        """Return what a throttle of this class asks for; None for nothing.

        Args:
            scope: The `throttle_scope` of the view.
        """
        rule = cls.rate or cls.scope or scope
        return None if rule is None else _limit_of(cls, rule)  # type: ignore[arg-type]  # mypy asks for the hash of its objects

    @classmethod
    def rule_of(cls, view: type, scope: str | None) -> str | InlineLimit | None:
        """Return the name of the rule or the limit of a view with this throttle; None if there is none.

        Args:
            view: The class of the view.
            scope: The `throttle_scope` of the view.
        """
        limit = cls.limit_of(scope)
        return None if limit is None else limit.named(name_of_view(view))

    def allow_request(self, request: Any, view: Any) -> bool:
        """Charge the request if the rule allows it.

        Args:
            request: The request of the framework.
            view: The view, whose `throttle_scope` is used if the throttle has no `scope`.

        Raises:
            Throttled: The rule denies the request, and the status of the denial is not 429.
            LookupError: There is no rule of this name.
            RuntimeError: The middleware is not in MIDDLEWARE.
        """
        limit = self.limit_of(getattr(view, "throttle_scope", None))
        if limit is None:
            return True
        handle = getattr(request, "ratelimit", None)
        enforced = limit.enforce(limit.named(name_of_view(type(view))), handle, request, refund_later, synchronous)
        denial = enforced.denial
        if denial is None:
            return True
        # A response.handler may have set a date, which the framework does not take. The response has it as it is.
        waits = [value for name, value in denial.headers if name.lower() == "retry-after" and value.isdecimal()]
        self._wait = int(waits[0]) if waits else None
        if isinstance(handle, DjangoHandle):  # all handles that deny are of this type
            before = handle.throttled
            if before is None or enforced.decision.retry_after >= before.decision.retry_after:
                handle.throttled = enforced  # of several throttles, the framework reports the longest wait
        if denial.status != _TOO_MANY_REQUESTS:
            error = Throttled(self._wait)
            error.status_code = denial.status
            raise error
        return False

    def wait(self) -> int | None:  # pyright: ignore[reportIncompatibleMethodOverride] - theirs returns None, or seconds
        """Return the seconds after which the request is allowed; None if that is unknown or will never be."""
        return self._wait


@lru_cache(maxsize=1024)
def _limit_of(kind: type[RateLimitThrottle], rule: str | Callable[[Any], Any]) -> LimitInCode:
    """Read the options of a class of throttles. All views share a limit of the class, but not one of a view."""
    shared = (kind.rate or kind.scope) and (not isinstance(rule, str) or reads_as_limit(rule))
    options: LimitOptions = {
        "by": kind.by,
        "algorithm": kind.algorithm,
        "shared": f"{kind.__module__}:{kind.__qualname__}" if shared else None,
        "methods": kind.methods,
        "key": kind.key,
        "exempt_when": kind.exempt_when,
        "refund_when": kind.refund_when,
    }
    return limit_in_code(rule, kind.cost, options, advice=ADVICE)
