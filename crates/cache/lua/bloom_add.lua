-- Adds items to a Bloom filter: sets bits. Bits are never cleared, so adding and filling may overlap.
--
-- KEYS[1]  the filter, a string: the bits, then 73 bytes of state (see bloom_fill_begin.lua)
-- ARGV     bit positions
--
-- Returns the number of positions.
for _, position in ipairs(ARGV) do
  redis.call('SETBIT', KEYS[1], position, 1)
end
return #ARGV
