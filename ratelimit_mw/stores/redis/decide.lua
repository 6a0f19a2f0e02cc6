-- Decides requests of all kinds.
local all_terms, terms_of, places, byte = {}, {}, ARGV[4], string.byte
for at = 1, #ARGV[3], TERMS_SIZE do
  all_terms[#all_terms + 1] = {unpack_struct(TERMS, ARGV[3], at)}
end

-- Takes from the counter of a request that asks no other, if it admits that.
local function take(number)
  local key, terms = KEYS[number], terms_of[number]
  local allowed, remaining, reset_after, retry_after, write, delay, in_place =
    algorithms[terms[2]](key, terms[3], terms[4], terms[5], terms[7], now, terms[6])
  if write then save(key, reset_after, write, in_place) end
  reply(allowed, remaining, reset_after, retry_after, delay)
end

-- What is found of the counters of a request: one table for each value, because a table for each counter takes longer.
local writes, resets, in_places = {}, {}, {}

-- Takes from several counters, if all of them admit that. Otherwise it changes nothing and returns false.
local function take_all(first, last)
  for number = first, last do
    local terms = terms_of[number]
    local allowed, remaining, reset_after, _, write, delay, in_place =
      algorithms[terms[2]](KEYS[number], terms[3], terms[4], terms[5], terms[7], now, terms[6])
    if not allowed then
      replied = first - 1
      return false
    end
    writes[number], resets[number], in_places[number] = write or false, reset_after, in_place
    reply(true, remaining, reset_after, 0, delay)
  end
  for number = first, last do
    if writes[number] then save(KEYS[number], resets[number], writes[number], in_places[number]) end
  end
  return true
end

-- Decides the request with these asks. It is `plain` if it does nothing but take from counters.
local function decide(first, last, plain)
  if plain and first == last then return take(last) end
  if plain and take_all(first, last) then return end
  local asks = {}
  for number = first, last do
    local flags, algorithm, limit, period, extra, longest_wait, cost, charged_at = unpack(terms_of[number])
    asks[#asks + 1] = {
      key = KEYS[number], flags = flags, algorithm = algorithm, limit = limit, period = period, extra = extra,
      longest_wait = longest_wait, cost = cost, charged_at = charged_at,
      wide = flags >= OVERDRAFT and all_terms[charged_at + 1]
    }
  end
  carry_out(asks, terms_of[first][1])
end

local first, plain = 1, true
for number = 1, #KEYS do
  local terms = all_terms[1]
  if places ~= '' then
    local low, high = byte(places, 2 * number - 1, 2 * number)
    terms = all_terms[low + 256 * high + 1]
  end
  terms_of[number] = terms
  local flags = terms[1]
  plain = plain and (flags == LAST or flags == 0)
  if flags % (2 * LAST) >= LAST then
    local succeeded, problem = pcall(decide, first, number, plain)
    if not succeeded then fail(first, number, problem, terms[2]) end
    first, plain = number + 1, true
  end
end

return ARGV[1] .. pack_struct('<d', now) .. table.concat(replies) .. first_error
