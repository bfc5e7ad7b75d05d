-- Takes over the pending entries of dead consumers of our kind: those that do not report any more. Those without pending
-- entries are removed.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.consumers
-- ARGV[1]  the group
-- ARGV[2]  this node's consumer
-- ARGV[3]  what our consumers' names begin with
-- ARGV[4]  one of ours that has not reported for this long is dead; ms
-- ARGV[5]  most entries taken over at a time from each
--
-- Returns  how many were taken over.
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local taken = 0
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local of = {}
  for at = 1, #consumer, 2 do of[consumer[at]] = consumer[at + 1] end
  local name = of['name']
  local ours = string.sub(name, 1, #ARGV[3]) == ARGV[3]
  local reported = ours and tonumber(redis.call('ZSCORE', KEYS[2], name))
  local dead = ours and (not reported or ms - reported > tonumber(ARGV[4])) and of['idle'] > tonumber(ARGV[4])
  if name ~= ARGV[2] and dead then
    local entries = {}
    for _, pending in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[5], name)) do
      entries[#entries + 1] = pending[1]
    end
    if #entries > 0 then
      -- Entries that no longer exist leave the list of pending ones by this.
      redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(entries))
      taken = taken + #entries
    else
      redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], name)
      redis.call('ZREM', KEYS[2], name)
    end
  end
end
return taken
