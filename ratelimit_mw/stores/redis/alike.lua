-- Decides requests that each take from one counter, all on the same terms. This is the usual call, and any single request
-- that asks one counter. It has no functions of its own: to make them takes a quarter of a call with one request.
local _, algorithm, limit, period, extra, max_wait, cost = struct.unpack(TERMS, ARGV[3])
local decide, replies, first_error = algorithms[algorithm], {}, ''
for number, key in ipairs(KEYS) do
  local succeeded, allowed, remaining, reset_after, retry_after, write, delay, in_place =
    pcall(decide, key, limit, period, extra, cost, now, max_wait)
  if not succeeded then -- an error of one request must not affect the other requests
    if first_error == '' then first_error = message_of(allowed, algorithm) end
    allowed, remaining, reset_after, retry_after, write = false, 0, 0, FAILED, nil
  elseif write and in_place then -- as `save` in several.lua
    redis.call('SETRANGE', key, 0, write)
  elseif write then
    local ttl = math.max(math.ceil(reset_after / 1000) + 1000, least_ttl)
    if type(write) == 'function' then write(ttl) else redis.call('SET', key, write, 'PX', ttl) end
  end
  replies[number] = struct.pack(OUTCOME, allowed and 1 or 0, remaining, reset_after, retry_after, delay or 0)
end

return ARGV[1] .. struct.pack('<d', now) .. table.concat(replies) .. first_error
