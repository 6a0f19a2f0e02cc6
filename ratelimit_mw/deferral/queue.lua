-- One atomic operation on the queue of deferred requests.
--
-- KEYS  1  the stream; all other keys have the same hash tag, so they are in the same slot of a cluster
-- ARGV  1  the operation: a name in `commands`
--       2  the TTL of the keys in milliseconds
--       3  the time in microseconds, or '' for the server's clock
--       4… the arguments of the operation
--
-- A lane is the requests that must be replayed in order. The keys:
--   stream       entries for requests that may be tried now: at most the first of each lane
--   lane:L       list of the ids of lane L, in order
--   open         sorted set of the ids of all queued and running requests, by the time of arrival
--   waiting      sorted set of the lanes whose limit is exhausted, by the time of the next attempt
--   parked       sorted set of the ids of the requests that were given up, for an operator
--   request:ID   hash with the record of one request
local stream, prefix = KEYS[1], string.sub(KEYS[1], 1, -7)
local open, waiting, parked = prefix .. 'open', prefix .. 'waiting', prefix .. 'parked'
local operation, ttl, now = ARGV[1], ARGV[2], tonumber(ARGV[3])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function record(id) return prefix .. 'request:' .. id end
local function list(lane) return prefix .. 'lane:' .. lane end
-- Lua writes large numbers with an exponent, which Redis does not read as an integer.
local function micros(number) return string.format('%.0f', number) end
local function touch(...)
  for _, key in ipairs({...}) do redis.call('PEXPIRE', key, ttl) end
end

-- Adds the first request of a lane to the stream. Expired requests are removed.
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

-- Adds a request to the end of its lane.
local function join(id, lane)
  redis.call('ZADD', open, micros(now), id)
  local length = redis.call('RPUSH', list(lane), id)
  touch(open, list(lane))
  if length == 1 then advance(lane) end
end

-- Removes an entry from the stream.
local function remove_entry(entry)
  redis.call('XACK', stream, 'workers', entry)
  redis.call('XDEL', stream, entry)
end

-- Returns the lane of a request, or nil if `entry` is no longer its current entry: another worker was faster.
local function lane_of(id, entry)
  local lane, current = unpack(redis.call('HMGET', record(id), 'lane', 'entry'))
  return current == entry and lane or nil
end

local commands = {}

-- Adds a new request. Returns 0 if the queue or the lane is full.
function commands.put(id, lane, most, most_each, ...)
  -- Removes requests that expired while no worker ran. `advance` does not find them if their lanes expired, too.
  redis.call('ZREMRANGEBYSCORE', open, '-inf', micros(now - ttl * 1000))
  -- The same for the first ones of this lane. If the lane waits, `promote` removes them when its time has passed.
  local first, waits = redis.call('LINDEX', list(lane), 0), redis.call('ZSCORE', waiting, lane)
  if first and not waits and redis.call('EXISTS', record(first)) == 0 then advance(lane) end
  if redis.call('ZCARD', open) >= tonumber(most) then return 0 end
  if redis.call('LLEN', list(lane)) >= tonumber(most_each) then return 0 end
  redis.call('HSET', record(id), 'lane', lane, 'state', 'queued', 'since', micros(now), 'attempts', 0, ...)
  touch(record(id))
  join(id, lane)
  return 1
end

-- Creates the consumer group of the workers, and advances the lanes whose waiting time has passed.
-- Returns the microseconds until the next lane is due, or -1.
function commands.promote()
  -- `pcall`, because the group usually exists already.
  redis.pcall('XGROUP', 'CREATE', stream, 'workers', '0', 'MKSTREAM')
  touch(stream)
  for _, lane in ipairs(redis.call('ZRANGEBYSCORE', waiting, '-inf', micros(now), 'LIMIT', 0, 100)) do
    redis.call('ZREM', waiting, lane)
    advance(lane)
  end
  local due = redis.call('ZRANGE', waiting, 0, 0, 'WITHSCORES')[2]
  return due and math.max(tonumber(due) - now, 0) or -1
end

-- Returns the time and the stored request.
function commands.load(id)
  local found = redis.call('HMGET', record(id), 'state', 'request', 'body', 'attempts', 'since')
  return {micros(now), unpack(found, 1, 5)}
end

-- Begins an attempt. Returns its number, or 0 if the request is no longer this entry's or is not queued.
function commands.begin(id, entry, ticket)
  if not lane_of(id, entry) or redis.call('HGET', record(id), 'state') ~= 'queued' then return 0 end
  redis.call('HSET', record(id), 'state', 'running', 'ticket', ticket)
  return redis.call('HINCRBY', record(id), 'attempts', 1)
end

-- Returns the stored request for a valid ticket. A ticket is valid once, while its attempt is running.
function commands.arrive(id, ticket)
  local state, issued, request = unpack(redis.call('HMGET', record(id), 'state', 'ticket', 'request'))
  if state ~= 'running' or issued ~= ticket then return false end
  redis.call('HDEL', record(id), 'ticket')
  return request
end

-- Ends an attempt that has to be repeated after `wait` microseconds. `counted` is '0' if it does not count.
function commands.postpone(id, entry, wait, counted)
  local lane = lane_of(id, entry)
  if not lane then return 0 end
  remove_entry(entry)
  redis.call('HSET', record(id), 'state', 'queued')
  redis.call('HDEL', record(id), 'entry', 'ticket')
  if counted == '0' then redis.call('HINCRBY', record(id), 'attempts', -1) end
  redis.call('ZADD', waiting, micros(now + wait), lane)
  touch(waiting, open, list(lane))
  return 1
end

-- Ends a request with its final state and advances its lane. A request that is not done is parked for an operator; the
-- oldest parked requests are deleted if there are more than `most`.
function commands.settle(id, entry, state, keep, most, ...)
  local lane = lane_of(id, entry)
  if not lane then return 0 end
  remove_entry(entry)
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

-- Queues a parked request again, at the end of its lane.
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

-- Removes an entry that is no longer its request's current entry. If the request has expired, its lane advances.
function commands.forget(id, entry, lane)
  remove_entry(entry)
  if redis.call('EXISTS', record(id)) == 0 and redis.call('LINDEX', list(lane), 0) == id then advance(lane) end
  return 1
end

return commands[operation](unpack(ARGV, 4))
