-- Carries out the requests that do more than take from counters: shadow rules, penalties, peeks, refunds. `asks` are the asks of
-- one request. Also has what `decide.lua` needs for all requests.

-- Writes a value together with its TTL: a failed script is not rolled back, and a key without a TTL would never expire.
-- With an `offset`, the previous value is overwritten from there on and keeps its expiry, which takes half the time.
local function save(key, reset_after, write, offset)
  if not write then return end
  if offset then
    call('SETRANGE', key, offset, write)
    return
  end
  local ttl = max(ceil(reset_after / 1000) + 1000, least_ttl)
  if type(write) == 'function' then
    write(ttl)
  else
    call('SET', key, write, 'PX', ttl)
  end
end

local replies, replied, first_error = {}, 0, ''

local function reply(allowed, remaining, reset_after, retry_after, delay)
  replied = replied + 1
  replies[replied] = pack_struct(OUTCOME, allowed and 1 or 0, remaining, reset_after, retry_after, delay or 0)
end

-- Replies to the asks from `first` to `last` that their request has failed. The other requests of the call go on.
local function fail(first, last, problem, algorithm)
  if not algorithms[algorithm] then problem = 'this script has no algorithm number ' .. algorithm end
  if first_error == '' then first_error = tostring(type(problem) == 'table' and problem.err or problem) end
  for number = replied, first, -1 do replies[number] = nil end
  replied = first - 1
  for _ = first, last do reply(false, 0, 0, FAILED) end
end

local function flag(flags, bit) return floor(flags / bit) % 2 == 1 end

local function ask(key, a, cost)
  return {algorithms[a.algorithm](key, a.limit, a.period, a.extra, cost, now, a.longest_wait)}
end

local function reply_with(outcome)
  reply(outcome[1], outcome[2], outcome[3], outcome[4], outcome[6])
end

-- Charges the whole cost even if it does not fit, unless the counter is in debt. What does not fit is denied. The
-- counterpart of `_overdrawing` in algorithms/__init__.py.
local function overdraw(a)
  local found = ask(a.key, a, 0)
  if not found[1] then return found end
  local _, algorithm, limit, period, extra, longest_wait = unpack(a.wide)
  local wide = {algorithm = algorithm, limit = limit, period = period, extra = extra, longest_wait = longest_wait}
  local room = ask(a.key, wide, 0)[2]
  if room == 0 then return found end
  local charged = ask(a.key, wide, min(a.cost, room))
  if not charged[1] then return charged end
  save(a.key, charged[3], charged[5], charged[7])
  local after = ask(a.key, a, 0)
  if a.cost > found[2] and not after[1] then return after end
  charged[2], charged[5], charged[6] = max(found[2] - a.cost, 0), nil, 0
  return charged
end

-- A penalty precedes the asks that it watches, and its cost is their number. Asks that the penalty of a shadow rule would
-- have denied are not charged.
local function withhold(asks, outcomes)
  for i, a in ipairs(asks) do
    if denials[a.algorithm] and not outcomes[i][1] and flag(a.flags, SHADOW) then
      for j = i + 1, i + a.cost do
        if not asks[j].wide then outcomes[j] = ask(asks[j].key, asks[j], 0) end
      end
    end
  end
end

local function count_denials(asks, outcomes)
  for i, a in ipairs(asks) do
    if denials[a.algorithm] and outcomes[i][1] then
      local denied = false
      for j = i + 1, i + a.cost do denied = denied or not outcomes[j][1] end
      local counted = denied and {denials[a.algorithm](a.key, a.limit, a.period, a.extra, now, a.longest_wait)} or {}
      if counted[1] then
        outcomes[i] = counted
        save(a.key, counted[3], counted[5])
      end
    end
  end
end

local function decide(asks)
  local outcomes, admitted, charged, denied = {}, true, true, false
  for i, a in ipairs(asks) do
    if flag(a.flags, FORGET) then call('DEL', a.key) end
    outcomes[i] = a.wide and overdraw(a) or ask(a.key, a, a.cost)
    if not outcomes[i][1] then
      denied = true
      if not flag(a.flags, SHADOW) then admitted = false end
    end
    if flag(a.flags, PEEK) then charged = false end
  end
  if denied then withhold(asks, outcomes) end
  for i, a in ipairs(asks) do
    if outcomes[i][1] and not (admitted and charged) and not a.wide then
      local delay = outcomes[i][6]
      outcomes[i] = ask(a.key, a, 0) -- report the counter without the charge
      outcomes[i][6] = delay
    end
    if charged then save(a.key, outcomes[i][3], outcomes[i][5], outcomes[i][7]) end
  end
  if denied and charged then count_denials(asks, outcomes) end
  for _, outcome in ipairs(outcomes) do
    reply_with(outcome)
  end
end

local function give_back(a)
  local state = refunds[a.algorithm](a.key, a.limit, a.period, a.extra, a.cost, a.charged_at, now)
  if state then call('SET', a.key, state, 'KEEPTTL') end
end

local function refund(asks)
  for _, a in ipairs(asks) do give_back(a) end
  for _, a in ipairs(asks) do
    reply_with(ask(a.key, a, 0))
  end
end

-- Charges as much as there is room for. The caller has widened the quotas, so that a counter can go into debt.
local function charge(asks)
  for _, a in ipairs(asks) do
    if flag(a.flags, REFUND) then give_back(a) end
    local room = ask(a.key, a, 0)[2]
    local outcome = ask(a.key, a, min(a.cost, room))
    save(a.key, outcome[3], outcome[5], outcome[7])
    reply_with(outcome)
  end
end

local function carry_out(asks, flags)
  if flag(flags, INSIST) then return charge(asks) end
  if flag(flags, REFUND) then return refund(asks) end
  return decide(asks)
end
