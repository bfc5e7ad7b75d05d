-- Checks whether a Bloom filter may contain an item.
--
-- KEYS[1]    the filter
-- ARGV[1]    size of the bits in bytes: the offset of the state
-- ARGV[2..]  bit positions of the item
--
-- Returns 0 when the item was never added, 1 when it may have been, 2 when the filter is not usable:
-- it is missing, not filled yet, or was filled under another server process, whose restart may have
-- lost the last writes.
local state = redis.call('GETRANGE', KEYS[1], ARGV[1], ARGV[1] + 40)
if string.sub(state, 1, 1) ~= 'R' then
  return 2
end
for i = 2, #ARGV do
  if redis.call('GETBIT', KEYS[1], ARGV[i]) == 0 then
    -- Checked only for a "no": reading the run id costs more than all the rest.
    local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
    if string.sub(state, 2) == run then
      return 0
    end
    return 2
  end
end
return 1
