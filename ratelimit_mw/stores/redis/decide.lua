-- Decides a request that asks one counter. `terms` are packed as in ARGV[3].
local function decide_one(key, terms)
  local allowed, remaining, reset_after, retry_after, write, delay, in_place =
    algorithms[terms[2]](key, terms[3], terms[4], terms[5], terms[7], now, terms[6])
  if write then save(key, reset_after, write, in_place) end
  reply(allowed, remaining, reset_after, retry_after, write, delay)
end

local all_terms = {}
for at = 1, #ARGV[3], TERMS_SIZE do
  all_terms[#all_terms + 1] = {struct.unpack(TERMS, ARGV[3], at)}
end
local same_terms = ARGV[4] == '' and all_terms[1]

local pending = {}
for number, key in ipairs(KEYS) do
  local terms = same_terms
  if not terms then
    local low, high = string.byte(ARGV[4], 2 * number - 1, 2 * number)
    terms = all_terms[low + 256 * high + 1]
  end
  local flags, place = terms[1], #pending + 1
  local succeeded, problem = true, nil
  if flags == LAST and place == 1 then
    succeeded, problem = pcall(decide_one, key, terms)
  else
    local _, algorithm, limit, period, extra, max_wait, cost, charged_at = unpack(terms)
    pending[place] = {
      key = key, flags = flags, algorithm = algorithm, limit = limit, period = period, extra = extra,
      max_wait = max_wait, cost = cost, charged_at = charged_at,
      wide = flags >= OVERDRAFT and all_terms[charged_at + 1]
    }
    if flags % (2 * LAST) >= LAST then
      succeeded, problem = pcall(carry_out, pending, flags)
      pending = {}
    end
  end
  if not succeeded then -- an error of one request must not affect the other requests
    if type(problem) == 'table' then problem = problem.err end
    if not algorithms[terms[2]] then problem = 'this script has no algorithm number ' .. terms[2] end
    if first_error == '' then first_error = tostring(problem) end
    for number_of_reply = replied, number - place + 1, -1 do replies[number_of_reply] = nil end
    replied = number - place
    for _ = 1, place do reply(false, 0, 0, FAILED) end
  end
end

return ARGV[1] .. struct.pack('<d', now) .. table.concat(replies) .. first_error
