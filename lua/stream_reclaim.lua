-- Takes over the pending entries of dead consumers of our kind. Those without pending entries are removed.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.consumers
-- ARGV[1]  the group
-- ARGV[2]  this node's consumer
-- ARGV[3]  most entries taken over at a time from each
-- ARGV[4…] for each: the dead consumer, and its heartbeat when it was found to be dead; one that has another heartbeat by
--          now is left alone
--
-- Returns  how many were taken over.
local taken = 0
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
for at = 4, #ARGV, 2 do
  local name, heartbeat = ARGV[at], ARGV[at + 1]
  if (redis.call('ZSCORE', KEYS[2], name) or '') == heartbeat then
    local entries = {}
    for _, pending in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[3], name)) do
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
