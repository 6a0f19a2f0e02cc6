-- The counterpart of sliding_log.py. State: the slot for the next time and the number of times (4 bytes each), then the
-- ring of times (8 bytes each). Only a few bytes of the ring are read and written, so a long log is as cheap for the
-- server and its replicas as a short one.

-- Returns a state with these packed times, oldest first, in a ring of this capacity.
local function packed_log(times, capacity)
  local held = #times / 8
  return struct.pack('<I4I4', held % capacity, held) .. times .. string.rep('\0', (capacity - held) * 8)
end

algorithms[SLIDING_LOG] = function(key, limit, period, _, cost, now)
  local clamped = nil -- the whole changed state, if the clock stepped back
  local function read(first, last)
    if clamped then return clamped:sub(first + 1, last + 1) end
    return redis.call('GETRANGE', key, first, last)
  end

  local capacity, slot, held = (redis.call('STRLEN', key) - 8) / 8, 0, 0
  if capacity < 1 or capacity ~= math.floor(capacity) then
    capacity = 0
  else
    local stored_slot, stored_held = struct.unpack('<I4I4', read(0, 7))
    if stored_slot < capacity and stored_held <= capacity then slot, held = stored_slot, stored_held end
  end

  -- An age counts from the newest time (0) back.
  local function time(age)
    local at = 8 + (slot - 1 - age) % capacity * 8
    return (struct.unpack('<I8', read(at, at + 7)))
  end
  -- The number of times that are later than `moment`, found by bisection.
  local function younger_than(moment)
    if held > 0 and time(held - 1) > moment then return held end
    local low, high = 0, held
    while low < high do
      local middle = math.floor((low + high) / 2)
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

  if held > 0 and time(0) > now then -- the clock stepped back
    if time(0) <= now + period then
      local ahead = younger_than(now)
      local times = newest(held):sub(1, -ahead * 8 - 1) .. string.rep(struct.pack('<I8', now), ahead)
      clamped = packed_log(times, capacity)
      slot = held % capacity
    else
      clamped, capacity, slot, held = '', 0, 0, 0
    end
  end

  local used = younger_than(now - period)
  local left = limit - used
  local reset_after = used > 0 and time(0) + period - now or 0
  if cost > left or limit == 0 then
    local retry_after = limit > 0 and cost <= limit and time(limit - cost) + period - now or NEVER
    return false, math.max(left, 0), reset_after, retry_after, clamped
  end
  if cost == 0 then return true, math.max(left, 0), reset_after, 0, clamped end

  local new = string.rep(struct.pack('<I8', now), cost)
  if used + cost > capacity then
    local room = math.min(math.max(2 * capacity, 4), limit) -- the ring grows
    return true, left - cost, period, 0, packed_log(newest(used) .. new, math.max(room, used + cost))
  end
  return true, left - cost, period, 0, function(ttl)
    if clamped then redis.call('SET', key, clamped, 'PX', ttl) end
    local fitting = math.min(cost, capacity - slot)
    redis.call('SETRANGE', key, 8 + slot * 8, new:sub(1, fitting * 8))
    if fitting < cost then redis.call('SETRANGE', key, 8, new:sub(fitting * 8 + 1)) end
    local after = struct.pack('<I4I4', (slot + cost) % capacity, math.min(held + cost, capacity))
    redis.call('SETRANGE', key, 0, after)
    redis.call('PEXPIRE', key, ttl)
  end
end

refunds[SLIDING_LOG] = function(key, _, _, _, cost, charged_at)
  local state = redis.call('GET', key)
  local capacity = state and (#state - 8) / 8 or 0
  if capacity < 1 or capacity ~= math.floor(capacity) then return end
  local slot, held = struct.unpack('<I4I4', state)
  if slot >= capacity or held > capacity then return end
  local function time(age) return (struct.unpack('<I8', state, 9 + (slot - 1 - age) % capacity * 8)) end

  -- Search from the newest time back, because a refund usually follows its charge at once.
  local newer, found = 0, 0
  while newer < held and time(newer) > charged_at do newer = newer + 1 end
  while found < cost and newer + found < held and time(newer + found) == charged_at do found = found + 1 end
  if found == 0 then return end
  local split = 8 + slot * 8
  local times = (state:sub(split + 1) .. state:sub(9, split)):sub(-held * 8)
  return packed_log(times:sub(1, -(newer + found) * 8 - 1) .. times:sub(#times - newer * 8 + 1), capacity)
end
