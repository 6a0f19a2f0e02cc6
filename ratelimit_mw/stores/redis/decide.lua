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
local BAN = #by_number

-- An algorithm's functions are made when it is first needed: a script makes its functions anew in each call, and most
-- calls need those of one.
local function need(number)
  local name = by_number[number]
  if not algorithms[name] then define(name) end
  return name
end

-- Under a clock that is moved by hand nothing may expire by the server's.
local now, least_ttl = tonumber(ARGV[2]), 3600000
if not now then
  local time = redis.call('TIME')
  now, least_ttl = time[1] * 1000000 + time[2], 0
end

-- The value and its TTL are written together: Lua is no rollback, and a key without a TTL would stay for ever.
local function save(key, reset_after, write)
  if not write then return end
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

-- Decides on a request that asks one counter, as most do.
local function decide_one(key, algorithm, limit, period, extra, max_wait, cost)
  local allowed, remaining, reset_after, retry_after, write, delay =
    algorithms[need(algorithm)](key, limit, period, extra, cost, now, max_wait)
  save(key, reset_after, write)
  reply(allowed, remaining, reset_after, retry_after, write, delay)
end

local function several()
-- the text of several.lua
end

local pending, carry_out = {}, nil
for number, key in ipairs(KEYS) do
  local at = (number - 1) * ASK_SIZE + 1
  local flags, algorithm, limit, period, extra, max_wait, cost, charged_at = struct.unpack(ASK, ARGV[3], at)
  local place = #pending + 1
  local fine, problem = true, nil
  if flags == LAST and place == 1 then
    fine, problem = pcall(decide_one, key, algorithm, limit, period, extra, max_wait, cost)
  else
    pending[place] = {
      key = key, flags = flags, algorithm = algorithm, limit = limit, period = period, extra = extra,
      max_wait = max_wait, cost = cost, charged_at = charged_at
    }
    if flags % (2 * LAST) >= LAST then
      carry_out = carry_out or several()
      fine, problem = pcall(carry_out, pending, flags)
      pending = {}
    end
  end
  if not fine then -- one request's counters are not to spoil the others' decisions
    if type(problem) == 'table' then problem = problem.err end
    if complaint == '' then complaint = tostring(problem) end
    for answered = #replies, number - place + 1, -1 do replies[answered] = nil end
    for _ = 1, place do reply(false, 0, 0, FAILED) end
  end
end

return ARGV[1] .. struct.pack('<d', now) .. table.concat(replies) .. complaint
