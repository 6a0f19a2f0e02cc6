"""The cases of envoyproxy/ratelimit's own tests and README, in our words, and what became of each of them here.

`TABLE` names each case. Tests of theirs about parts that this service does not have are in it, too.
"""

from typing import NamedTuple

from tests.proxies.wire import Step, over, passed

README = {
    "README 1: limits by exact values": (
        """
  - {key: database, value: users, rate_limit: {unit: second, requests_per_unit: 2}}
  - {key: database, value: default, rate_limit: {unit: second, requests_per_unit: 3}}
""",
        [
            Step(["database=users", "database=default"], [passed("2/SECOND", 1, 1), passed("3/SECOND", 2, 1)]),
            Step(["database=other"], [passed()]),
        ],
    ),
    "README 2: a nested limit and one for each number are both asked": (
        """
  - key: message_type
    value: marketing
    descriptors: [{key: to_number, rate_limit: {unit: day, requests_per_unit: 1}}]
  - {key: to_number, rate_limit: {unit: day, requests_per_unit: 3}}
""",
        [
            Step(
                ["message_type=marketing to_number=1", "to_number=1"],
                [passed("1/DAY", 0, 84178), passed("3/DAY", 2, 84178)],
            ),
            Step(
                ["message_type=marketing to_number=1", "to_number=1"],
                [over("1/DAY", 0, 84178), passed("3/DAY", 2, 84178)],
            ),
            Step(["message_type=marketing to_number=2"], [passed("1/DAY", 0, 84178)]),
            Step(["message_type=other to_number=1"], [passed()]),
        ],
    ),
    "README 3: the exact value comes before the key alone, and 0 denies": (
        """
  - {key: remote_address, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: remote_address, value: 50.0.0.5, rate_limit: {unit: second, requests_per_unit: 0}}
""",
        [
            Step(["remote_address=50.0.0.1"], [passed("10/SECOND", 9, 1)]),
            Step(["remote_address=50.0.0.5"], [over("0/SECOND", 0, 0)]),
        ],
    ),
    "README 4: the depth must be exact": (
        """
  - {key: flat, value: value, rate_limit: {requests_per_unit: 300, unit: second}}
  - {key: deep, value: value, descriptors: [{key: subkey, rate_limit: {requests_per_unit: 300, unit: second}}]}
""",
        [
            Step(["flat=value subkey=x", "deep=value"], [passed(), passed()]),
            Step(["flat=value", "deep=value subkey=x"], [passed("300/SECOND", 299, 1)] * 2),
        ],
    ),
    "README 5: an unlimited key and a limited one": (
        """
  - {key: ldap, rate_limit: {unlimited: true}}
  - {key: azure, rate_limit: {unit: minute, requests_per_unit: 100}}
""",
        [Step(["ldap=x", "azure=x"], [passed(remaining=2**32 - 1), passed("100/MINUTE", 99, 58)])],
    ),
    "README 6: shadow mode for one user": (
        """
  - key: service
    descriptors:
      - {key: user, value: user-a, shadow_mode: true, rate_limit: {requests_per_unit: 1, unit: second}}
      - {key: user, value: user-b, rate_limit: {requests_per_unit: 1, unit: second}}
""",
        [
            *[Step(["service=auth user=user-a"], [passed("1/SECOND", 0, 1)])] * 3,
            Step(["service=auth user=user-b"], [passed("1/SECOND", 0, 1)]),
            Step(["service=auth user=user-b"], [over("1/SECOND", 0, 1)]),
        ],
    ),
    "README 7: a limit replaces another by its name": (
        """
  - key: key_1
    value: value_1
    descriptors: [{key: user, value: ann, rate_limit: {name: specific, requests_per_unit: 5, unit: second}}]
  - key: key_2
    value: value_2
    descriptors:
      - {key: user, value: ann, rate_limit: {replaces: [{name: specific}], requests_per_unit: 10, unit: second}}
""",
        [
            Step(["key_1=value_1 user=ann"], [passed("5/SECOND specific", 4, 1)]),
            Step(["key_1=value_1 user=ann", "key_2=value_2 user=ann"], [passed(), passed("10/SECOND", 9, 1)]),
        ],
    ),
    "README 9: wildcards at any place": (
        """
  - {key: key1, value: "value*", rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: path, value: "/api/*/action", rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: route, value: "/api/*/resource/*/action", rate_limit: {unit: minute, requests_per_unit: 20}}
""",
        [
            *[
                Step([entry], [passed("20/MINUTE", 19, 58)])
                for entry in (
                    "key1=value1",
                    "key1=valueXYZ",
                    "path=/api/123/action",
                    "route=/api/v1/resource/123/action",
                    "route=/api/v2/resource/456/action",
                )
            ],
            *[Step([entry], [passed()]) for entry in ("key1=other", "path=/api/123/other", "route=/api/v1/action")],
        ],
    ),
    "README 11: values share a threshold or not": (
        """
  - {key: files, value: "files/*", share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: own, value: "own/*", share_threshold: false, rate_limit: {unit: hour, requests_per_unit: 1}}
""",
        [
            Step(["files=files/a.pdf"], [passed("2/HOUR", 1, 1378)]),
            Step(["files=files/b.csv"], [passed("2/HOUR", 0, 1378)]),
            Step(["files=files/c.txt"], [over("2/HOUR", 0, 1378)]),
            *[Step([f"own=own/{name}"], [passed("1/HOUR", 0, 1378)]) for name in "ab"],
        ],
    ),
}

_MINUTE = "rate_limit: {unit: minute, requests_per_unit: 9}"

METRICS = {
    "a value of the file": (f"{{key: k, value: v, {_MINUTE}}}", "k=v", "k_v"),
    "a key without a value": (f"{{key: k, {_MINUTE}}}", "k=v", "k"),
    "a nested key": (f"{{key: k, value: v, descriptors: [{{key: sub, {_MINUTE}}}]}}", "k=v sub=x", "k_v.sub"),
    "a wildcard": (f'{{key: k, value: "a*", {_MINUTE}}}', "k=abc", "k_a*"),
    "a wildcard in the middle": (f'{{key: k, value: "a*c*", {_MINUTE}}}', "k=abcd", "k_a*c*"),
    "a shared wildcard": (f'{{key: k, value: "f/*", share_threshold: true, {_MINUTE}}}', "k=f/x", "k_f/*"),
    "a shared wildcard with value_to_metric": (
        f'{{key: k, value: "f/*", share_threshold: true, value_to_metric: true, {_MINUTE}}}',
        "k=f/x",
        "k_f/*",
    ),
    "nested shared wildcards": (
        f'{{key: k, value: "t*p", share_threshold: true, descriptors: [{{key: r, value: "r*v", share_threshold: true, {_MINUTE}}}]}}',  # noqa: E501  one text
        "k=tap r=rav",
        "k_t*p.r_r*v",
    ),
    # Theirs puts the value of the request into these.
    "detailed_metric": (f"{{key: k, detailed_metric: true, {_MINUTE}}}", "k=hunter2", "k"),
    "value_to_metric": (f"{{key: k, value_to_metric: true, {_MINUTE}}}", "k=hunter2", "k"),
    "a wildcard with value_to_metric": (
        f'{{key: k, value: "h*", value_to_metric: true, {_MINUTE}}}',
        "k=hunter2",
        "k_h*",
    ),
}
"""A descriptor, a request, and the name of its counts at /stats."""

REFUSED = {
    "an empty domain": "descriptors:\n  - {key: a}\n",
    "an empty key": "domain: d\ndescriptors: [{value: a}]\n",
    "a key twice": "domain: d\ndescriptors: [{key: a, value: b}, {key: a, value: b}]\n",
    "an unknown unit": "domain: d\ndescriptors: [{key: a, rate_limit: {unit: foo, requests_per_unit: 5}}]\n",
    "a limit that replaces itself": (
        "domain: d\ndescriptors:\n"
        "  - {key: a, rate_limit: {unit: day, requests_per_unit: 5, name: n, replaces: [{name: n}]}}\n"
    ),
    "an empty replaces": (
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 5, replaces: [{name: }]}}]\n"
    ),
    "no YAML": "'''\n",
    "a misspelt key": "domain: d\ndescriptors: [{key: a, ratelimit: {unit: day, requests_per_unit: 5}}]\n",
    "a misspelt key of a limit": "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requestsperunit: 5}}]\n",
    "a key that is no text": "0.25: d\ndescriptors: [{key: a}]\n",
    "a list of texts": "domain: d\ndescriptors: [a, b]\n",
    "unlimited with a unit": (
        "domain: d\ndescriptors: [{key: a, rate_limit: {unlimited: true, unit: day, requests_per_unit: 5}}]\n"
    ),
    "share_threshold without a wildcard": (
        "domain: d\ndescriptors:\n"
        "  - {key: a, value: b, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 5}}\n"
    ),
}
"""Files that are refused."""


class GoCase(NamedTuple):
    """A case of theirs.

    Attributes:
        where: The file in their repository.
        name: The name of the test, and of a part of it.
        outcome: `same`, `differs` or `absent`.
        shown: If it is the same, the test of ours that shows it: the file in tests/ and the beginning of its name, or
            that of the name of a case in `CASES` (of test_translated.py), `METRICS` or `REFUSED`. If it differs,
            the situation in the table "Where the answers differ" of the page. If it is absent, the variable of the
            page that sets it there.
    """

    where: str
    name: str
    outcome: str
    shown: str


_CODES = "a quota is exhausted, another one is left"
_GLOBAL = "global shadow mode"
_VALUES = "`detailed_metric`, `value_to_metric`, limits that are sent along"
_CHARGED = "a request is denied by one of its limits"

TABLE = [GoCase(*[cell.strip() for cell in line.split("|")]) for line in f"""
service | TestService | same | TestService
service | TestService, a reload | same | proxies/test_translated.py::test_rules_that_cannot_be_used_leave
service | TestServiceGlobalShadowMode | differs | {_GLOBAL}
service | TestRuleShadowMode | same | TestRuleShadowMode
service | TestMixedRuleShadowMode | same | TestMixedRuleShadowMode
service | TestServiceWithCustomRatelimitHeaders | absent | LIMIT_LIMIT_HEADER
service | TestServiceWithDefaultRatelimitHeaders | same | proxies/test_translated.py::test_the_headers_are_those
service | TestEmptyDomain | same | proxies/test_translated.py::test_an_empty_domain_and_no_descriptors
service | TestEmptyDescriptors | same | proxies/test_translated.py::test_an_empty_domain_and_no_descriptors
service | TestCacheError | differs | Redis does not answer
service | TestInitialLoadError | differs | the rules cannot be used at start
service | TestUnlimited | same | TestUnlimited
service | TestServiceTracer | absent | TRACING_*
service | TestServiceHealthStatus | same | service/test_life_cycle.py::test_a_drain_says_not_ready
service | TestServiceHealthStatusAtLeastOneConfigLoaded | absent | HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED
service | TestServiceGlobalQuotaMode | absent | QUOTA_MODE
service | TestMetadataReturnedForPassedDescriptors | absent | RESPONSE_DYNAMIC_METADATA
service | TestMetadataReturnedForAllPassedDescriptors | absent | RESPONSE_DYNAMIC_METADATA
service | TestOverlappingMetadataReturnsTheFirstValue | absent | RESPONSE_DYNAMIC_METADATA
service | TestServicePerDescriptorQuotaMode | same | TestServicePerDescriptorQuotaMode
service | TestServiceMixedPerDescriptorModes | same | TestServiceMixedPerDescriptorModes:
service | TestServiceMixedPerDescriptorModesUnderLimit | same | TestServiceMixedPerDescriptorModesUnderLimit
service | TestServiceQuotaModeOnlyAllOverTheLimit | same | TestServiceQuotaModeOnly
service | TestServiceQuotaModeOnlySomeOverTheLimit | differs | {_CODES}
service | TestServiceQuotaModeWithShadowMode | differs | {_GLOBAL}
service | TestServiceMixedModeWithShadowMode | differs | {_GLOBAL}
redis | TestRedis, WithoutPerSecondRedis | same | TestRedis: a limit is counted per second
redis | TestRedis, hits of descriptors | same | TestRedis: 0 hits are denied above the limit
redis | TestRedis, hits above the limit | differs | a descriptor's own `hits_addend` on a counter above its limit
redis | TestRedis, WithPerSecondRedis | absent | REDIS_PERSECOND*
redis | TestOverLimitWithLocalCache | same | proxies/test_translated.py::test_a_denied_client_does_not_reach
redis | TestOverLimitWithLocalCache, counts | same | service/test_admin.py::test_denials_from_the_cache
redis | TestNearLimit | same | proxies/test_translated.py::test_hits_near_and_over_the_limit_are_counted
redis | TestNearLimit, hits that do not fit | differs | a request does not fit, but a smaller one would
redis | TestRedisWithJitter | absent | EXPIRATION_JITTER_MAX_SECONDS
redis | TestOverLimitWithLocalCacheShadowRule | same | proxies/test_translated.py::test_hits_of_a_limit_in_shadow_mode
redis | TestRedisTracer | absent | TRACING_*
redis | TestOverLimitWithStopCacheKeyIncrementWhenOverlimitConfig | same | TestOverLimitWithStopCacheKey
config | TestBasicConfig | same | a nested key
config | TestBasicConfig, detailed_metric | differs | {_VALUES}
config | TestDomainMerge | absent | MERGE_DOMAIN_CONFIG
config | TestConfigLimitOverride | same | service/test_messages.py::test_a_limit_sent_along_replaces_that_of_the_file
config | TestConfigLimitOverride, counts | differs | {_VALUES}
config | TestEmptyDomain | same | an empty domain
config | TestDuplicateDomain | same | proxies/test_translated.py::test_two_files_of_one_domain_are_refused
config | TestEmptyKey | same | an empty key
config | TestDuplicateKey | same | a key twice
config | TestDuplicateKeyDomainMerge | absent | MERGE_DOMAIN_CONFIG
config | TestBadLimitUnit | same | an unknown unit
config | TestReplacesSelf | same | a limit that replaces itself
config | TestReplacesEmpty | same | an empty replaces
config | TestBadYaml | same | no YAML
config | TestMisspelledKey | same | a misspelt key
config | TestMisspelledKey, of a limit | same | a misspelt key of a limit
config | TestNonStringKey | same | a key that is no text
config | TestNonMapList | same | a list of texts
config | TestUnlimitedWithRateLimitUnit | same | unlimited with a unit
config | TestShadowModeConfig | same | README 6
config | TestWildcardConfig | same | README 9
config | TestWildcardConfig, counts | same | a wildcard in the middle
config | TestDetailedMetric, 7 parts | differs | {_VALUES}
config | TestValueToMetric_UsesRuntimeValuesInStats | differs | {_VALUES}
config | TestValueToMetric_DefaultKeyIncludesValueAtThatLevel | differs | {_VALUES}
config | TestValueToMetric_MidLevelOnly | differs | {_VALUES}
config | TestValueToMetric_NoFlag_Unchanged | same | a key without a value
config | TestValueToMetric_DoesNotOverrideDetailedMetric | differs | {_VALUES}
config | TestValueToMetric_WithConfiguredValues | same | a value of the file
config | TestValueToMetric_WithWildcard | differs | {_VALUES}
config | TestValueToMetric_WithEmptyValue | differs | {_VALUES}
config | TestValueToMetric_FullKeyMatchesStatsKey | differs | {_VALUES}
config | TestShareThreshold, Basic share_threshold | same | README 11
config | TestShareThreshold, share_threshold with metrics | same | a shared wildcard
config | TestShareThreshold, Nested wildcards | same | nested shared wildcards
config | TestShareThreshold, Explicit value precedence over wildcard | same | README 3
config | TestShareThreshold, share_threshold with middle wildcard | same | README 11
config | TestShareThreshold, share_threshold with multi-wildcard | same | README 11
config | TestShareThreshold, priority over value_to_metric | same | a shared wildcard with value_to_metric
config | TestShareThreshold, nested middle wildcards | same | nested shared wildcards
config | TestWildcardStatsBehavior, no flags | same | a wildcard
config | TestWildcardStatsBehavior, value_to_metric | differs | {_VALUES}
config | TestWildcardStatsBehavior, share_threshold | same | a shared wildcard
config | TestWildcardStatsBehavior, share_threshold with value_to_metric | same | a shared wildcard with value_to_metric
config | TestWildcardStatsBehavior, value_to_metric in other descriptor | differs | {_VALUES}
config | TestWildcardStatsBehavior, middle and trailing, no flags | same | a wildcard in the middle
config | TestWildcardStatsBehavior, middle and trailing, value_to_metric | differs | {_VALUES}
config | TestMetadata | absent | RESPONSE_DYNAMIC_METADATA
integration | TestBasicConfig, WithoutPerSecondRedis | same | simple-get.sh
integration | TestBasicConfig, WithoutPerSecondRedis, two keys | differs | {_CHARGED}
integration | TestBasicConfig, WithPerSecondRedis | absent | REDIS_PERSECOND*
integration | TestBasicConfig, WithLocalCache | same | proxies/test_translated.py::test_a_denied_client_does_not_reach
integration | TestBasicConfig, WithCachePrefix | absent | CACHE_KEY_PREFIX
integration | TestBasicConfig, WithstopCacheKeyIncrement… | same | TestOverLimitWithStopCacheKey
integration | TestXdsProviderBasicConfig | absent | CONFIG_GRPC_XDS_*
integration | TestBasicConfig_ExtraTags | absent | EXTRA_TAGS
integration | TestBasicTLSConfig | same | cluster/test_tls_and_acl.py::test_tls_to_every_node_of_a_cluster
integration | TestBasicAuthConfig | same | cluster/test_tls_and_acl.py::test_acl_on_a_cluster
integration | TestBasicAuthConfigWithRedisCluster | same | cluster/test_tls_and_acl.py::test_acl_on_a_cluster
integration | TestBasicAuthConfigWithRedisSentinel | same | cluster/test_tls_and_acl.py::test_acl_on_a_sentinel_s_master
integration | TestBasicReloadConfig | same | service/test_life_cycle.py::test_reloads_under_load_fail_no_request
integration | TestXdsProviderBasicConfigReload | absent | CONFIG_GRPC_XDS_*
integration | TestBasicConfigMemcache | absent | MEMCACHE_*
integration | TestConfigMemcacheWithMaxIdleConns | absent | MEMCACHE_*
integration | TestMultiNodeMemcache | absent | MEMCACHE_*
integration | Test_mTLS | same | service/test_life_cycle.py::test_with_a_client_ca_only_its_clients_are_served
integration | TestReloadGRPCServerCerts | same | service/test_certificates.py::test_new_files_serve_new_connections
integration | TestShareThreshold | same | README 11
server | TestHealthCheck, TestGrpcHealthCheck | same | service/test_grpc.py::test_the_health_of_each_name
server | TestHealthyWithAtLeastOneConfigLoaded | absent | HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED
server | TestJsonHandler | same | service/test_json.py::test_the_answer_is_as_the_go_service_writes_it
scripts | simple-get.sh | same | simple-get.sh
scripts | trigger-ratelimit.sh | same | simple-get.sh, trigger-ratelimit.sh
scripts | trigger-shadow-mode-key.sh | same | trigger-shadow-mode-key.sh
scripts | value-included-in-stats-key-when-unspecified.sh | same | value-included-in-stats-key-when-unspecified.sh
scripts | value-included-in-stats-key-when-unspecified.sh, /stats | differs | {_VALUES}
scripts | quota.sh | same | quota.sh
scripts | token-quota.sh | same | token-quota.sh
scripts | multiservice-tokenquota.sh | same | multiservice-tokenquota.sh
scripts | multiservice-tokenquota.sh, the metadata | absent | RESPONSE_DYNAMIC_METADATA
scripts | replaces.sh | same | replaces.sh
README | example 1 | same | README 1
README | example 2 | same | README 2
README | example 3 | same | README 3
README | example 4 | same | README 4
README | example 5 | same | README 5
README | example 6 | same | README 6
README | example 7 | same | README 7
README | example 8 | differs | {_VALUES}
README | example 9 | same | README 9
README | example 10 | differs | {_VALUES}
README | example 11 | same | README 11
README | example 11, value_to_metric | same | a shared wildcard with value_to_metric
README | statistics, /stats | same | service/test_admin.py::test_the_stats_are_the_lines_of_the_go_service
README | statistics, Prometheus | same | service/test_admin.py::test_the_hits_of_descriptors
""".strip().splitlines()]  # fmt: skip

FOUND_BY_USE = {
    "equal descriptors do not fit together": "test_lists.py::test_lists_that_lead_to_one_counter_ask_it_once",
    "`duration_until_reset` of a denial": "service/test_messages.py::test_a_denial_has_the_true_time_to_wait",
    "(`a`, `b_c`) and (`a_b`, `c`)": "rules/test_descriptors.py::test_keys_and_values_that_join_alike",
    "a limit that Envoy sends along": "service/test_messages.py::test_a_limit_sent_along_replaces_that_of_the_file",
    "a limit without `requests_per_unit`": "rules/test_broken_files.py::test_every_problem_is_said_at_its_place",
    "a `shadow_mode` limit with `replaces`": "rules/test_descriptors.py::test_a_shadow_replaces_shadows_only",
    "an IPv6 address as `remote_address`": "rules/test_descriptors.py::test_an_address_that_no_request_has",
}
"""The differences that no case of theirs shows, each with the test that shows it here."""
