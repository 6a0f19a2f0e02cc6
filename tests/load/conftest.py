"""The groups of servers of `tests/cluster`, and the clients of `tests/faults`."""

from tests.cluster.conftest import fresh_cluster, fresh_sentinels  # noqa: F401
from tests.faults.conftest import client_of, opens, proxy  # noqa: F401
