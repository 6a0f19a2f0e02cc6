-- The counterpart of ban.py. A ban reuses the fields of an ask:
--   limit     the number of denials that begin a ban, plus 65536 × growth
--   period    the time within which denials are counted
--   burst     the length of the first ban of a row
--   longest_wait  the length of the longest ban
local function read_ban(key)
  local state = call('GET', key)
  if not state or #state < 16 or #state % 8 > 0 then return 0, 0, '' end
  local ends, row = unpack_struct('<I8I8', state)
  return ends, row, string.sub(state, 17)
end

-- Returns the denials within `within`, packed. They are stored in order of time, so the old ones are found by bisection.
-- The rest of the function is needed only if the clock stepped back: denials after `now` count as at `now`.
local function denied_lately(times, within, now)
  local low, high = 0, #times / 8
  while low < high do
    local middle = floor((low + high) / 2)
    if unpack_struct('<I8', times, middle * 8 + 1) <= now - within then low = middle + 1 else high = middle end
  end
  local lately = string.sub(times, low * 8 + 1)
  if lately == '' or unpack_struct('<I8', lately, #lately - 7) <= now then return lately end
  local clamped = {}
  for at = 1, #lately, 8 do
    local time = unpack_struct('<I8', lately, at)
    if time <= now + within then clamped[#clamped + 1] = pack_struct('<I8', min(time, now)) end
  end
  return table.concat(clamped)
end

-- Returns lasts × growth^(row − 1), at most `longest`. Row 0 means that there is no ban.
local function length_of_ban(row, lasts, growth, longest)
  if row == 0 then return 0 end
  local length, place = lasts, 1
  while growth > 1 and place < row and length < longest do length, place = length * growth, place + 1 end
  return min(length, longest)
end

-- Returns the time until the state has no effect any more.
local function ban_unused_in(ends, row, quiet, lately, within, now)
  local counted = lately == '' and 0 or unpack_struct('<I8', lately, #lately - 7) + within - now
  return max(counted, row > 0 and ends + quiet - now or 0, 0)
end

algorithms[BAN] = function(key, limit, within, lasts, _, now, longest)
  local after, growth = limit % 65536, floor(limit / 65536)
  local quiet = growth > 1 and longest or 0
  local ends, row, times = read_ban(key)
  local latest = now + length_of_ban(row, lasts, growth, longest)
  local write = ends > latest and pack_struct('<I8I8', latest, row) .. times or nil
  ends = min(ends, latest)
  if ends > now then return false, 0, ends + quiet - now, ends - now, write end
  local lately = denied_lately(times, within, now)
  return true, max(after - #lately / 8, 0), ban_unused_in(ends, row, quiet, lately, within, now), 0
end

-- Counts a denial while no ban is active. See `count_denial` in ban.py. Returns nothing if denials are not counted.
denials[BAN] = function(key, limit, within, lasts, now, longest)
  local after, growth = limit % 65536, floor(limit / 65536)
  if after == 0 then return end
  local quiet = growth > 1 and longest or 0
  local ends, row, times = read_ban(key)
  if ends + quiet <= now then row = 0 end
  local lately = denied_lately(times, within, now)
  if #lately / 8 + 1 >= after then
    if length_of_ban(row, lasts, growth, longest) < longest then row = row + 1 end
    local length = length_of_ban(row, lasts, growth, longest)
    return true, 0, length + quiet, length, pack_struct('<I8I8', now + length, row)
  end
  lately = lately .. pack_struct('<I8', now)
  local reset_after = ban_unused_in(ends, row, quiet, lately, within, now)
  return true, after - #lately / 8, reset_after, 0, pack_struct('<I8I8', ends, row) .. lately
end

refunds[BAN] = function() end -- a ban is never charged
