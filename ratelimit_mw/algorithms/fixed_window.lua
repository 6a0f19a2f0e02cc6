-- The counterpart of fixed_window.py. State: the number of the window (8 bytes) and its count (4 bytes).
-- If the window is the same, the expiry stays, and only the count is written.
algorithms[FIXED_WINDOW] = function(key, limit, period, _, cost, now)
  local elapsed = now % period
  local window, reset_after = (now - elapsed) / period, period - elapsed
  local count, clamped, offset = 0, false, nil
  local state = call('GET', key)
  if state and #state == 12 then
    local stored_window, stored_count = unpack_struct('<I8I4', state)
    clamped = stored_window == window + 1 -- the clock stepped back
    if stored_window == window then offset = '8' end
    if offset or clamped then count = stored_count end
  end
  local left = limit - count
  local allowed = limit > 0 and cost <= left
  local retry_after, write = 0, nil
  if allowed then
    count, left = count + cost, left - cost
  else
    retry_after = limit > 0 and cost <= limit and reset_after or NEVER
  end
  if clamped or (allowed and cost > 0) then
    write = offset and pack_struct('<I4', count) or pack_struct('<I8I4', window, count)
  end
  return allowed, left > 0 and left or 0, reset_after, retry_after, write, 0, offset
end

refunds[FIXED_WINDOW] = function(key, _, period, _, cost, charged_at)
  local state = call('GET', key)
  if not state or #state ~= 12 then return end
  local window, count = unpack_struct('<I8I4', state)
  if window ~= floor(charged_at / period) then return end
  return pack_struct('<I8I4', window, max(count - cost, 0))
end
