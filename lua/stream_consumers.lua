-- Lists the other consumers of our kind in the group, each with its last heartbeat. Whether one is dead is judged by the
-- caller, who sees that a heartbeat does not change: the clock of Redis may be stepped.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.consumers
-- KEYS[3]  stream.orders.held
-- ARGV[1]  the group
-- ARGV[2]  the caller's consumer
-- ARGV[3]  what our consumers' names begin with
--
-- A consumer that holds entries is listed also where it is no longer in the group.
--
-- Returns  name, heartbeat, name, heartbeat, …; a missing heartbeat is ''.
local found, listed = {}, {}
local function list(name)
  if name ~= ARGV[2] and not listed[name] and string.sub(name, 1, #ARGV[3]) == ARGV[3] then
    listed[name] = true
    found[#found + 1] = name
    found[#found + 1] = redis.call('ZSCORE', KEYS[2], name) or ''
  end
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return found
end
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local of = {}
  for at = 1, #consumer, 2 do of[consumer[at]] = consumer[at + 1] end
  list(of['name'])
end
for _, record in ipairs(redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1000)) do
  list(record[2][2])
end
return found
