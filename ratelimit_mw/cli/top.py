"""`ratelimit-mw top`."""

from ratelimit_mw.cli.counters import Limits, nearest_full, read, scanned, stems
from ratelimit_mw.cli.engine import opened, shared_store
from ratelimit_mw.cli.options import DEFAULT_CONFIG, Config, Json, Most, Storage
from ratelimit_mw.cli.show import tell


def top(*, most: Most = 20, config: Config = DEFAULT_CONFIG, storage: Storage = None, as_json: Json = False) -> None:
    """Show the counters closest to their limit, or at it. Nothing is charged.

    All counters are looked at, a page at a time. Where a limit goes by tier, the default's is shown.
    """
    with opened(config, storage) as limiter:
        limits = Limits(limiter.rules)
        store = shared_store(limiter.rules, storage)
        try:
            tell(nearest_full(read(store, limits, scanned(store, stems(limits, None))), most), as_json=as_json)
        finally:
            store.close()
