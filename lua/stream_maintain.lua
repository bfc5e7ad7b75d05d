-- One round of maintenance of a node: reports that its consumer is alive, creates the group where it is missing, and
-- returns the state of the stream.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.epoch
-- KEYS[3]  stream.orders.consumers: when each last reported, ms by Redis's clock
-- KEYS[4]  stream.orders.dead
-- KEYS[5]  stream.orders.held
-- ARGV[1]  the group
-- ARGV[2]  this node's consumer
-- ARGV[3]  the group that marks the streams of the epoch, KEYS[1] and KEYS[5]: nobody consumes by it
--
-- Returns  {'lost', run} when this is not the Redis, or not the data, of the epoch, or when one of these streams was lost
-- (evicted, or deleted by hand, and perhaps made anew), which ends the epoch; else {'current', epoch, bound,
-- waiting, pending, dead letters, ms by Redis's clock}. Every entry below the bound is resolved:
-- entries are deleted when they are, also those that another kind of consumer acknowledges (stream_foreign_resolve.lua).
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local epoch = redis.call('GET', KEYS[2])
if not epoch or string.sub(epoch, 1, #run) ~= run then
  return {'lost', run}
end
for _, stream in ipairs({KEYS[1], KEYS[5]}) do
  -- Deleted again: the epoch that follows is to see it too.
  if not redis.pcall('XGROUP', 'CREATE', stream, ARGV[3], '0', 'MKSTREAM').err then
    redis.call('XGROUP', 'DESTROY', stream, ARGV[3])
    redis.call('DEL', KEYS[2])
    return {'lost', run}
  end
end
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('ZADD', KEYS[3], string.format('%d', ms), ARGV[2])
-- From the first entry on: what was added before there was a group is to be consumed too.
redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
local delivered, pending = '0-0', 0
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
  local of = {}
  for at = 1, #group, 2 do of[group[at]] = group[at + 1] end
  if of['name'] == ARGV[1] then
    delivered, pending = of['last-delivered-id'], of['pending']
  end
end
local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
local bound = first and first[1]
if not bound then
  -- Nothing waits: everything that was ever added is resolved, up to the last, and new entries are above it.
  local milliseconds, sequence = string.match(delivered, '^(%d+)-(%d+)$')
  bound = milliseconds .. '-' .. string.format('%d', sequence + 1)
end
return {'current', epoch, bound, tostring(redis.call('XLEN', KEYS[1])), tostring(pending),
  tostring(redis.call('XLEN', KEYS[4])), string.format('%d', ms)}
