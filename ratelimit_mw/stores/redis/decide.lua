-- Decides a request that asks one counter.
local function decide_one(key, algorithm, limit, period, extra, max_wait, cost)
  local allowed, remaining, reset_after, retry_after, write, delay, in_place =
    algorithms[algorithm](key, limit, period, extra, cost, now, max_wait)
  save(key, reset_after, write, in_place)
  reply(allowed, remaining, reset_after, retry_after, write, delay)
end

local pending = {}
for number, key in ipairs(KEYS) do
  local at = (number - 1) * ASK_SIZE + 1
  local flags, algorithm, limit, period, extra, max_wait, cost, charged_at = struct.unpack(ASK, ARGV[3], at)
  local place = #pending + 1
  local fine, problem = true, nil
  if flags == LAST and place == 1 then
    fine, problem = pcall(decide_one, key, algorithm, limit, period, extra, max_wait, cost)
  else
    pending[place] = {
      key = key, flags = flags, algorithm = algorithm, limit = limit, period = period, extra = extra,
      max_wait = max_wait, cost = cost, charged_at = charged_at
    }
    if flags % (2 * LAST) >= LAST then
      fine, problem = pcall(carry_out, pending, flags)
      pending = {}
    end
  end
  if not fine then -- an error of one request must not affect the other requests
    if type(problem) == 'table' then problem = problem.err end
    if not algorithms[algorithm] then problem = 'this script has no algorithm number ' .. algorithm end
    if complaint == '' then complaint = tostring(problem) end
    for answered = #replies, number - place + 1, -1 do replies[answered] = nil end
    for _ = 1, place do reply(false, 0, 0, FAILED) end
  end
end

return ARGV[1] .. struct.pack('<d', now) .. table.concat(replies) .. complaint
