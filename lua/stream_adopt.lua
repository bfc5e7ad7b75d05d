-- Makes entries that the caller holds and does not know pending under its name, where it reads them: those of a call whose
-- reply it did not get, or that it has given up.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.held
-- ARGV[1]  the group
-- ARGV[2]  the caller's consumer
-- ARGV[3…] records of what it holds
--
-- Returns  how many entries were made pending.
local adopted = 0
for at = 3, #ARGV do
  local record = redis.call('XRANGE', KEYS[2], ARGV[at], ARGV[at])[1]
  if record and record[2][2] == ARGV[2] then
    local claim = {}
    for _, entry in ipairs(redis.call('XRANGE', KEYS[1], record[2][4], record[1])) do
      claim[#claim + 1] = entry[1]
    end
    if #claim > 0 then
      adopted = adopted + #claim
      claim[#claim + 1] = 'FORCE'
      claim[#claim + 1] = 'JUSTID'
      redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, unpack(claim))
    end
    redis.call('XDEL', KEYS[2], ARGV[at])
  end
end
return adopted
