-- Decides requests that each take from one counter, all on the same terms, apart from the costs in ARGV[4], if there are
-- any. This is the usual call of several requests. It makes few functions, and they share few local names, because to make
-- both takes a good part of a short call.
local _, algorithm, limit, period, extra, longest_wait, cost = unpack_struct(TERMS, ARGV[3])

local function run(keys, replies, decide, limit, period, extra, longest_wait, cost, costs, now, least_ttl)
  for number = #replies + 1, #keys do
    local key = keys[number]
    if costs ~= '' then cost = unpack_struct('<d', costs, 8 * number - 7) end
    local allowed, remaining, reset_after, retry_after, write, delay, offset =
      decide(key, limit, period, extra, cost, now, longest_wait)
    if write and offset then -- as `save` in several.lua
      call('SETRANGE', key, offset, write)
    elseif write then
      local ttl = max(ceil(reset_after / 1000) + 1000, least_ttl)
      if type(write) == 'function' then write(ttl) else call('SET', key, write, 'PX', ttl) end
    end
    replies[number] = pack_struct(OUTCOME, allowed and 1 or 0, remaining, reset_after, retry_after, delay or 0)
  end
end

local keys, replies, first_error = KEYS, {}, ''
while #replies < #keys do
  local succeeded, problem =
    pcall(run, keys, replies, algorithms[algorithm], limit, period, extra, longest_wait, cost, ARGV[4], now, least_ttl)
  if not succeeded then -- an error of one request must not affect the other requests
    if first_error == '' then first_error = tostring(type(problem) == 'table' and problem.err or problem) end
    replies[#replies + 1] = pack_struct(OUTCOME, 0, 0, 0, FAILED, 0)
  end
end

return ARGV[1] .. pack_struct('<d', now) .. (replies[2] and table.concat(replies) or replies[1]) .. first_error
