-- Lists what is pending under consumers of another kind.
--
-- KEYS[1]  stream.orders
-- ARGV[1]  the group
-- ARGV[2]  what our consumers' names begin with
-- ARGV[3]  most entries that are listed of each consumer, the oldest first
--
-- Returns  for each: entry, consumer; in one flat list.
local found = {}
if redis.call('EXISTS', KEYS[1]) == 0 then
  return found
end
for _, consumer in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local of = {}
  for at = 1, #consumer, 2 do of[consumer[at]] = consumer[at + 1] end
  local name = of['name']
  if string.sub(name, 1, #ARGV[2]) ~= ARGV[2] and of['pending'] > 0 then
    for _, entry in ipairs(redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', ARGV[3], name)) do
      found[#found + 1] = entry[1]
      found[#found + 1] = name
    end
  end
end
return found
