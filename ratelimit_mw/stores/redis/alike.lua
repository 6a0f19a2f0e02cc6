-- Decides requests that each take from one counter, all on the same terms, apart from the costs in ARGV[4], if there are
-- any. This is the usual call, and any single request that asks one counter. It has one function of its own, because to
-- make more takes a good part of such a call.
local _, algorithm, limit, period, extra, longest_wait, every_cost = struct.unpack(TERMS, ARGV[3])
local decide, replies, first_error, costs = algorithms[algorithm], {}, '', ARGV[4]

local function take(key, number)
  local cost = costs == '' and every_cost or struct.unpack('<d', costs, 8 * number - 7)
  local allowed, remaining, reset_after, retry_after, write, delay, in_place =
    decide(key, limit, period, extra, cost, now, longest_wait)
  if write and in_place then -- as `save` in several.lua
    redis.call('SETRANGE', key, 0, write)
  elseif write then
    local ttl = math.max(math.ceil(reset_after / 1000) + 1000, least_ttl)
    if type(write) == 'function' then write(ttl) else redis.call('SET', key, write, 'PX', ttl) end
  end
  return struct.pack(OUTCOME, allowed and 1 or 0, remaining, reset_after, retry_after, delay or 0)
end

for number, key in ipairs(KEYS) do
  local succeeded, outcome = pcall(take, key, number)
  if not succeeded then -- an error of one request must not affect the other requests
    if first_error == '' then first_error = message_of(outcome, algorithm) end
    outcome = struct.pack(OUTCOME, 0, 0, 0, FAILED, 0)
  end
  replies[number] = outcome
end

return ARGV[1] .. struct.pack('<d', now) .. table.concat(replies) .. first_error
