-- The counterpart of sliding_window.py. State: the number of the window (8 bytes), the previous and the current count
-- (4 bytes each). Products may exceed 2^53, so `multiply_divide` computes them.
-- If the window is the same and was charged, the expiry stays, and only the current count is written.
algorithms[SLIDING_WINDOW] = function(key, limit, period, _, cost, now)
  local elapsed = now % period
  local window, rest = (now - elapsed) / period, period - elapsed
  local previous, current, clamped, offset = 0, 0, false, nil
  local state = call('GET', key)
  if state and #state == 16 then
    local stored_window, stored_previous, stored_current = unpack_struct('<I8I4I4', state)
    clamped = stored_window == window + 1 -- the clock stepped back
    if stored_window == window and stored_current > 0 then offset = '12' end
    if stored_window == window or clamped then
      previous, current = stored_previous, stored_current
    elseif stored_window == window - 1 then
      previous = stored_current
    end
  end
  local weighted, remainder = 0, 0
  if previous > 0 then weighted, remainder = multiply_divide(previous, rest, period) end
  if remainder > 0 then weighted = weighted + 1 end
  local left = limit - current - weighted
  local allowed = limit > 0 and cost <= left
  local retry_after, write = 0, nil
  if allowed then
    current, left = current + cost, left - cost
  else
    local room = limit - cost
    if room < 0 or limit == 0 then
      retry_after = NEVER
    elseif current <= room then
      retry_after = rest - multiply_divide(room - current, period, previous)
    else
      retry_after = rest + period - multiply_divide(room, period, current)
    end
  end
  if clamped or (allowed and cost > 0) then
    write = offset and pack_struct('<I4', current) or pack_struct('<I8I4I4', window, previous, current)
  end
  local reset_after = current > 0 and rest + period or previous > 0 and rest or 0
  return allowed, left > 0 and left or 0, reset_after, retry_after, write, 0, offset
end

refunds[SLIDING_WINDOW] = function(key, _, period, _, cost, charged_at)
  local state = call('GET', key)
  if not state or #state ~= 16 then return end
  local window, previous, current = unpack_struct('<I8I4I4', state)
  local charged = floor(charged_at / period)
  if charged == window then
    current = max(current - cost, 0)
  elseif charged == window - 1 then
    previous = max(previous - cost, 0)
  else
    return
  end
  return pack_struct('<I8I4I4', window, previous, current)
end
