"""`limit: python:package.module:function`: a function of the app returns the text of a request's limit.

The rest of the rule is checked and compiled with a sample of a limit. Each text is then compiled when the function
first returns it, as the limit of an override is.
"""

from dataclasses import replace

from ratelimit_mw.algorithms import ALGORITHMS
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.config.word import Values
from ratelimit_mw.config.words.limit import ALGORITHM, LIMIT, MOST, Limits, PlacedWindow, Window
from ratelimit_mw.config.words.rule import compile_counters
from ratelimit_mw.config.words.selection import NAME
from ratelimit_mw.config.words.throttle import THROTTLE
from ratelimit_mw.identity.attributes import Attributes
from ratelimit_mw.model import Quota
from ratelimit_mw.rules.compiled import CompiledRule, OverrideCompiler
from ratelimit_mw.rules.inline import LimitFunction
from ratelimit_mw.units import HOUR

_ROOM = 10
"""The largest factor by which a throttle raises a limit. The sample must stay below the largest limit."""


def with_sample(rule: Values) -> Values:
    """Return the rule with a limit in place of its function, so that its words can be checked and compiled."""
    return _with_large_limit(rule) if rule[LIMIT].function else rule


def sample_of(domain: str, rule: Values, made: CompiledRule) -> Quota | None:
    """Return a quota that has the effects of any limit of the rule, if its own limits do not have them.

    They lack some if they are `unlimited` or 0, or if they are so low that a throttle adds nothing to them.
    """
    if made.read_limit is not None or (rule[THROTTLE] is None and any(quota.limit for quota in made.quotas)):
        return None
    ((_, sample),), _ = compile_counters(domain, _with_large_limit(rule))
    return sample


def _with_large_limit(rule: Values) -> Values:
    algorithm = ALGORITHMS[rule[ALGORITHM]]
    largest = MOST if algorithm.largest is None else algorithm.largest.limit
    # A concurrent limit has no period. Other algorithms cannot have one from a function.
    window = Window(largest // _ROOM, 0 if algorithm.in_flight else HOUR)
    return rule.with_value(LIMIT, Limits((PlacedWindow(window, rule.place("limit")),)))


def with_function(
    made: CompiledRule, rule: Values, compiler: OverrideCompiler, attributes: Attributes, problems: Problems
) -> CompiledRule:
    """Return the compiled rule with the function of its limit in place of the sample, if it has one.

    Args:
        made: The rule, compiled with the sample.
        rule: The values of the rule.
        compiler: Compiles the limits. It knows the rule.
        attributes: The attributes that rules may use.
        problems: Receives the errors.
    """
    source = rule[LIMIT].function
    if not source:
        return made
    if ALGORITHMS[rule[ALGORITHM]].in_flight:
        message = f"{rule[ALGORITHM]} counts requests in flight; a function returns limits per time"
        problems.add(rule.place("limit"), message, "use another algorithm")
        return made
    try:
        read = attributes.source(source)
    except ValueError as error:
        problems.add(rule.place("limit"), str(error))
        return made
    function = LimitFunction(rule[NAME], source, read, compiler, made.limits, deny=made.rule.on_error == "deny")
    # How many limits a text has is known only later.
    return replace(made, rule=replace(made.rule, several=True), keys=(), limits=(), read_limit=function)
