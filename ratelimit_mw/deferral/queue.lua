-- The queue of deferred requests, changed in one step. KEYS[1] is its stream; all its keys begin alike, and so lie in
-- one slot of a cluster. The stream holds what may be tried now, and of each lane the first only: the others wait in
-- the lane's list, in their order, and a lane whose limit is closed waits in `waiting` until it opens.
local stream, prefix = KEYS[1], string.sub(KEYS[1], 1, -7)
local open, waiting, parked = prefix .. 'open', prefix .. 'waiting', prefix .. 'parked'
local op, span, now = ARGV[1], ARGV[2], tonumber(ARGV[3])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function record(id) return prefix .. 'request:' .. id end
local function list(lane) return prefix .. 'lane:' .. lane end
local function micros(number) return string.format('%.0f', number) end
local function touch(...)
  for _, key in ipairs({...}) do redis.call('PEXPIRE', key, span) end
end

-- The first of a lane may be tried. Expired requests are skipped.
local function advance(lane)
  local id = redis.call('LINDEX', list(lane), 0)
  while id do
    if redis.call('EXISTS', record(id)) == 1 then
      redis.call('HSET', record(id), 'entry', redis.call('XADD', stream, '*', 'id', id, 'lane', lane))
      touch(stream, open, list(lane))
      return
    end
    redis.call('LPOP', list(lane))
    redis.call('ZREM', open, id)
    id = redis.call('LINDEX', list(lane), 0)
  end
end

local function join(id, lane)
  redis.call('ZADD', open, micros(now), id)
  local length = redis.call('RPUSH', list(lane), id)
  touch(open, list(lane))
  if length == 1 then advance(lane) end
end

-- An entry is done with when it is no longer its request's.
local function leave(entry)
  redis.call('XACK', stream, 'workers', entry)
  redis.call('XDEL', stream, entry)
end

-- The lane of a request that `entry` still stands for; nil where somebody else was faster.
local function lane_of(id, entry)
  local lane, current = unpack(redis.call('HMGET', record(id), 'lane', 'entry'))
  return current == entry and lane or nil
end

local commands = {}

function commands.put(id, lane, most, most_each, ...)
  if redis.call('ZCARD', open) >= tonumber(most) then return 0 end
  if redis.call('LLEN', list(lane)) >= tonumber(most_each) then return 0 end
  redis.call('HSET', record(id), 'lane', lane, 'state', 'queued', 'since', micros(now), 'attempts', 0, ...)
  touch(record(id))
  join(id, lane)
  return 1
end

-- The workers' group stands, lanes whose time has come may be tried; the microseconds until the next one's, or -1.
function commands.promote()
  redis.pcall('XGROUP', 'CREATE', stream, 'workers', '0', 'MKSTREAM')
  touch(stream)
  for _, lane in ipairs(redis.call('ZRANGEBYSCORE', waiting, '-inf', micros(now), 'LIMIT', 0, 100)) do
    redis.call('ZREM', waiting, lane)
    advance(lane)
  end
  local due = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
  return due and math.max(tonumber(due) - now, 0) or -1
end

-- A request as it was put, and the time.
function commands.load(id)
  local found = redis.call('HMGET', record(id), 'state', 'request', 'body', 'attempts', 'since')
  return {micros(now), unpack(found, 1, 5)}
end

function commands.begin(id, entry, ticket)
  if not lane_of(id, entry) or redis.call('HGET', record(id), 'state') ~= 'queued' then return 0 end
  redis.call('HSET', record(id), 'state', 'running', 'ticket', ticket)
  return redis.call('HINCRBY', record(id), 'attempts', 1)
end

-- What a ticket is good for: one arrival, while the attempt is under way.
function commands.arrive(id, ticket)
  local state, issued, request = unpack(redis.call('HMGET', record(id), 'state', 'ticket', 'request'))
  if state ~= 'running' or issued ~= ticket then return false end
  redis.call('HDEL', record(id), 'ticket')
  return request
end

function commands.postpone(id, entry, wait, counted)
  local lane = lane_of(id, entry)
  if not lane then return 0 end
  leave(entry)
  redis.call('HSET', record(id), 'state', 'queued')
  redis.call('HDEL', record(id), 'entry', 'ticket')
  if counted == '0' then redis.call('HINCRBY', record(id), 'attempts', -1) end
  redis.call('ZADD', waiting, micros(now + wait), lane)
  touch(waiting, open, list(lane))
  return 1
end

-- Its fate is known, and the next of its lane may be tried. What is not done lies apart, for an operator to look at.
function commands.settle(id, entry, state, keep, most, ...)
  local lane = lane_of(id, entry)
  if not lane then return 0 end
  leave(entry)
  redis.call('HSET', record(id), 'state', state, ...)
  redis.call('HDEL', record(id), 'entry', 'ticket')
  if state == 'done' then
    redis.call('HDEL', record(id), 'request', 'body')
  else
    redis.call('ZADD', parked, micros(now), id)
    touch(parked)
    while redis.call('ZCARD', parked) > tonumber(most) do
      redis.call('DEL', record(redis.call('ZPOPMIN', parked)[1]))
    end
  end
  redis.call('PEXPIRE', record(id), keep)
  redis.call('ZREM', open, id)
  redis.call('LREM', list(lane), 1, id)
  advance(lane)
  return 1
end

-- A parked request starts again, at the end of its lane.
function commands.retry(id)
  redis.call('ZREM', parked, id)
  local state, lane = unpack(redis.call('HMGET', record(id), 'state', 'lane'))
  if state ~= 'parked' and state ~= 'unknown' then return 0 end
  redis.call('HSET', record(id), 'state', 'queued', 'attempts', 0, 'since', micros(now))
  redis.call('HDEL', record(id), 'reason')
  touch(record(id))
  join(id, lane)
  return 1
end

-- An entry that stands for nothing any more; where its request has expired, its lane goes on.
function commands.forget(id, entry, lane)
  leave(entry)
  if redis.call('EXISTS', record(id)) == 0 and redis.call('LINDEX', list(lane), 0) == id then advance(lane) end
  return 1
end

return commands[op](unpack(ARGV, 4))
