-- What the algorithms share. A Lua number is a double: whole numbers are exact below 2^53.
local NEVER = -1

-- Filled by the algorithms' files, by their numbers.
local algorithms, refunds, denials = {}, {}, {}

-- floor(a × b ÷ c) and the remainder, exact where a < 2^32, b and c < 2^49, and the quotient < 2^53.
local function multiply_divide(a, b, c)
  local product = a * b
  if product < 9007199254740992 then
    local quotient = math.floor(product / c)
    return quotient, product - quotient * c
  end
  -- Long division, four bits of a at a time, so that nothing passes 2^53.
  local quotient, remainder, unit = 0, 0, 268435456
  while unit >= 1 do
    local digit = math.floor(a / unit)
    a = a - digit * unit
    local shifted, added = remainder * 16, digit * b
    local q1, q2 = math.floor(shifted / c), math.floor(added / c)
    remainder = (shifted - q1 * c) + (added - q2 * c)
    quotient = quotient * 16 + q1 + q2
    if remainder >= c then
      quotient, remainder = quotient + 1, remainder - c
    end
    unit = unit / 16
  end
  return quotient, remainder
end
