-- Ask a Bloom filter.
--
-- KEYS[1]    the filter
-- ARGV[1]    bytes of bits before the state
-- ARGV[2..]  positions of bits
--
-- Returns 0 when the item was never added, 1 when it may have been, 2 when the filter cannot tell:
-- it is missing, not yet filled, or was filled under another server process, which may have
-- forgotten what it was told last.
local state = redis.call('GETRANGE', KEYS[1], ARGV[1], ARGV[1] + 40)
if string.sub(state, 1, 1) ~= 'R' then
  return 2
end
for i = 2, #ARGV do
  if redis.call('GETBIT', KEYS[1], ARGV[i]) == 0 then
    -- Only now the answer matters; asking for the run id costs more than all the rest.
    local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
    if string.sub(state, 2) == run then
      return 0
    end
    return 2
  end
end
return 1
