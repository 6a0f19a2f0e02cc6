-- Decides one request that takes from one counter: the usual call while requests come one at a time. It makes no function
-- and no table, because each takes a thirtieth of such a call. Otherwise as `alike.lua`.
local key, _, algorithm, limit, period, extra, longest_wait, cost = KEYS[1], unpack_struct(TERMS, ARGV[3])
local succeeded, allowed, remaining, reset_after, retry_after, write, delay, offset =
  pcall(algorithms[algorithm], key, limit, period, extra, cost, now, longest_wait)
if not succeeded then
  local problem = tostring(type(allowed) == 'table' and allowed.err or allowed)
  return ARGV[1] .. pack_struct('<d', now) .. pack_struct(OUTCOME, 0, 0, 0, FAILED, 0) .. problem
end
if write and offset then -- as `save` in several.lua
  call('SETRANGE', key, offset, write)
elseif write then
  local ttl = max(ceil(reset_after / 1000) + 1000, least_ttl)
  if type(write) == 'function' then write(ttl) else call('SET', key, write, 'PX', ttl) end
end
return pack_struct('<c8dBi8i8i8i8', ARGV[1], now, allowed and 1 or 0, remaining, reset_after, retry_after, delay or 0)
