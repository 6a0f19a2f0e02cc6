-- Decides a batch of requests, each alone and in order of arrival, and each all or nothing.
--
-- KEYS  the counters of all asks, in order
-- ARGV  1  a nonce of eight bytes, which the reply returns
--       2  the time in microseconds, or '' for the server's own
--       3  the asks, packed one after the other: flags, algorithm, limit, period, burst or buckets, how long a
--             request may wait, cost, and when what is given back was charged
-- Reply    the nonce, the time, the outcomes in order (allowed, remaining, reset, retry or FAILED, delay), packed one
--          after the other, and the first error's text
local SHADOW, LAST, PEEK, FORGET, REFUND, INSIST = 1, 2, 4, 8, 16, 32
local FAILED = -2
local ASK = '<BBdddddd'
local ASK_SIZE = 50

-- Under a clock that is moved by hand nothing may expire by the server's.
local now, least_ttl = tonumber(ARGV[2]), 3600000
if not now then
  local time = redis.call('TIME')
  now, least_ttl = time[1] * 1000000 + time[2], 0
end

-- The value and its TTL are written together: Lua is no rollback, and a key without a TTL would stay for ever. One that
-- is written `in_place` has the length and the end of the one before, and to overwrite that is half the work.
local function save(key, reset_after, write, in_place)
  if not write then return end
  if in_place then
    redis.call('SETRANGE', key, 0, write)
    return
  end
  local ttl = math.max(math.ceil(reset_after / 1000) + 1000, least_ttl)
  if type(write) == 'function' then
    write(ttl)
  else
    redis.call('SET', key, write, 'PX', ttl)
  end
end

local replies, complaint = {}, ''

local function reply(allowed, remaining, reset_after, retry_after, _, delay)
  replies[#replies + 1] = struct.pack('<Bi8i8i8i8', allowed and 1 or 0, remaining, reset_after, retry_after, delay or 0)
end

-- From several.lua, where that is a part of the script.
local carry_out
