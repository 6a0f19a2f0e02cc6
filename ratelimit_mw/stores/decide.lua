-- Decides a batch of requests, each alone and in order of arrival, and each all or nothing.
--
-- KEYS  the counters of all asks, in order
-- ARGV  1  a nonce, which the reply returns
--       2  the time in microseconds, or '' for the server's own
--       3  the asks, packed one after the other: flags, algorithm, limit, period, burst or buckets, how long a
--             request may wait, cost, and when what is given back was charged
-- Reply    the nonce, the time, the outcomes packed in order (allowed, remaining, reset, retry or FAILED,
--          delay), and the first error's text
local SHADOW, LAST, PEEK, FORGET, REFUND, INSIST = 1, 2, 4, 8, 16, 32
local FAILED = -2
local ASK = '<BBdddddd'
local ASK_SIZE = 50
local BAN = #by_number

local function flag(flags, bit) return math.floor(flags / bit) % 2 == 1 end

-- Under a clock that is moved by hand nothing may expire by the server's.
local now, least_ttl = tonumber(ARGV[2]), 3600000
if not now then
  local time = redis.call('TIME')
  now, least_ttl = time[1] * 1000000 + time[2], 0
end

local function ask(key, a, cost)
  return {algorithms[by_number[a.algorithm]](key, a.limit, a.period, a.extra, cost, now, a.max_wait)}
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

-- A ban stands before the asks that it watches, and its cost is their number. What a shadow's ban would have denied is
-- not taken.
local function withhold(asks, outcomes)
  for i, a in ipairs(asks) do
    if a.algorithm == BAN and not outcomes[i][1] and flag(a.flags, SHADOW) then
      for j = i + 1, i + a.cost do outcomes[j] = ask(asks[j].key, asks[j], 0) end
    end
  end
end

local function count_denials(asks, outcomes)
  for i, a in ipairs(asks) do
    if a.algorithm == BAN and outcomes[i][1] and a.limit % 65536 > 0 then
      local denied = false
      for j = i + 1, i + a.cost do denied = denied or not outcomes[j][1] end
      if denied then
        outcomes[i] = {denials.ban(a.key, a.limit, a.period, a.extra, now, a.max_wait)}
        save(a.key, outcomes[i][3], outcomes[i][5])
      end
    end
  end
end

local function decide(asks)
  local outcomes, admitted, charged, denied = {}, true, true, false
  for i, a in ipairs(asks) do
    if flag(a.flags, FORGET) then redis.call('DEL', a.key) end
    outcomes[i] = ask(a.key, a, a.cost)
    if not outcomes[i][1] then
      denied = true
      if not flag(a.flags, SHADOW) then admitted = false end
    end
    if flag(a.flags, PEEK) then charged = false end
  end
  if denied then withhold(asks, outcomes) end
  for i, a in ipairs(asks) do
    if outcomes[i][1] and not (admitted and charged) then
      local delay = outcomes[i][6]
      outcomes[i] = ask(a.key, a, 0) -- what it would have taken is not taken
      outcomes[i][6] = delay
    end
    if charged then save(a.key, outcomes[i][3], outcomes[i][5]) end
  end
  if denied and charged then count_denials(asks, outcomes) end
  for _, outcome in ipairs(outcomes) do
    reply(unpack(outcome, 1, 6))
  end
end

local function give_back(a)
  local state = refunds[by_number[a.algorithm]](a.key, a.limit, a.period, a.extra, a.cost, a.charged_at, now)
  if state then redis.call('SET', a.key, state, 'KEEPTTL') end
end

local function refund(asks)
  for _, a in ipairs(asks) do give_back(a) end
  for _, a in ipairs(asks) do
    reply(unpack(ask(a.key, a, 0), 1, 6))
  end
end

-- Charges as much as there is room for: the quotas have been widened.
local function charge(asks)
  for _, a in ipairs(asks) do
    if flag(a.flags, REFUND) then give_back(a) end
    local room = ask(a.key, a, 0)[2]
    local outcome = ask(a.key, a, math.min(a.cost, room))
    save(a.key, outcome[3], outcome[5])
    reply(unpack(outcome, 1, 6))
  end
end

local function treatment(flags)
  if flag(flags, INSIST) then return charge end
  return flag(flags, REFUND) and refund or decide
end

-- What `decide` comes to where a request asks one counter, as most do.
local function decide_one(key, algorithm, limit, period, extra, max_wait, cost)
  local allowed, remaining, reset_after, retry_after, write, delay =
    algorithms[by_number[algorithm]](key, limit, period, extra, cost, now, max_wait)
  save(key, reset_after, write)
  reply(allowed, remaining, reset_after, retry_after, write, delay)
end

local pending = {}
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
    if flag(flags, LAST) then
      fine, problem = pcall(treatment(flags), pending)
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

return {ARGV[1], now, table.concat(replies), complaint}
