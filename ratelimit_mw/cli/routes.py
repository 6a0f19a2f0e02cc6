"""`ratelimit-mw routes`, and what `check --app` finds: the routes of an app beside the rules that apply to them.

A route and a rule are compared by their templates, segment by segment. If that leaves it open whether a rule applies to
all requests of a route, it applies to some.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, NamedTuple

import typer

from ratelimit_mw.cli import Exit
from ratelimit_mw.cli.common import (
    DEFAULT_CONFIG,
    ConfigArgument,
    Json,
    fail,
    imported,
    open_limiter,
    say_list,
)
from ratelimit_mw.cli.frameworks import ANY, AppRoute, UnknownApp, django_knows_users, routes_of, session_cookies
from ratelimit_mw.cli.lint import WITHOUT_USER, covers_paths, meet, meets, strictly, within
from ratelimit_mw.cli.lint import paths as paths_of_rules
from ratelimit_mw.config.load import Examined
from ratelimit_mw.errors import ConfigurationError, Problem, near
from ratelimit_mw.identity.identifier import attributes_of, choices_of
from ratelimit_mw.rules.compiled import CompiledRule, Matching
from ratelimit_mw.rules.domains import Rules, unknown_rule
from ratelimit_mw.rules.path_templates import TYPES, Template, pieces_of
from ratelimit_mw.rules.ruleset import RuleSet

_OF_EACH_ROUTE = {"global", "ip", "remote_address", "path", "route", "method"}

App = Annotated[str, typer.Option("--app", metavar="MODULE:APP", help="The app, as in shop.main:app.")]


@dataclass(frozen=True, slots=True)
class RuleOfRoute:
    """One rule that requests of a route ask.

    Attributes:
        rule: The name of the rule.
        domain: The domain of the rule. Empty for a rule that is asked for by name and is in no domain.
        limit: The text of a limit that a decorator declares. Empty for a rule of the file.
        covers: "all" requests of the route and method, or "some": others may have another path, an exempt path, another
            rule that replaces it, or not what its `match` needs.
        by_name: True if a decorator or a dependency asks for it, or declares it.
        general: True if it has no `match.path`, and is not asked for by name.
    """

    rule: str
    domain: str
    limit: str = ""
    covers: str = "all"
    by_name: bool = False
    general: bool = False

    def __str__(self) -> str:
        asked = "in the code" if self.limit else "by name"
        notes = [*([self.covers] if self.covers != "all" else []), *([asked] if self.by_name else [])]
        shown = self.limit or self.rule
        return f"{shown} ({', '.join(notes)})" if notes else shown


def covered(rules: Rules, route: Template, method: str, *, websocket: bool = False) -> list[RuleOfRoute] | None:
    """Return the rules that apply to requests of `route` with this method. None if all of these requests are exempt.

    A condition on anything but the path and the method may hold or not. Rules with `on_demand` are not included. A
    WebSocket has the rules of messages, too.
    """
    found: list[RuleOfRoute] = []
    exempt = True
    for part in rules.parts:
        free = [each for each in part.exempt if _takes(each, method) and not (each.exact or each.networks)]
        if not any(strictly(within, route, each) for each in free):
            exempt = False
            partly = any(strictly(meet, route, each) for each in free)
            asked = [rule for rule in part.compiled if not rule.on_demand and (websocket or not rule.rule.messages)]
            found += _applying(part, asked, route, method, partly=partly)
    return None if exempt else found


def _applying(
    part: RuleSet, asked: Iterable[CompiledRule], route: Template, method: str, *, partly: bool
) -> Iterator[RuleOfRoute]:
    """Yield each of the rules that apply to requests of a route. `partly`: some of its requests are exempt."""
    reached = [
        rule
        for rule in asked
        if _takes(rule.match, method) and (not rule.templates or any(meets(route, each) for each in rule.templates))
    ]
    for rule in reached:
        replacing = [each for each in reached if rule.rank in each.replaces and strictly(meet, route, each.match)]
        if not any(strictly(within, route, each.match) and not _depends(each) for each in replacing):
            conditional = rule.match.exact or rule.match.networks
            whole = not (replacing or partly or conditional) and covers_paths(rule.templates, (route,))
            covers = "all" if whole else "some"
            yield RuleOfRoute(rule.rule.name, part.domain, covers=covers, general=not rule.templates)


def _takes(match: Matching, method: str) -> bool:
    return not match.methods or method in match.methods or (method == "HEAD" and "GET" in match.methods)


def _depends(rule: CompiledRule) -> bool:
    """Return True if it depends on more than path and method that the rule has a counter for a request."""
    choices = [names for entry in rule.by for names in choices_of(entry)]
    return bool(rule.match.exact or rule.match.networks) or not any(_OF_EACH_ROUTE.issuperset(each) for each in choices)


class ReadApp(NamedTuple):
    """What is read of an app: its name, its routes, and the names of the cookies in which it keeps signed sessions."""

    name: str
    routes: Sequence[AppRoute]
    sessions: Collection[str]


def read_app(name: str) -> ReadApp:
    """Read the app with this name. End the command if its routes cannot be read."""
    app = imported(name)
    try:
        return ReadApp(name, routes_of(app), session_cookies(app))
    except ConfigurationError as error:  # a limit with a mistake, as the scope of a throttle
        fail(f"the routes of {name!r} can't be read: {error}", Exit.PROBLEMS)
    except UnknownApp as unknown:
        known = "the apps of Starlette, FastAPI, Flask and Django are known"
        factory = f"; if it makes an app, write --app '{name}()'" if str(unknown) == "function" else ""
        fail(f"the routes of {name!r} can't be read: it is a {unknown}, and only {known}{factory}", Exit.USAGE)


@dataclass(frozen=True, slots=True)
class RouteRules:
    """The rules of one route and some of its methods.

    Attributes:
        methods: The methods; `*` for all others.
        path: The template of the route, as the framework writes it.
        websocket: True if the route serves WebSockets.
        exempt: True if its requests are exempt.
        rules: The rules, in the order in which they are asked.
    """

    methods: tuple[str, ...]
    path: str
    websocket: bool
    exempt: bool
    rules: tuple[RuleOfRoute, ...]

    @property
    def protected(self) -> bool:
        """Whether the route is exempt, or has a rule for its path or by name."""
        return self.exempt or any(not asked.general for asked in self.rules)

    def cells(self) -> tuple[str, str, str]:
        """The cells of the table of `routes`."""
        rules = "exempt" if self.exempt else ", ".join(map(str, self.rules)) or "-"
        return self.shown_methods, self.path, rules

    @property
    def shown_methods(self) -> str:
        """The methods, for people."""
        return "WebSocket" if self.websocket else ",".join(self.methods)


def rows_of(routes: Iterable[AppRoute], rules: Rules) -> Iterator[RouteRules]:
    """Yield the routes with their rules. Methods of a route that ask the same rules share a row."""
    named = sorted({method for part in rules.parts for rule in part.compiled for method in rule.match.methods})
    # One method stands for all that no rule names.
    other = next(method for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "LOCK") if method not in named)
    for route in routes:
        shared: dict[tuple[RuleOfRoute, ...] | None, list[str]] = {}
        methods = [other, *named] if ANY in route.methods else list(route.methods)
        for method in methods:
            shared.setdefault(_asked(route, method, rules), []).append(method)
        for asked, alike in shared.items():
            shown = (ANY,) if ANY in route.methods and other in alike else tuple(alike)
            yield RouteRules(shown, route.path, route.websocket, asked is None, asked or ())


def _asked(route: AppRoute, method: str, rules: Rules) -> tuple[RuleOfRoute, ...] | None:
    """Return the rules that requests of a route ask. None if they are exempt, also from rules asked for by name."""
    asked = covered(rules, route.template, method, websocket=route.websocket)
    if asked is None:
        return None
    domains = {rule.rule.name: part.domain for part in reversed(rules.parts) for rule in part.compiled}
    for wanted in route.asked:
        name, limit = (wanted, "") if isinstance(wanted, str) else (wanted.name, wanted.limit)
        asked.append(RuleOfRoute(name, domains.get(name, ""), limit, by_name=True))
    return tuple(asked)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A rules file beside the routes of an app.

    Attributes:
        app: The name of the app.
        examined: What `check` found in the file, and what the comparison adds.
        without_path: The routes that no rule has a path for. Only general rules, or none, apply to them.
    """

    app: str
    examined: Examined
    without_path: tuple[RouteRules, ...]

    def lines(self) -> Iterator[str]:
        """The lines that list `without_path`."""
        if self.without_path:
            yield f"routes of {self.app} that no rule has a path for:"
            for row in self.without_path:
                rules = f"only {', '.join(map(str, row.rules))}" if row.rules else "no rule"
                yield f"  {row.shown_methods} {row.path}: {rules}"
            yield ""


_DEFAULT = "a rule with by: ip+route, and without match, limits each route; exempt names those that need no limit"


def compare(app: ReadApp, file: str, examined: Examined, known: Collection[str], *, require_limits: bool) -> Comparison:
    """Compare an app with the rules of a file.

    Args:
        app: The app.
        file: The name of the file.
        examined: What `check` found in the file.
        known: The names of the rules of all files that are checked.
        require_limits: A route that the file does not limit is a problem.
    """
    rules = examined.rules
    if rules is None or rules.source is not None or rules.asking is not None:  # the rules themselves are elsewhere
        return Comparison(app.name, examined, ())
    rows = list(rows_of(app.routes, rules))
    names = sorted({name for route in app.routes for name in route.asked if isinstance(name, str)} - set(known))
    problems = [*examined.problems, *(unknown_rule(name, known) for name in names)]
    knows_users = django_knows_users()
    warnings = [each for each in examined.warnings if not (knows_users and each.message.endswith(WITHOUT_USER))]
    warnings += [*_unmatched(app.name, app.routes, rules, examined), *changing_identities(app, rules)]
    warnings += untyped(app.routes, rules, paths_of_rules(examined))
    without_path = tuple(row for row in rows if not row.protected)
    for row in without_path if require_limits else ():
        if not row.rules:
            message = f"{row.shown_methods} {row.path} of {app.name} has no limit"
            problems.append(Problem(message, file=file, hint=_DEFAULT))
    found = examined._replace(problems=tuple(problems), warnings=tuple(warnings))
    return Comparison(app.name, found, without_path)


def _unmatched(app: str, found: Sequence[AppRoute], rules: Rules, examined: Examined) -> Iterator[Problem]:
    """Yield a warning for each path in a rule that matches no route.

    Rules with `on_demand` are left out: a view may ask for them in its code.
    """
    paths, placed = [route.path for route in found], paths_of_rules(examined)
    for part in rules.parts:
        for rule in part.compiled:
            places = () if rule.on_demand else placed[part.domain, rule.rule.name]
            for template, place in zip(rule.match.templates, places, strict=not rule.on_demand):
                meeting = [route for route in found if meets(route.template, template)]
                methods = rule.match.methods
                if not meeting:
                    hint = near(template, paths)
                    yield replace(place, message=f"{place.message}: matches no route of {app}", hint=hint)
                elif methods and not any({ANY, *methods} & set(route.methods) for route in meeting):
                    wanted, served = " or ".join(methods), sorted({each for one in meeting for each in one.methods})
                    message = f"{place.message}: no route of {app} with this path takes {wanted}"
                    yield replace(place, message=message, hint=f"it takes {', '.join(served)}")


def changing_identities(app: ReadApp, rules: Rules) -> Iterator[Problem]:
    """Yield a warning for each attribute in use that is a signed session of the app."""
    for part in rules.parts:
        named = {**part.client.attributes, "user": part.client.user, "tier": part.client.tier}
        for name in sorted(part.attributes.used):
            kind, _, cookie = (named.get(name) or name).partition(":")
            if kind.strip() == "cookie" and cookie.strip() in app.sessions:
                message = f"{name} is a signed session of {app.name}, which changes while its user stays"
                hint = "count by the user in it: scope:session.user, or a python: function that reads the session"
                yield Problem(message, hint=hint)


_WITHOUT_TYPE = re.compile(r"\{(\w+)(?::str)?\}")
_WITH_TYPE = re.compile(rf"\{{\w+:({'|'.join(TYPES)})\}}")


def untyped(
    found: Sequence[AppRoute], rules: Rules, placed: Mapping[tuple[str, str], Sequence[Problem]] = MappingProxyType({})
) -> Iterator[Problem]:
    """Yield a warning for each path of a rule that counts by `path:id` without the type of the app's `id`.

    Each spelling of one value then has a counter of its own.

    Args:
        found: The routes of the app.
        rules: The rules.
        placed: Where the paths are in a file, see `lint.paths`.
    """
    for part in rules.parts:
        for rule in part.compiled:
            counted = {name for entry in rule.by for name in attributes_of(entry)}
            places = placed.get((part.domain, rule.rule.name))
            for index, template in enumerate(rule.match.templates):
                for route in found if any(name.startswith("path:") for name in counted) else ():
                    typed = _with_types(route, template, counted)
                    if typed != template and meets(route.template, template):
                        place = places[index] if places else Problem(f"rule '{rule.rule.name}'")
                        message = (
                            f"{place.message}: counts each spelling of one value apart, as 7 and 007: "
                            f"a parameter of {template} has no type, but the route {route.path} has one"
                        )
                        yield replace(place, message=message, hint=f"write {typed}")
                        break


def _with_types(route: AppRoute, template: Template, counted: Collection[str]) -> str:
    """Return a template with the types that a route has for those of its parameters that are counted."""
    pieces = pieces_of(template)
    for place, (piece, beside) in enumerate(zip(pieces, pieces_of(route.typed), strict=False)):
        bare, typed = _WITHOUT_TYPE.fullmatch(piece), _WITH_TYPE.fullmatch(beside)
        if bare is not None and typed is not None and f"path:{bare[1]}" in counted:
            pieces[place] = f"{{{bare[1]}:{typed[1]}}}"
        if "*" in (piece, beside) or ":path}" in piece + beside:  # behind it, the places differ
            break
    return "/" + "/".join(pieces)


def routes(
    config: ConfigArgument = DEFAULT_CONFIG,
    *,
    app: App,
    as_json: Json = False,
) -> None:
    """Show the routes of an app, and the rules that apply to requests of each route, in the order of the decision.

    "some": the rule applies only to some of the requests, by what its match needs, or because another rule replaces it.
    "by name": a decorator or a dependency asks for the rule. "in the code": a decorator or a dependency declares the
    limit. Calls inside the code of a view are not found.
    """
    found = read_app(app).routes
    with open_limiter(config, None) as limiter:
        rows = list(rows_of(found, limiter.rules))
        for each in untyped(found, limiter.rules):
            typer.echo(f"warning: {each.message}; {each.hint}", err=True)
    columns = ("method", "route", "rules")
    say_list({"routes": rows}, columns, [row.cells() for row in rows], empty="the app has no routes", as_json=as_json)
