-- The counterpart of sliding_log.py. State: the slot for the next time and the number of times (4 bytes each), then the
-- ring of times (8 bytes each). A short log is read and written as a whole. Of a long one, only a few bytes are read and
-- written, so it costs the server and its replicas hardly more.
local SHORT = 520 -- bytes

-- Returns a state with these packed times, oldest first, in a ring of this capacity.
local function packed_log(times, capacity)
  local held = #times / 8
  return pack_struct('<I4I4', held % capacity, held) .. times .. string.rep('\0', (capacity - held) * 8)
end

-- The log that is decided on: its key, its state if that is short or has changed, and what is known of its ring. The
-- functions that read it are made once for all logs of a call.
local log, state, capacity, slot, held

local function read(first, last)
  if state then return state:sub(first + 1, last + 1) end
  return call('GETRANGE', log, first, last)
end

-- An age counts from the newest time (0) back.
local function time(age)
  local at = 8 + (slot - 1 - age) % capacity * 8
  if state then return (unpack_struct('<I8', state, at + 1)) end
  return (unpack_struct('<I8', call('GETRANGE', log, at, at + 7)))
end

-- The number of times that are later than `moment`, found by bisection.
local function younger_than(moment)
  if held > 0 and time(held - 1) > moment then return held end
  local low, high = 0, held
  while low < high do
    local middle = floor((low + high) / 2)
    if time(middle) <= moment then high = middle else low = middle + 1 end
  end
  return low
end

-- The packed newest times, oldest first.
local function newest(count)
  local start, finish = slot - count, 8 + slot * 8 - 1
  if count == 0 then return '' end
  if start >= 0 then return read(8 + start * 8, finish) end
  local older = read(8 + (start + capacity) * 8, 8 + capacity * 8 - 1)
  return slot == 0 and older or older .. read(8, finish)
end

algorithms[SLIDING_LOG] = function(key, limit, period, _, cost, now)
  local begin, clamped = call('GETRANGE', key, 0, SHORT), nil
  log, state = key, #begin <= SHORT and begin
  capacity, slot, held = ((state and #state or call('STRLEN', key)) - 8) / 8, 0, 0
  if capacity < 1 or capacity ~= floor(capacity) then
    capacity = 0
  else
    local stored_slot, stored_held = unpack_struct('<I4I4', begin)
    if stored_slot < capacity and stored_held <= capacity then slot, held = stored_slot, stored_held end
  end
  local latest = held > 0 and time(0) or 0
  if latest > now then -- the clock stepped back
    if latest <= now + period then
      local ahead = younger_than(now)
      local times = newest(held):sub(1, -ahead * 8 - 1) .. string.rep(pack_struct('<I8', now), ahead)
      clamped = packed_log(times, capacity)
      slot = held % capacity
    else
      clamped, capacity, slot, held = '', 0, 0, 0
    end
    state = clamped
  end

  local used = younger_than(now - period)
  local left = limit - used
  if cost > left or limit == 0 or cost == 0 then
    local reset_after, retry_after = used > 0 and time(0) + period - now or 0, 0
    if cost > left or limit == 0 then
      retry_after = limit > 0 and cost <= limit and time(limit - cost) + period - now or NEVER
    end
    return retry_after == 0, max(left, 0), reset_after, retry_after, clamped
  end

  local new = pack_struct('<I8', now)
  if cost > 1 then new = string.rep(new, cost) end
  if used + cost > capacity then -- the ring grows
    local room = max(min(max(2 * capacity, 4), limit), used + cost)
    return true, left - cost, period, 0, packed_log(newest(used) .. new, room)
  end
  local ends, at, rest = slot + cost, 8 + slot * 8, ''
  local header = pack_struct('<I4I4', ends % capacity, min(held + cost, capacity))
  if ends > capacity then -- the last times come at the beginning of the ring
    local split = (capacity - slot) * 8
    new, rest = new:sub(1, split), new:sub(split + 1)
  end
  local stays = floor(latest / HALF) == floor(now / HALF)
  if state then
    local after = header .. rest .. state:sub(9 + #rest, at) .. new .. state:sub(at + #new + 1)
    return true, left - cost, period, 0, after, 0, stays and '0'
  end
  return true, left - cost, period, 0, function(ttl)
    call('SETRANGE', key, at, new)
    if rest ~= '' then call('SETRANGE', key, 8, rest) end
    call('SETRANGE', key, 0, header)
    if not stays then call('PEXPIRE', key, ttl) end
  end
end

refunds[SLIDING_LOG] = function(key, _, _, _, cost, charged_at)
  local state = call('GET', key)
  local capacity = state and (#state - 8) / 8 or 0
  if capacity < 1 or capacity ~= floor(capacity) then return end
  local slot, held = unpack_struct('<I4I4', state)
  if slot >= capacity or held > capacity then return end
  local function time(age) return (unpack_struct('<I8', state, 9 + (slot - 1 - age) % capacity * 8)) end

  -- Search from the newest time back, because a refund usually follows its charge at once.
  local newer, found = 0, 0
  while newer < held and time(newer) > charged_at do newer = newer + 1 end
  while found < cost and newer + found < held and time(newer + found) == charged_at do found = found + 1 end
  if found == 0 then return end
  local split = 8 + slot * 8
  local times = (state:sub(split + 1) .. state:sub(9, split)):sub(-held * 8)
  return packed_log(times:sub(1, -(newer + found) * 8 - 1) .. times:sub(#times - newer * 8 + 1), capacity)
end
