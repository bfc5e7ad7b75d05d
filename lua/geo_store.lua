-- Stores a GEO index that was read from the database, unless a shop was written meanwhile: then the lease is gone or
-- is another one.
-- KEYS[1]  shop:geo:{typeId}   KEYS[2]  the lease
-- ARGV[1]  the lease as it was before the database was read
-- ARGV[2]  time to live of the index, seconds
-- ARGV[3…] longitude, latitude and id of each shop
-- Returns  1 when stored, else 0.
if redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
for at = 3, #ARGV, 3 do
  redis.call('GEOADD', KEYS[1], ARGV[at], ARGV[at + 1], ARGV[at + 2])
end
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
