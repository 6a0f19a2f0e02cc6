"""What each algorithm means, in exact rationals and from the whole history: slow, and easy to believe.

Written from the contract's table, not from the code. Times are whole microseconds, so (t − P, t] is
the moments from t − P + 1 to t.
"""

from fractions import Fraction
from math import floor


class Model:
    """All that was admitted so far, as (time, cost)."""

    def __init__(self, quota):
        self.quota = quota
        self.admitted = []

    def level(self, now):
        """How much of the limit is used at `now`, exactly."""
        raise NotImplementedError

    def reset_at(self, now):
        """When the counter is as if unused."""
        raise NotImplementedError

    @property
    def holds(self):
        return self.quota.limit

    def fits(self, cost, now):
        return self.quota.limit > 0 and self.level(now) + cost <= self.holds

    def remaining(self, now):
        return max(floor(self.holds - self.level(now)), 0) if self.quota.limit else 0

    def delay(self, cost, now):
        """How long what fits has to wait for its turn."""
        return 0

    def admit(self, cost, now):
        if cost:
            self.admitted.append((now, cost))

    def taken(self, first, last):
        """What was admitted from the moment `first` to the moment `last`, both counted."""
        return sum(cost for time, cost in self.admitted if first <= time <= last)


class FixedWindow(Model):
    def level(self, now):
        start = now // self.quota.period * self.quota.period
        return self.taken(start, start + self.quota.period - 1)

    def reset_at(self, now):
        return (now // self.quota.period + 1) * self.quota.period


class SlidingLog(Model):
    def level(self, now):
        return self.taken(now - self.quota.period + 1, now)

    def reset_at(self, now):
        return max([now, *(time + self.quota.period for time, _ in self.admitted)])


class SlidingWindow(Model):
    def level(self, now):
        period = self.quota.period
        start = now // period * period
        elapsed_share = Fraction(now - start, period)
        return self.taken(start - period, start - 1) * (1 - elapsed_share) + self.taken(start, start + period - 1)

    def reset_at(self, now):
        period = self.quota.period
        return max([now, *((time // period + 2) * period for time, _ in self.admitted)])


class BucketedWindow(Model):
    def _slice(self, moment):
        return moment // -(-self.quota.period // self.quota.buckets)

    def level(self, now):
        oldest = self._slice(now - self.quota.period + 1)
        return sum(cost for time, cost in self.admitted if oldest <= self._slice(time))

    def reset_at(self, now):
        width = -(-self.quota.period // self.quota.buckets)
        ends = [(self._slice(time) + 1) * width - 1 for time, _ in self.admitted]
        return max([now, *(end + self.quota.period for end in ends)])


class TokenBucket(Model):
    @property
    def holds(self):
        return self.quota.burst

    @property
    def interval(self):
        return -(-self.quota.period // self.quota.limit)

    def level(self, now):
        missing, since = Fraction(0), 0
        for time, cost in [*self.admitted, (now, 0)]:
            missing = max(missing - Fraction(time - since, self.interval), 0) + cost
            since = time
        return missing

    def reset_at(self, now):
        return now + self.level(now) * self.interval if self.quota.limit else now

    def fits(self, cost, now):
        return self.quota.limit > 0 and cost <= self.holds and self.missing(cost, now) <= self.quota.longest_wait

    def missing(self, cost, now):
        """How long until the tokens for `cost` are there."""
        return max(self.level(now) + cost - self.holds, 0) * self.interval

    def delay(self, cost, now):
        return self.missing(cost, now) if cost and self.quota.limit else 0


class LeakyBucket(TokenBucket):
    def fits(self, cost, now):
        return Model.fits(self, cost, now) and self.delay(cost, now) <= self.quota.longest_wait

    def delay(self, cost, now):
        return self.level(now) * self.interval if cost and self.quota.limit else 0


MODELS = {
    "fixed_window": FixedWindow,
    "sliding_log": SlidingLog,
    "sliding_window": SlidingWindow,
    "bucketed_window": BucketedWindow,
    "token_bucket": TokenBucket,
    "leaky_bucket": LeakyBucket,
}
