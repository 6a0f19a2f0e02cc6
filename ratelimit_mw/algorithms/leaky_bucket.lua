-- The counterpart of leaky_bucket.py. State: when the bucket is empty, the next turn, the time of writing (8 bytes each).
algorithms[LEAKY_BUCKET] = function(key, limit, period, burst, cost, now, longest_wait)
  if limit == 0 then return false, 0, 0, NEVER end
  local interval = math.ceil(period / limit)
  local capacity = burst * interval
  local level, wait, clamped = 0, 0, false
  local state = redis.call('GET', key)
  if state and #state == 24 then
    local empty, turn, written = struct.unpack('<I8I8I8', state)
    if written <= now + period then level, wait = math.max(empty - now, 0), math.max(turn - now, 0) end
    local most = written > now and capacity or 2 * math.max(capacity, period)
    local longest = most + longest_wait
    clamped = level > most or wait > longest -- the clock stepped back, or the burst was much larger
    level, wait = math.min(level, most), math.min(wait, longest)
  end
  local needed = cost * interval
  local late = cost > 0 and wait - longest_wait or 0 -- how much too late its turn would be
  local allowed = level + needed <= capacity and late <= 0
  local retry_after, delay, write = 0, 0, nil
  if allowed then
    if cost > 0 then delay = wait end
    level, wait = level + needed, wait + needed
  else
    retry_after = cost <= burst and math.max(level + needed - capacity, late) or NEVER
  end
  if clamped or (allowed and cost > 0) then write = struct.pack('<I8I8I8', now + level, now + wait, now) end
  local remaining = math.floor(math.max(capacity - level, 0) / interval)
  return allowed, remaining, math.max(level, wait), retry_after, write, delay
end

refunds[LEAKY_BUCKET] = function(key, limit, period, _, cost, charged_at, now)
  local state = redis.call('GET', key)
  if limit == 0 or not state or #state ~= 24 then return end
  local empty, turn, written = struct.unpack('<I8I8I8', state)
  if empty <= now then return end
  local given = cost * math.ceil(period / limit)
  empty = math.max(empty - given, now)
  if charged_at > written then turn = turn - given end -- they are the last of the queue
  return struct.pack('<I8I8I8', empty, math.max(turn, empty), written)
end
