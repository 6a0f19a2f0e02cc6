"""The rules of the apps here. Whoever names himself in X-Client has counters of his own, so each test is somebody."""

import os

REDIS = os.environ.get("REDIS_URL")
WHO = {"by": "header:X-Client", "algorithm": "sliding_log"}

RULES = {
    "domain": "inside",
    "storage": {"url": REDIS or "memory://", "timeout": "5s"},
    "response": {"message": "{limit} of {rule}, that is all"},
    "rules": [
        {"name": "everything", **WHO, "limit": "9 per hour"},
        {"name": "mail", **WHO, "limit": "2 per hour", "on_demand": True},
        {"name": "exports", **WHO, "limit": "10 per hour", "cost": 2, "on_demand": True},
        {"name": "away", **WHO, "limit": "0 per hour", "on_demand": True},
        {
            "name": "turns",
            "by": "header:X-Client",
            "limit": "10 per second",
            "algorithm": "leaky_bucket",
            "on_demand": True,
        },
    ],
}
DENIED = {"message": "2 of mail, that is all"}
