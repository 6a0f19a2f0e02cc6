-- The counterpart of bucketed_window.py. State: the number of the newest slice (8 bytes), then a ring of counts (4 bytes).
algorithms[BUCKETED_WINDOW] = function(key, limit, period, buckets, cost, now)
  local size = buckets + 1
  local width = ceil(period / buckets)
  local current = floor(now / width)
  local oldest = floor((now - period + 1) / width)
  local counts_format = string.rep('I4', size)
  local newest, counts = 0, nil
  local state = call('GET', key)
  if state and #state == 8 + 4 * size then
    newest = unpack_struct('<I8', state)
    counts = {unpack_struct('<' .. counts_format, state, 9)}
  end
  -- If the clock stepped back, the current slice takes over the counts of the later slices.
  local clamped = counts and current < newest and newest * width <= now + period
  if clamped then
    local at = current % size + 1
    for number = current + 1, newest do
      counts[at] = counts[at] + counts[number % size + 1]
      counts[number % size + 1] = 0
    end
  elseif counts and current - size < newest and newest <= current then
    for number = newest + 1, current do counts[number % size + 1] = 0 end
  else
    counts = {}
    for slot = 1, size do counts[slot] = 0 end
  end
  for number = current - buckets, oldest - 1 do counts[number % size + 1] = 0 end
  local used = 0
  for slot = 1, size do used = used + counts[slot] end
  local left = limit - used
  local allowed = limit > 0 and cost <= left
  local retry_after, reset_after, write = 0, 0, nil
  if allowed then
    local at = current % size + 1
    counts[at], left = counts[at] + cost, left - cost
  else
    retry_after = NEVER
    if limit > 0 and cost <= limit then
      for number = oldest, current do
        used = used - counts[number % size + 1]
        if used + cost <= limit then
          retry_after = (number + 1) * width - 1 + period - now
          break
        end
      end
    end
  end
  if clamped or (allowed and cost > 0) then
    write = pack_struct('<I8', current) .. pack_struct('<' .. counts_format, unpack(counts, 1, size))
  end
  for number = current, oldest, -1 do
    if counts[number % size + 1] > 0 then
      reset_after = (number + 1) * width - 1 + period - now
      break
    end
  end
  return allowed, max(left, 0), reset_after, retry_after, write
end

refunds[BUCKETED_WINDOW] = function(key, _, period, buckets, cost, charged_at)
  local size = buckets + 1
  local state = call('GET', key)
  if not state or #state ~= 8 + 4 * size then return end
  local newest = unpack_struct('<I8', state)
  local number = floor(charged_at / ceil(period / buckets))
  if number <= newest - size or number > newest then return end
  local at = 9 + number % size * 4
  local count = max(unpack_struct('<I4', state, at) - cost, 0)
  return state:sub(1, at - 1) .. pack_struct('<I4', count) .. state:sub(at + 4)
end
