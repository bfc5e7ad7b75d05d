-- Begins a new epoch, because Redis lost its data, or was started anew and may have lost some. In it every stock counter
-- is rebuilt from the database, and every node adds again what it admitted and does not know to be committed.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.epoch
-- KEYS[3]  stream.orders.counters        sales whose counter is exact
-- KEYS[4]  stream.orders.claims          sales whose claims are complete
-- ARGV[1]  the group
-- ARGV[2]  the group that marks the stream of the epoch
--
-- Returns  the epoch: the server's run id, a colon, and microseconds by its clock.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local epoch = redis.call('GET', KEYS[2])
if epoch and string.sub(epoch, 1, #run) == run then
  return epoch
end
-- The counters themselves stay for Java nodes, whose script needs them.
redis.call('DEL', KEYS[3], KEYS[4])
for at = 1, 2 do
  redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[at], '0', 'MKSTREAM')
end
local now = redis.call('TIME')
epoch = run .. ':' .. now[1] .. string.format('%06d', now[2])
redis.call('SET', KEYS[2], epoch)
return epoch
