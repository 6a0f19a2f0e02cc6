-- The counterpart of leaky_bucket.py. State: when the bucket is empty, the next turn, the time of writing (8 bytes each).
algorithms[LEAKY_BUCKET] = function(key, limit, period, burst, cost, now, longest_wait)
  if limit == 0 then return false, 0, 0, NEVER end
  local interval = ceil(period / limit)
  local capacity = burst * interval
  local level, wait, clamped, ends = 0, 0, false, nil
  local state = call('GET', key)
  if state and #state == 24 then
    local empty, turn, written = unpack_struct('<I8I8I8', state)
    ends = max(empty, turn)
    if written <= now + period then level, wait = max(empty - now, 0), max(turn - now, 0) end
    local most = written > now and capacity or 2 * max(capacity, period)
    local longest = most + longest_wait
    clamped = level > most or wait > longest -- the clock stepped back, or the burst was much larger
    level, wait = min(level, most), min(wait, longest)
  end
  local needed = cost * interval
  local late = cost > 0 and wait - longest_wait or 0 -- how much too late its turn would be
  local allowed = level + needed <= capacity and late <= 0
  local retry_after, delay, write, offset = 0, 0, nil, nil
  if allowed then
    if cost > 0 then delay = wait end
    level, wait = level + needed, wait + needed
  else
    retry_after = cost <= burst and max(level + needed - capacity, late) or NEVER
  end
  if clamped or (allowed and cost > 0) then
    write = pack_struct('<I8I8I8', now + level, now + wait, now)
    if ends and floor(ends / HALF) == floor((now + max(level, wait)) / HALF) then offset = '0' end
  end
  local remaining = floor(max(capacity - level, 0) / interval)
  return allowed, remaining, max(level, wait), retry_after, write, delay, offset
end

refunds[LEAKY_BUCKET] = function(key, limit, period, _, cost, charged_at, now)
  local state = call('GET', key)
  if limit == 0 or not state or #state ~= 24 then return end
  local empty, turn, written = unpack_struct('<I8I8I8', state)
  if empty <= now then return end
  local given = cost * ceil(period / limit)
  empty = max(empty - given, now)
  if charged_at > written then turn = turn - given end -- they are the last of the queue
  return pack_struct('<I8I8I8', empty, max(turn, empty), written)
end
