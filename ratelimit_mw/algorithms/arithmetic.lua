-- Shared by all algorithms. A Lua number is a double, so whole numbers are exact below 2^53.
-- All times are whole microseconds. NEVER as `retry_after` means that no waiting helps.
local NEVER = -1

-- A key expires a second after its counter resets. If the new reset is in the same half of a second as the previous one, the
-- expiry may stay: half of that second is left.
local HALF = 500000

-- A local name is found faster than a field of a global table.
local call, pack_struct, unpack_struct = redis.call, struct.pack, struct.unpack
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

-- The functions of each algorithm, by its number. The files of the algorithms fill these tables. A script that only takes
-- from counters has no `refunds` and `denials`, because to make a table takes a thirtieth of a single decision.
--   algorithms[n](key, limit, period, burst or buckets, cost, now, longest_wait)
--     returns allowed, remaining, reset_after, retry_after, the state to write (nil: none), delay, and an offset. A
--     function as state writes by itself; it gets the TTL in milliseconds. With an offset (a text, because a number
--     would be formatted), the state overwrites the previous one from there on, and the expiry stays.
--   refunds[n](key, limit, period, burst or buckets, cost, charged_at, now) returns the state to write, or nothing.
local algorithms = {}

-- Returns floor(a × b ÷ c) and the remainder. Exact if a < 2^32, b and c < 2^49, and the quotient < 2^53.
local function multiply_divide(a, b, c)
  local product = a * b
  if product < 9007199254740992 then
    local remainder = product % c
    return (product - remainder) / c, remainder
  end
  -- Long division by four bits of `a` at a time keeps every intermediate value below 2^53.
  local quotient, remainder, unit = 0, 0, 268435456
  while unit >= 1 do
    local digit = floor(a / unit)
    a = a - digit * unit
    local shifted, added = remainder * 16, digit * b
    local q1, q2 = floor(shifted / c), floor(added / c)
    remainder = (shifted - q1 * c) + (added - q2 * c)
    quotient = quotient * 16 + q1 + q2
    if remainder >= c then
      quotient, remainder = quotient + 1, remainder - c
    end
    unit = unit / 16
  end
  return quotient, remainder
end
