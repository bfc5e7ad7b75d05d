-- Finds entries that a consumer of another kind has acknowledged: they are still in the stream, were delivered, are not
-- pending, and none of ours holds them. Our own consumers delete what they acknowledge.
--
-- KEYS[1]  stream.orders
-- KEYS[2]  stream.orders.held
-- ARGV[1]  the group
-- ARGV[2]  the entry to begin after; '0-0' for the first
-- ARGV[3]  most entries that are looked at
-- ARGV[4]  the group that marks KEYS[2]; without it nobody knows what is held, and nothing is found
-- ARGV[5]  what our consumers' names begin with: nothing is looked at while no other is in the group; '' to look all the same
--
-- Returns  in one flat list: the entry to go on after, or '0-0' at the end; then for each: entry, order, user, voucher.
local delivered, marked
for _, group in ipairs(redis.call('EXISTS', KEYS[2]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[2]) or {}) do
  marked = marked or group[2] == ARGV[4]
end
for _, group in ipairs(redis.call('EXISTS', KEYS[1]) == 1 and redis.call('XINFO', 'GROUPS', KEYS[1]) or {}) do
  local of = {}
  for at = 1, #group, 2 do of[group[at]] = group[at + 1] end
  if of['name'] == ARGV[1] then
    delivered = of['last-delivered-id']
  end
end
if not delivered or not marked then
  return {'0-0'}
end
local foreign = ARGV[5] == ''
for _, consumer in ipairs(foreign and {} or redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  foreign = foreign or string.sub(consumer[2], 1, #ARGV[5]) ~= ARGV[5]
end
if not foreign then
  return {'0-0'}
end
local entries = redis.call('XRANGE', KEYS[1], '(' .. ARGV[2], delivered, 'COUNT', ARGV[3])
if #entries == 0 then
  return {'0-0'}
end
local last = entries[#entries][1]
local taken, from = {}, entries[1][1]
repeat
  local page = redis.call('XPENDING', KEYS[1], ARGV[1], from, last, ARGV[3])
  for _, entry in ipairs(page) do taken[entry[1]] = true end
  from = #page > 0 and '(' .. page[#page][1]
until #page < tonumber(ARGV[3])
-- The records that end within this page, and the next one, which may have begun in it.
for _, records in ipairs({redis.call('XRANGE', KEYS[2], entries[1][1], last), redis.call('XRANGE', KEYS[2], '(' .. last, '+', 'COUNT', 1)}) do
  for _, record in ipairs(records) do
    for _, entry in ipairs(redis.call('XRANGE', KEYS[1], record[2][4], record[1])) do taken[entry[1]] = true end
  end
end
local found = {#entries == tonumber(ARGV[3]) and last or '0-0'}
for _, entry in ipairs(entries) do
  if not taken[entry[1]] then
    local of = {}
    for at = 1, #entry[2], 2 do of[entry[2][at]] = entry[2][at + 1] end
    for _, field in ipairs({entry[1], of['id'] or '', of['userId'] or '', of['voucherId'] or ''}) do
      found[#found + 1] = field
    end
  end
end
return found
