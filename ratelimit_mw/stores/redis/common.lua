-- The beginning of each script. A script decides requests one after the other, in order of arrival. Each request is charged
-- entirely or not at all.
--
-- KEYS  the counters of all asks, in order
-- ARGV  1  a nonce of eight bytes, which the reply repeats
--       2  the time in microseconds, or '' for the server's clock
--       3  the packed terms: flags, algorithm, limit, period, burst or buckets, longest_wait, cost, and one more number:
--          the time at which a charge to be refunded was made, or with OVERDRAFT the number of the terms of the
--          widened quota; times are in microseconds
--       4  the number of the terms of each ask, from 0 on, in two bytes each; '' if all asks have the first terms
-- Reply    the nonce, the time, the packed outcomes in order (allowed, remaining, reset_after, retry_after or FAILED,
--          delay), and the text of the first error
local SHADOW, LAST, PEEK, FORGET, REFUND, INSIST, OVERDRAFT = 1, 2, 4, 8, 16, 32, 64
local FAILED = -2
local TERMS = '<BBdddddd'
local TERMS_SIZE = 50
local OUTCOME = '<Bi8i8i8i8'

-- Under a clock that is moved by hand, keys must not expire by the server's clock: a TTL is one hour at least.
local now, least_ttl = tonumber(ARGV[2]), 3600000
if not now then
  local time = call('TIME')
  now, least_ttl = time[1] * 1000000 + time[2], 0
end
