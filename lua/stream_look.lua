-- What the stream is like: its mark, this server's clock, and how many users have pending orders; and what is asked for.
--
-- ARGV[1]  `page`: entries after the one that ARGV[2] names, or, where that is empty, from the beginning and with those that
--          were pending before we joined; the hash names them from now on, also those that a Java node added
--          `user`: the pending orders of the user that ARGV[2] names; where an entry of these is gone, the stream was lost
--          `tidy`: the oldest entry. A stream without the entries of pending orders was lost. Of our consumers, whose names
--          begin with ARGV[2], those are removed that have nothing pending, and were idle for an hour or have the name ARGV[3]
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
