-- Begins a new epoch, because Redis lost its data, or was started anew and may have lost some. In it every stock counter
-- is rebuilt from the database, and every node adds again what it admitted and does not know to be committed.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.epoch
-- KEYS[3]  stream.orders.counters        sales whose counter is exact
-- KEYS[4]  stream.orders.claims          sales whose claims are complete
-- KEYS[5]  stream.orders.held
-- ARGV[1]  the group
-- ARGV[2]  the group that marks the streams of the epoch, KEYS[1] and KEYS[5]
--
-- Returns  the epoch: the server's run id, a colon, and microseconds by its clock.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local epoch = redis.call('GET', KEYS[2])
if epoch and string.sub(epoch, 1, #run) == run then
  return epoch
end
-- The counters themselves stay for Java nodes, whose script needs them.
redis.call('DEL', KEYS[3], KEYS[4])
redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
local is_new = not redis.pcall('XGROUP', 'CREATE', KEYS[1], ARGV[2], '0').err
if not redis.pcall('XGROUP', 'CREATE', KEYS[5], ARGV[2], '0', 'MKSTREAM').err or is_new then
  -- Who held which entry is lost, or went with the stream: what is there is delivered anew.
  redis.call('DEL', KEYS[5])
  redis.call('XGROUP', 'CREATE', KEYS[5], ARGV[2], '0', 'MKSTREAM')
  redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], '0')
end
local now = redis.call('TIME')
epoch = run .. ':' .. now[1] .. string.format('%06d', now[2])
redis.call('SET', KEYS[2], epoch)
return epoch
