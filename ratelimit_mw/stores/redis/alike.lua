-- Decides requests that each take from one counter, all on the same terms, apart from the costs in ARGV[4], if there are
-- any. This is the usual call, and any single request that asks one counter. It makes few functions, because to make them
-- takes a good part of such a call.
local _, algorithm, limit, period, extra, longest_wait, cost = unpack_struct(TERMS, ARGV[3])
local decide, costs, replies, number, first_error = algorithms[algorithm], ARGV[4], {}, 0, ''

local function run()
  while number < #KEYS do
    number = number + 1
    local key = KEYS[number]
    if costs ~= '' then cost = unpack_struct('<d', costs, 8 * number - 7) end
    local allowed, remaining, reset_after, retry_after, write, delay, in_place =
      decide(key, limit, period, extra, cost, now, longest_wait)
    if write and in_place then -- as `save` in several.lua
      call('SETRANGE', key, 0, write)
    elseif write then
      local ttl = max(ceil(reset_after / 1000) + 1000, least_ttl)
      if type(write) == 'function' then write(ttl) else call('SET', key, write, 'PX', ttl) end
    end
    replies[number] = pack_struct(OUTCOME, allowed and 1 or 0, remaining, reset_after, retry_after, delay or 0)
  end
end

while number < #KEYS do
  local succeeded, problem = pcall(run)
  if not succeeded then -- an error of one request must not affect the other requests
    if first_error == '' then first_error = message_of(problem, algorithm) end
    replies[number] = pack_struct(OUTCOME, 0, 0, 0, FAILED, 0)
  end
end

return ARGV[1] .. pack_struct('<d', now) .. table.concat(replies) .. first_error
