-- Takes over what dead consumers of our kind hold or have pending. Those without any are removed.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.consumers
-- KEYS[3]  stream.orders.held
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
local records = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1000)
for at = 4, #ARGV, 2 do
  local name, heartbeat = ARGV[at], ARGV[at + 1]
  if (redis.call('ZSCORE', KEYS[2], name) or '') == heartbeat then
    local entries, ended = {}, {}
    for _, pending in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[3], name)) do
      entries[#entries + 1] = pending[1]
    end
    for _, record in ipairs(records) do
      if record[2][2] == name and #entries < tonumber(ARGV[3]) then
        for _, entry in ipairs(redis.call('XRANGE', KEYS[1], record[2][4], record[1])) do
          entries[#entries + 1] = entry[1]
        end
        ended[#ended + 1] = record[1]
      end
    end
    if #entries > 0 then
      -- FORCE: what was held is not pending yet. Entries that no longer exist leave the list of pending ones by this.
      taken = taken + #entries
      entries[#entries + 1] = 'FORCE'
      redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(entries))
    end
    if #ended > 0 then
      -- Only now: between the two the entries would be nobody's, should the script fail.
      redis.call('XDEL', KEYS[3], unpack(ended))
    elseif #entries == 0 then
      redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], name)
      redis.call('ZREM', KEYS[2], name)
    end
  end
end
return taken
