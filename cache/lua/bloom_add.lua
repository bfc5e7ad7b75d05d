-- Set bits of a Bloom filter. Bits are only ever set, so nodes may add and fill at the same time.
--
-- KEYS[1]  the filter, a string: the bits, then 73 bytes that tell its state
-- ARGV     positions of bits
for _, position in ipairs(ARGV) do
  redis.call('SETBIT', KEYS[1], position, 1)
end
return #ARGV
