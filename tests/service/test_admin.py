"""The admin port: metrics, the rules in force and the state, read by a real client."""

from contextlib import suppress

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ratelimit_mw import RateLimiter
from ratelimit_mw.errors import ConfigurationError
from ratelimit_mw.service.admin import admin_app, rules_text
from ratelimit_mw.service.settings import Address
from tests.service.http_service import CLIENT, file, nginx, service, serving
from tests.support.ports import free_port

RULES = file(
    [
        {
            "name": "login",
            "match": {"path": "/login/{id:int}", "methods": ["POST"]},
            "by": ["ip", "user"],
            "limit": {"free": "5 per minute", "default": ["10 per minute", "100 per hour"]},
            "shadow": True,
        },
        {"name": "burst", "by": "ip", "limit": "10 per second", "algorithm": "token_bucket", "burst": 50},
        {"name": "asked", "by": "ip", "limit": "10 per second", "on_demand": True},
    ],
    client={**CLIENT, "tier": "header:X-Tier", "user": "header:X-User"},
    attributes={"tenant": "header:X-Tenant", "path2": "header:X-Path"},
    descriptors=[
        {"key": "tenant", "rate_limit": {"unit": "minute", "requests_per_unit": 3}},
        {
            "key": "tenant",
            "value": "gold",
            "rate_limit": {"unlimited": True},
            "descriptors": [
                {
                    "key": "path2",
                    "shadow_mode": True,
                    "rate_limit": {"unit": "second", "requests_per_unit": 10, "algorithm": "token_bucket", "burst": 50},
                }
            ],
        },
    ],
)


def admin(made):
    return serving(admin_app(made))


def metrics_of(answer):
    """The samples of an exposition, by name and labels. It also checks that the text can be read."""
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found[sample.name, *sorted(sample.labels.items())] = sample.value
    return found


def test_the_metrics_count_requests_and_refused_inputs(server):
    made = service()
    client = server.use(made=made)
    for _ in range(3):
        client.get("/auth", headers=nginx())
    client.get("/auth")
    client.post("/v1/check", content=b"{")
    asked = {"domain": "hunter2", "descriptors": [{"entries": [{"key": "hunter2"}]}]}
    client.post("/json", json=asked)
    with admin(made) as operator:
        answer = operator.get("/metrics")
    found = metrics_of(answer)
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert found["ratelimit_service_requests_total", ("endpoint", "/auth")] == 4
    decided = {outcome: found["ratelimit_requests_total", ("outcome", outcome)] for outcome in ("allowed", "denied")}
    assert decided == {"allowed": 2, "denied": 1}
    assert found["ratelimit_rule_requests_total", ("outcome", "denied"), ("rule", "everybody")] == 1
    assert found["ratelimit_service_refused_total", ("reason", "no_original_request")] == 1
    assert found["ratelimit_service_refused_total", ("reason", "bad_request")] == 1
    assert found["ratelimit_service_unknown_domains_total",] == 1
    assert found["ratelimit_service_ready",] == 1
    assert found["ratelimit_service_config_load_success",] == 1
    assert found["ratelimit_service_config_load_error",] == 0
    assert "hunter2" not in answer.text


def test_the_metrics_show_that_newer_rules_cannot_be_used(tmp_path):
    path = tmp_path / "ratelimits.yaml"
    path.write_text("domain: shop\nrules: [{name: r, by: ip, limit: 5 per minute}]\n")
    made = service(str(path))
    with admin(made) as operator:
        before = metrics_of(operator.get("/metrics"))
        for content in ("domain: shop\nrules: [{name: r, by: ip, limit: 6 per minute}]\n", "rules: hunter2\n"):
            path.write_text(content)
            with suppress(ConfigurationError):
                made.limiter.reload()
            after = operator.get("/metrics")
        text = operator.get("/rlconfig").text
    made.limiter.close()
    names = ("success", "error")
    assert [before[f"ratelimit_service_config_load_{name}",] for name in names] == [1, 0]
    assert [metrics_of(after)[f"ratelimit_service_config_load_{name}",] for name in names] == [2, 1]
    assert metrics_of(after)["ratelimit_service_config_newest",] == 0
    assert "newer rules cannot be used" in text
    assert "6 per minute" in text


def test_the_rules_in_force_are_readable():
    with RateLimiter(RULES) as limiter:
        first, *lines = rules_text(limiter).splitlines()
    assert first.startswith("# version ")
    assert lines == [
        "shop.login: 10 per minute and 100 per hour; other limits by tier; shadow",
        "shop.burst: 10 per second, 50 at once",
        "shop.asked: 10 per second",
        "shop.tenant: unit=MINUTE requests_per_unit=3, shadow_mode: false, quota_mode: false",
        "shop.tenant=gold/path2: 10 per second, 50 at once (token_bucket), shadow_mode: true, quota_mode: false",
        "shop.tenant=gold: unlimited",
    ]


STATS = {
    "domain": "shop",
    "descriptors": [
        {"key": "ip", "value": "203.0.113.7", "rate_limit": {"unit": "minute", "requests_per_unit": 2}},
        {"key": "path", "value": "/a:*", "descriptors": [
            {"key": "user", "rate_limit": {"unit": "minute", "requests_per_unit": 1}, "shadow_mode": True},
        ]},
    ],
}  # fmt: skip


def test_the_stats_are_the_lines_of_the_go_service(server):
    made = service(STATS)
    client = server.use(made=made)
    entries = {"path": "/a:hunter2", "user": "hunter2"}, {"ip": "203.0.113.7"}
    for each in entries:
        asked = [{"key": key, "value": value} for key, value in each.items()]
        for _ in range(3):
            client.post("/json", json={"domain": "shop", "descriptors": [{"entries": asked}]})
    client.post("/json", json={"domain": ""})
    with admin(made) as operator:
        found = operator.get("/stats")
    assert found.headers["content-type"].startswith("text/plain")
    hits = "ratelimit.service.rate_limit.shop"
    address, path = f"{hits}.ip_203_0_113_7", f"{hits}.path_/a_*.user"
    assert found.text.splitlines() == [
        "ratelimit.service.call.should_rate_limit.redis_error: 0",
        "ratelimit.service.call.should_rate_limit.service_error: 1",
        "ratelimit.service.config_load_error: 0",
        "ratelimit.service.config_load_success: 1",
        "ratelimit.service.global_shadow_mode: 0",
        f"{address}.near_limit: 1",
        f"{address}.over_limit: 1",
        f"{address}.over_limit_with_local_cache: 0",
        f"{address}.shadow_mode: 0",
        f"{address}.total_hits: 3",
        f"{address}.within_limit: 2",
        f"{path}.near_limit: 1",
        f"{path}.over_limit: 2",
        f"{path}.over_limit_with_local_cache: 0",
        f"{path}.shadow_mode: 2",
        f"{path}.total_hits: 3",
        f"{path}.within_limit: 1",
        "ratelimit_server.ShouldRateLimit.total_requests: 0",
    ]


def posted(client, key, number=1):
    for _ in range(number):
        client.post("/json", json={"domain": "shop", "descriptors": [{"entries": [{"key": key, "value": "x"}]}]})


def test_what_the_store_the_service_and_the_switch_decide_has_the_names_of_the_go_service(server, monkeypatch):
    monkeypatch.setenv("RATELIMIT_MW", "shadow")
    port = free_port()
    limits = [
        {"key": key, "shadow_mode": dark, "rate_limit": {"unit": "day", "requests_per_unit": 0}}
        for key, dark in (("limited", False), ("dark", True))
    ]
    made = service({"domain": "shop", "storage": {"url": f"redis://127.0.0.1:{port}/0"}, "descriptors": limits})
    client = server.use(made=made)
    posted(client, "limited", 2)
    client.post("/json", json={"domain": "shop"})
    with admin(made) as operator:
        away = metrics_of(operator.get("/metrics"))
    other = service({"domain": "shop", "descriptors": limits})
    client = server.use(made=other)
    posted(client, "limited", 2)
    posted(client, "dark", 3)
    with admin(other) as operator:
        shadowed = metrics_of(operator.get("/metrics"))
    name = "ratelimit_service_should_rate_limit_error"
    assert [away[name, ("err_type", kind)] for kind in ("redis_error", "service_error")] == [2, 1]
    assert shadowed["ratelimit_service_global_shadow_mode",] == 2


def test_denials_from_the_cache_of_denials_are_counted(server, any_server):
    made = service({**STATS, "storage": {"url": any_server.url, "timeout": "5s"}})
    client = server.use(made=made)
    for _ in range(5):
        asked = {"entries": [{"key": "ip", "value": "203.0.113.7"}]}
        client.post("/json", json={"domain": "shop", "descriptors": [asked]})
    with admin(made) as operator:
        found = metrics_of(operator.get("/metrics"))
    labels = ("domain", "shop"), ("key1", "ip_203_0_113_7")
    names = ("total_hits", "over_limit", "over_limit_with_local_cache")
    assert [found[f"ratelimit_service_rate_limit_{name}", *labels] for name in names] == [5, 3, 2]


def test_the_admin_port_needs_an_admin_token_if_the_service_has_tokens(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text("check check-0123456789\nadmin admin-0123456789\n")
    made = service(token_file=tokens)
    callers = [{}, *({"Authorization": f"Bearer {name}-0123456789"} for name in ("check", "admin"))]
    with admin(made) as operator:
        found = {
            tuple(operator.get(path, headers=each).status_code for each in callers)
            for path in ("/metrics", "/rlconfig", "/stats")
        }
        unknown = operator.get("/other").status_code
    made.limiter.close()
    assert (found, unknown) == ({(401, 403, 200)}, 404)


HOSTS = {
    "localhost": 200,
    "LocalHost:9090": 200,
    "127.0.0.1:9090": 200,
    "127.1.2.3": 200,
    "[::1]:9090": 200,
    "[::1]": 200,
    "evil.example": 421,
    "127.0.0.1.evil.example:9090": 421,
    "localhost.evil.example": 421,
    "192.0.2.1:9090": 421,
    "[2001:db8::1]:9090": 421,
    "[::1": 421,
    "": 421,
}


def test_a_page_whose_name_leads_to_this_machine_can_not_read_the_admin_port():
    made = service()
    with admin(made) as operator:
        found = {host: operator.get("/metrics", headers={"Host": host}) for host in HOSTS}
    made.limiter.close()
    assert {host: answer.status_code for host, answer in found.items()} == HOSTS
    assert found["evil.example"].json()["problems"][0].startswith("the Host of a request must be localhost")
    assert made.refused == {"host": list(HOSTS.values()).count(421)}


@pytest.mark.parametrize("protected", ["by tokens", "by a certificate", "by a unix socket"])
def test_a_protected_admin_port_answers_to_each_host(tmp_path, protected):
    tokens = tmp_path / "tokens"
    tokens.write_text("admin admin-0123456789\n")
    settings = {
        "by tokens": {"token_file": tokens},
        "by a certificate": {"tls_cert": tmp_path},
        "by a unix socket": {"admin": Address("", 0, "/socket")},
    }
    made = service(**settings[protected])
    headers = {"Host": "metrics.example", "Authorization": "Bearer admin-0123456789"}
    with admin(made) as operator:
        answer = operator.get("/metrics", headers=headers)
    made.limiter.close()
    assert answer.status_code == 200


DESCRIPTORS = {
    "domain": "shop",
    "descriptors": [
        {"key": "address", "rate_limit": {"unit": "minute", "requests_per_unit": 10}},
        {
            "key": "path",
            "value": "/login",
            "descriptors": [
                {
                    "key": "address",
                    "shadow_mode": True,
                    "rate_limit": {"unit": "minute", "requests_per_unit": 2},
                    "descriptors": [{"key": "plan", "rate_limit": {"unit": "minute", "requests_per_unit": 1}}],
                }
            ],
        },
    ],
}


def hits(found, *keys):
    """The hits of a descriptor: all, over, near and within the limit, and in shadow mode."""
    labels = sorted({"domain": "shop", **dict(zip(("key1", "key2"), keys, strict=False))}.items())
    names = ("total_hits", "over_limit", "near_limit", "within_limit", "shadow_mode")
    return [found[f"ratelimit_service_rate_limit_{name}", *labels] for name in names]


def test_the_hits_of_descriptors_have_the_names_of_the_go_service(server):
    made = service(DESCRIPTORS, near=0.5)
    client = server.use(made=made)
    path, address = {"key": "path", "value": "/login"}, {"key": "address", "value": "hunter2"}
    with admin(made) as operator:
        for number, entries in ((12, [address]), (3, [path, address])):
            for _ in range(number):
                client.post("/json", json={"domain": "shop", "descriptors": [{"entries": entries}]})
        answer = operator.get("/metrics")
        plan = {"entries": [path, address, {"key": "plan", "value": "hunter2"}]}
        client.post("/json", json={"domain": "shop", "descriptors": [plan]})
        deeper = metrics_of(operator.get("/metrics"))
    found = metrics_of(answer)
    assert hits(found, "address") == [12, 2, 5, 10, 0]
    assert hits(found, "path_/login", "address") == [3, 1, 1, 2, 1]
    assert hits(deeper, "path_/login", "address")[0] == 4
    assert "hunter2" not in answer.text


def test_a_limit_that_is_sent_along_has_no_series_of_its_own(server):
    made = service(DESCRIPTORS)
    client = server.use(made=made)
    limit = {"requestsPerUnit": 1, "unit": "HOUR"}
    with admin(made) as operator:
        for number in range(5):
            entries = [{"key": f"hunter{number}", "value": "hunter"}]
            client.post("/json", json={"domain": "shop", "descriptors": [{"entries": entries, "limit": limit}]})
        answer = operator.get("/metrics")
    assert "hunter" not in answer.text
    assert sum(name.startswith("ratelimit_service_rate_limit_total_hits") for name, *_ in metrics_of(answer)) <= 1
