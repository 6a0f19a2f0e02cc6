"""`routes` and `check --app` with real apps of the four frameworks. Those of Django have processes of their own."""

import json
from pathlib import Path

import pytest
from flask import Flask

from ratelimit_mw.cli.frameworks import routes_of
from tests.cli.test_command import command
from tests.support.apps import ROOT

RULES = ROOT / "tests" / "cli" / "routed" / "ratelimits.yaml"
GOLD = "gold (some)"

STARLETTE = [
    ("GET", "/login", "everything"),
    ("POST", "/login", "login"),
    ("POST", "/mail", "everything, mail (by name)"),
    ("GET", "/orders", "everything"),
    ("POST", "/orders", "everything, mail (by name)"),
    ("GET", "/api/items/{id:int}", f"everything, items, api (some), {GOLD}"),
    ("GET", "/api/{rest:path}", "everything, items (some), api (some), gold (some)"),
    ("*", "/other/*", "everything"),
    ("GET", "/admin", "everything"),
    ("WebSocket", "/talk", "everything, talk"),
    ("GET", "/health", "exempt"),
]
FASTAPI = [
    ("POST", "/login", "login"),
    ("GET", "/api/items/{number}", f"everything, items (some), api (some), {GOLD}, mail (by name)"),
    ("WebSocket", "/api/items/talk", f"everything, api (some), {GOLD}, mail (by name)"),
    ("GET", "/{tenant}/inner/users/{name}", "everything, api (some), 5 per minute (in the code)"),
]
FLASK = [
    ("POST", "/login", "login"),
    ("GET", "/<any(health, ready):name>", "everything (some), api (some)"),
    ("GET", "/api/items/<int:number>", f"everything, items, api (some), {GOLD}, 5 per minute (in the code)"),
    ("GET,POST", "/api/mail/<string(length=2):language>", "everything, api, mail (by name)"),
    ("GET", "/api/orders/", "everything, api"),
    ("POST", "/api/orders/", "everything, api, mail (by name)"),
]
SOME = "items (some), api (some), gold (some)"
DJANGO = [
    ("POST", "/login", "login"),
    ("*", "/health", "exempt"),
    ("GET", "/orders", "everything"),
    ("POST", "/orders", "everything, mail (by name)"),
    ("*", "/mail/<slug:to>", "everything, mail (by name)"),
    ("GET", "/api/items/", "everything, api, mail (by name)"),
    ("POST", "/api/items/", "everything, api, mail (by name)"),
    ("GET", "/api/items/(?P<pk>[^/.]+)/", f"everything, items (some), api, {GOLD}, mail (by name)"),
    ("*", "/archive/(?P<year>[0-9]{4})/", "everything"),
    ("*", "/(?:a|b)/x", f"everything (some), {SOME}"),
    ("POST", "/(?:a|b)/x", f"everything (some), login (some), {SOME}"),
]


@pytest.fixture
def routed(run):
    """A function that runs a command with one of the apps, and returns the exit code, stdout and stderr."""

    def invoke(name, *options, rules=RULES, verb="routes"):
        words = (verb, str(rules), "--app", f"tests.cli.routed.{name}", *options)
        if not name.startswith("django"):
            return run(*words)
        ran = command(*words)
        return ran.returncode, ran.stdout, ran.stderr

    return invoke


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        ("starlette_app:app", STARLETTE),
        ("starlette_app:wrapped", STARLETTE),
        ("fastapi_app:app", FASTAPI),
        ("fastapi_app:create_app()", FASTAPI),
        ("flask_app:app", FLASK),
        ("django_app:application", DJANGO),
        ("django_app:asgi", DJANGO),
    ],
)
def test_routes_are_shown_with_the_rules_that_apply_to_them(routed, app, expected):
    code, printed, said = routed(app)
    assert (code, said) == (0, "")
    head, *lines = printed.splitlines()
    widths = head.index("route"), head.index("rules")
    cells = [
        (line[: widths[0]].strip(), line[widths[0] : widths[1]].strip(), line[widths[1] :].strip()) for line in lines
    ]
    assert cells == expected


def test_routes_are_listed_as_json_for_programs(routed):
    rows = json.loads(routed("fastapi_app:app", "--json")[1])["routes"]
    assert rows[1]["path"] == "/api/items/{number}"
    assert rows[1]["methods"] == ["GET"]
    assert [(rule["rule"], rule["covers"], rule["by_name"]) for rule in rows[1]["rules"]] == [
        ("everything", "all", False),
        ("items", "some", False),
        ("api", "some", False),
        ("gold", "some", False),
        ("mail", "all", True),
    ]


@pytest.mark.parametrize(
    ("app", "route"),
    [
        ("fastapi_app", "/api/items/{number}"),
        ("starlette_app", "/api/items/{id:int}"),
        ("flask_app", "/api/items/<int:number>"),
    ],
)
def test_a_rule_that_counts_by_a_parameter_without_the_type_of_the_app_is_a_warning(routed, tmp_path, app, route):
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        """\
domain: shop
rules:
  - {name: each, match: {path: "/api/items/{id}"}, by: "ip+path:id", limit: 3 per minute}
  - {name: typed, match: {path: "/api/items/{id:int}"}, by: path:id, limit: 3 per minute}
  - {name: by-path, match: {path: "/api/items/{id}"}, limit: 30 per minute}
  - {name: mail, limit: 5 per minute, on_demand: true}
""",
        "utf-8",
    )
    message = (
        "counts each spelling of one value apart, as 7 and 007: a parameter of /api/items/{id} has no "
        f"type, but the route {route} has one"
    )
    _, checked, _ = routed(f"{app}:app", "--json", rules=rules, verb="check")
    (warning,) = [each for each in json.loads(checked)["files"][0]["warnings"] if "apart" in each["message"]]
    assert warning["message"] == f"rules[0].match.path: {message}"
    assert (warning["line"], warning["hint"]) == (3, "write /api/items/{id:int}")
    assert routed(f"{app}:app", rules=rules)[2] == f"warning: rule 'each': {message}; write /api/items/{{id:int}}\n"


def test_check_names_paths_without_a_route_and_routes_without_a_path(routed, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        """\
domain: shop
rules:
  - {name: everything, limit: 100 per minute}
  - {name: login, match: {path: /login, methods: [PUT]}, limit: 5 per minute}
  - {name: orders, match: {path: [/api/order, "/api/items/{id}"]}, limit: 5 per minute}
  - {name: mail, limit: 5 per minute, on_demand: true}
""",
        "utf-8",
    )
    code, printed, said = routed("flask_app:app", rules=rules, verb="check")
    assert (code, said) == (0, "")
    assert (
        printed.replace(str(tmp_path), "")
        == """\
/rules.yaml:4:33: warning: rules[1].match.path: no route of tests.cli.routed.flask_app:app with this path takes PUT
    4 |   - {name: login, match: {path: /login, methods: [PUT]}, limit: 5 per minute}
      |                                 ^
      = it takes GET, POST

/rules.yaml:5:35: warning: rules[2].match.path[0]: matches no route of tests.cli.routed.flask_app:app
    5 |   - {name: orders, match: {path: [/api/order, "/api/items/{id}"]}, limit: 5 per minute}
      |                                   ^
      = did you mean '/api/orders/'?

routes of tests.cli.routed.flask_app:app that no rule has a path for:
  POST /login: only everything
  GET /<any(health, ready):name>: only everything
  GET /api/orders/: only everything

/rules.yaml: valid, 4 rules, 2 warnings
"""
    )


@pytest.mark.parametrize(
    ("rule", "options", "code"),
    [
        pytest.param("{name: api, match: {path: /api/*}, limit: 5/s}", (), 0, id="not asked for"),
        pytest.param("{name: api, match: {path: /api/*}, limit: 5/s}", ("--require-limits",), 1, id="some have none"),
        pytest.param("{name: each, by: ip+route, limit: 5/s}", ("--require-limits",), 0, id="a limit for each"),
    ],
)
def test_check_can_require_a_limit_for_each_route(routed, tmp_path, rule, options, code):
    rules = tmp_path / "rules.yaml"
    rules.write_text(f"domain: shop\nrules: [{rule}, {{name: mail, limit: 5/s, on_demand: true}}]\n", "utf-8")
    found, printed, said = routed("flask_app:app", *options, rules=rules, verb="check")
    assert (found, "POST /login of tests.cli.routed.flask_app:app has no limit" in printed + said) == (code, code == 1)


def test_check_requires_limits_of_an_app_only(run):
    code, _, said = run("check", "r.yaml", "--require-limits")
    assert (code, "--require-limits needs --app" in said) == (2, True)


def test_a_name_in_a_decorator_that_no_rule_has_is_an_error(routed, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text("domain: d\nrules: [{name: mial, limit: 5 per minute, on_demand: true}]\n", "utf-8")
    code, printed, _ = routed("starlette_app:app", "--json", rules=rules, verb="check")
    assert code == 1
    report = json.loads(printed)
    assert not report["ok"]
    (problem,) = report["files"][0]["problems"]
    assert problem["message"] == "the app asks for the rule 'mail', which does not exist"
    assert problem["hint"] == "did you mean 'mial'?"
    assert [row["path"] for row in report["files"][0]["without_path"]] == [
        "/login",
        "/orders",
        "/api/items/{id:int}",
        "/api/{rest:path}",
        "/other/*",
        "/admin",
        "/talk",
        "/health",
    ]


@pytest.mark.parametrize(
    ("middleware", "warned"),
    [("ratelimit_mw.django.RateLimitMiddleware", False), ("django.middleware.common.CommonMiddleware", True)],
)
def test_check_warns_of_rules_by_user_only_where_no_middleware_of_django_knows_the_user(tmp_path, middleware, warned):
    (tmp_path / "rules.yaml").write_text("domain: d\nrules: [{name: a, by: user, limit: 5 per minute}]\n", "utf-8")
    (tmp_path / "project.py").write_text(
        f"""\
from django.conf import settings
settings.configure(SECRET_KEY="x", ROOT_URLCONF="project", RATELIMIT="rules.yaml", MIDDLEWARE=[{middleware!r}])
from django.core.wsgi import get_wsgi_application
import ratelimit_mw.django
urlpatterns = []
application = get_wsgi_application()
""",
        "utf-8",
    )
    ran = command("check", "rules.yaml", "--app", "project:application", cwd=tmp_path)
    assert (ran.returncode, "counts by user" in ran.stdout) == (0, warned), ran.stdout + ran.stderr


SESSIONS = {
    "Starlette": """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.sessions import SessionMiddleware
application = Starlette(middleware=[Middleware(SessionMiddleware, secret_key="s", session_cookie="own")])
""",
    "Flask": """
from flask import Flask
application = Flask(__name__)
application.config.update(SECRET_KEY="s", SESSION_COOKIE_NAME="own")
""",
    "Django": """
from django.conf import settings
settings.configure(
    SECRET_KEY="s", ROOT_URLCONF="project", SESSION_COOKIE_NAME="own",
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
)
from django.core.asgi import get_asgi_application
urlpatterns = []
application = get_asgi_application()
""",
}


@pytest.mark.parametrize(
    ("framework", "client", "by", "warned"),
    [
        *(pytest.param(each, "{user: cookie:own}", "user", "user", id=f"as the user, {each}") for each in SESSIONS),
        pytest.param("Starlette", "{}", "cookie:own", "cookie:own", id="by name"),
        pytest.param("Starlette", "{user: cookie:own}", "ip", "", id="not counted by"),
        pytest.param("Starlette", "{user: cookie:other}", "user", "", id="another cookie"),
    ],
)
def test_a_rule_by_a_signed_session_is_a_warning(framework, client, by, warned, tmp_path):
    (tmp_path / "project.py").write_text(SESSIONS[framework], "utf-8")
    (tmp_path / "rules.yaml").write_text(
        f"domain: d\nclient: {client}\nrules: [{{name: a, by: '{by}', limit: 5 per hour}}]\n", "utf-8"
    )
    ran = command("check", "rules.yaml", "--app", "project:application", cwd=tmp_path)
    said = f"{warned} is a signed session of project:application, which changes while its user stays"
    assert (ran.returncode, said in ran.stdout) == (0, bool(warned)), ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("app", "message"),
    [
        ("shop", "'shop' is not an app; write --app package.module:app"),
        ("shop:", "'shop:' is not an app; write --app package.module:app"),
        ("shop:app", "No module named 'shop' in {} or among the installed packages"),
        ("app_here:ap", "module 'app_here' has no attribute 'ap' (did you mean 'app'?)"),
        ("app_here:number", "'app_here:number' is not an app: it can't be called"),
        ("app_here:make", "are known; if it makes an app, write --app 'app_here:make()'"),
        ("app_here:make_with()", "TypeError: make_with() missing 1 required positional argument: 'name'"),
        ("app_here:app", "it is a function, and only the apps of Starlette, FastAPI, Flask and Django are known"),
        ("app_fails:app", "the app 'app_fails:app' can't be imported: RuntimeError: no database\n  {}/app_fails.py:2"),
        ("app_ends:app", "the app 'app_ends:app' can't be imported: SystemExit: 0\n  {}/app_ends.py:1"),
    ],
)
def test_an_app_that_cannot_be_read_is_wrong_usage(run, app, message):
    Path("app_here.py").write_text(
        "number = 5\nasync def app(scope, receive, send): ...\ndef make(): ...\ndef make_with(name): ...\n", "utf-8"
    )
    Path("app_fails.py").write_text("def connect():\n    raise RuntimeError('no database')\nconnect()\n", "utf-8")
    Path("app_ends.py").write_text("raise SystemExit(0)\n", "utf-8")
    code, printed, said = run("routes", "--app", app)
    assert (code, printed) == (2, "")
    assert said.startswith("ratelimit-mw: ")
    assert message.format(Path.cwd()) in said


def test_rules_in_a_database_that_is_away_are_not_compared(run):
    Path("r.yaml").write_text("domain: d\nrules: {source: 'redis://127.0.0.1:1/0'}\n", "utf-8")
    assert run("check", "r.yaml", "--app", "tests.cli.routed.starlette_app:app")[0] == 0


@pytest.mark.parametrize(
    ("shown", "template"),
    [
        pytest.param("/v<int:a>.<int:b>/items/<int:id>", "/v{p0}.{p1}/items/{p2:int}", id="types"),
        pytest.param("/<year>-<month>-<day>/posts", "/{p0}/posts", id="three"),
        pytest.param("/files/<path:folder>.<ending>", "/files/*", id="a path"),
    ],
)
def test_parameters_that_share_a_segment_are_read_as_rules_have_them(shown, template):
    app = Flask("shop", static_folder=None)
    app.add_url_rule(shown, view_func=str)
    assert [route.template for route in routes_of(app)] == [template]
