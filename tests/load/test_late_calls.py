"""Calls that a frozen service reads after their clients have given up."""

import signal

import grpc
import pytest

from tests.support.service import RULES, Serving, request, rules_at


def test_a_call_whose_deadline_passes_while_the_service_is_frozen_charges_nothing(tmp_path):
    """The end of a call arrives right behind the call, so that this depends on what the service reads first."""
    late = request("shop", [("user", "late")])
    with Serving(rules_at(tmp_path, RULES)) as service:
        service.ask(late)
        service.signal(signal.SIGSTOP)
        try:
            for _ in range(3):
                with pytest.raises(grpc.RpcError) as raised:
                    service.ask(late, timeout=0.1)
                assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        finally:
            service.signal(signal.SIGCONT)
        assert service.ask(late).statuses[0].limit_remaining == 1
