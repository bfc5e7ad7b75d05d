-- Searches a GEO index: shops of a type around a point, nearest first.
-- KEYS[1]  shop:geo:{typeId}, the index: member = shop id
-- ARGV[1]  longitude   ARGV[2]  latitude   ARGV[3]  radius, metres   ARGV[4]  maximum count
-- Returns  pairs of id and metres, or nil if the index is missing.
if redis.call('EXISTS', KEYS[1]) == 0 then
  return nil
end
return redis.call('GEOSEARCH', KEYS[1], 'FROMLONLAT', ARGV[1], ARGV[2], 'BYRADIUS', ARGV[3], 'm',
  'ASC', 'COUNT', ARGV[4], 'WITHDIST')
