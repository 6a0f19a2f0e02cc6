-- The counterpart of token_bucket.py. State: the time at which the bucket is full, and the time of writing (8 bytes each).
-- The schema of the rules keeps burst × interval below fifty years. A debt may take twice that. In microseconds, a time
-- that far ahead stays below 2^53 until after the year 2100.
algorithms[TOKEN_BUCKET] = function(key, limit, period, burst, cost, now, longest_wait)
  if limit == 0 then return false, 0, 0, NEVER end
  local interval = ceil(period / limit)
  local capacity = burst * interval
  local missing, clamped, filled = 0, false, nil
  local state = call('GET', key)
  if state and #state == 16 then
    local full, written = unpack_struct('<I8I8', state)
    filled = full
    if written <= now + period then missing = max(full - now, 0) end
    local most = (written > now and capacity or 2 * max(capacity, period)) + longest_wait
    clamped = missing > most -- the clock stepped back, or the burst was much larger
    missing = min(missing, most)
  end
  local room = capacity - missing
  local needed = cost * interval
  local allowed = needed <= room + longest_wait and cost <= burst
  local retry_after, delay, write, offset = 0, 0, nil, nil
  if allowed then
    missing, room = missing + needed, room - needed
    if cost > 0 then delay = max(-room, 0) end
  else
    retry_after = cost <= burst and needed - room - longest_wait or NEVER
  end
  if clamped or (allowed and cost > 0) then
    write = pack_struct('<I8I8', now + missing, now)
    if filled and floor(filled / HALF) == floor((now + missing) / HALF) then offset = '0' end
  end
  return allowed, floor(max(room, 0) / interval), missing, retry_after, write, delay, offset
end

refunds[TOKEN_BUCKET] = function(key, limit, period, _, cost, _, now)
  local state = call('GET', key)
  if limit == 0 or not state or #state ~= 16 then return end
  local full, written = unpack_struct('<I8I8', state)
  if full <= now then return end
  return pack_struct('<I8I8', max(full - cost * ceil(period / limit), now), written)
end
