-- The counterpart of fixed_window.py. State: the number of the window (8 bytes) and its count (4 bytes).
-- `in_place`: the window is the same, so the new state has the length and the expiry of the old one.
algorithms[FIXED_WINDOW] = function(key, limit, period, _, cost, now)
  local elapsed = now % period
  local window, reset_after = (now - elapsed) / period, period - elapsed
  local count, clamped, in_place = 0, false, false
  local state = call('GET', key)
  if state and #state == 12 then
    local stored_window, stored_count = unpack_struct('<I8I4', state)
    clamped, in_place = stored_window == window + 1, stored_window == window -- clamped: the clock stepped back
    if in_place or clamped then count = stored_count end
  end
  local left = limit - count
  local allowed = limit > 0 and cost <= left
  local retry_after, write = 0, nil
  if allowed then
    count, left = count + cost, left - cost
  else
    retry_after = limit > 0 and cost <= limit and reset_after or NEVER
  end
  if clamped or (allowed and cost > 0) then write = pack_struct('<I8I4', window, count) end
  return allowed, left > 0 and left or 0, reset_after, retry_after, write, 0, in_place
end

refunds[FIXED_WINDOW] = function(key, _, period, _, cost, charged_at)
  local state = call('GET', key)
  if not state or #state ~= 12 then return end
  local window, count = unpack_struct('<I8I4', state)
  if window ~= floor(charged_at / period) then return end
  return pack_struct('<I8I4', window, max(count - cost, 0))
end
