-- Decides requests of all kinds.
local keys, places, byte, all_terms, terms_of, started = KEYS, ARGV[4], string.byte, {}, {}, 1
for at = 1, #ARGV[3], TERMS_SIZE do
  all_terms[#all_terms + 1] = {unpack_struct(TERMS, ARGV[3], at)}
end

-- What is found of the counters of a request: one table for each value, because a table for each counter takes longer.
local writes, resets, offsets = {}, {}, {}

-- The asks of a request, for `carry_out`.
local function asks_of(first, last)
  local asks = {}
  for number = first, last do
    local flags, algorithm, limit, period, extra, longest_wait, cost, charged_at = unpack(terms_of[number])
    asks[#asks + 1] = {
      key = keys[number], flags = flags, algorithm = algorithm, limit = limit, period = period, extra = extra,
      longest_wait = longest_wait, cost = cost, charged_at = charged_at,
      wide = flags >= OVERDRAFT and all_terms[charged_at + 1]
    }
  end
  return asks
end

-- Decides the requests from `started` on. The usual request does nothing but take from its counters, and all of them
-- admit that. It is decided while it is read. If it asks one counter, also a denial is final.
local function run(keys, terms_of, algorithms, now, replies, writes, resets, offsets)
  for number = started, #keys do
    local terms, first = terms_of[number], started
    local flags = terms[1]
    if replied == number - 1 and (flags == LAST or flags == 0) then
      local allowed, remaining, reset_after, retry_after, write, delay, offset =
        algorithms[terms[2]](keys[number], terms[3], terms[4], terms[5], terms[7], now, terms[6])
      if allowed or (number == first and flags == LAST) then
        writes[number], resets[number], offsets[number] = write or false, reset_after, offset or false
        replies[number] = pack_struct(OUTCOME, allowed and 1 or 0, remaining, reset_after, retry_after, delay or 0)
        replied = number
      end
    end
    if flags % (2 * LAST) >= LAST then
      if replied == number then
        for each = first, number do save(keys[each], resets[each], writes[each], offsets[each]) end
      else
        replied = first - 1
        carry_out(asks_of(first, number), terms_of[first][1])
      end
      started = number + 1
    end
  end
end

for number = 1, #keys do
  local at = 0
  if places ~= '' then
    local low, high = byte(places, 2 * number - 1, 2 * number)
    at = low + 256 * high
  end
  terms_of[number] = all_terms[at + 1]
end

while started <= #keys do
  local succeeded, problem = pcall(run, keys, terms_of, algorithms, now, replies, writes, resets, offsets)
  if not succeeded then -- an error of one request must not affect the other requests
    local last = started
    while terms_of[last][1] % (2 * LAST) < LAST do last = last + 1 end
    fail(started, last, problem, terms_of[last][2])
    started = last + 1
  end
end

return ARGV[1] .. pack_struct('<d', now) .. table.concat(replies) .. first_error
