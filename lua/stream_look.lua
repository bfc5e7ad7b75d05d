-- Reads the stream: its mark, this server's clock, how many users have pending orders, and what ARGV[1] asks for.
--
-- ARGV[1]  `page`: the entries after entry ARGV[2]. If that is empty: from the beginning, and with the entries that were
--          pending before we joined. Entries that the hash does not name yet, those of Java nodes, are added to it
--          `user`: the pending orders of user ARGV[2]. If the entry of one is gone, the stream was lost
--          `tidy`: the oldest entry. An empty stream was lost if there are pending orders. Removes those of our consumers
--          (their names begin with ARGV[2]) that have nothing pending and were idle for an hour, and the consumer ARGV[3] if
--          it has nothing pending
local function users()
  return redis.call('HLEN', P) - 1 - redis.call('HEXISTS', P, 'ids')
end

local existing = group('g1')
local m, join = mark(not existing)
local before, page, value = {}, {}, ''
if ARGV[1] == 'page' then
  if ARGV[2] == '' then before = pending_before(join) end
  page = redis.call('XRANGE', S, '(' .. (ARGV[2] == '' and join or ARGV[2]), '+', 'COUNT', 1000)
  take_in(page)
elseif ARGV[1] == 'user' then
  value = redis.call('HGET', P, ARGV[2]) or ''
  for entry in string.gmatch(value, ':([^: ]+)%f[ %z]') do
    if #redis.call('XRANGE', S, entry, entry) == 0 then
      m = mark(true)
      value = redis.call('HGET', P, ARGV[2]) or ''
      break
    end
  end
else
  if users() > 0 and redis.call('XLEN', S) == 0 then m = mark(true) end
  for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', S, 'g1')) do
    local name = field(consumer, 'name')
    local old = string.sub(name, 1, #ARGV[2]) == ARGV[2] and field(consumer, 'idle') > 3600000
    if field(consumer, 'pending') == 0 and (old or name == ARGV[3]) then
      redis.call('XGROUP', 'DELCONSUMER', S, 'g1', name)
    end
  end
  page = redis.call('XRANGE', S, '(' .. join, '+', 'COUNT', 1)
end
return {m, string.format('%.0f', clock()), users(), value, before, page}
