-- Common part of the scripts that release: joined in front of them. Makes a release that is executed
-- late do nothing, since its owner may have acquired the lock again meanwhile.
--
-- ARGV[#ARGV]  the release's latch, a key of its own: "redisson_unlock_latch:{name}:<owner>:<number>".
--              Before the client sends anything else for this owner after a release without an answer,
--              it sets the latch. Not one of the KEYS, as the channel in notify.lua
if redis.call('EXISTS', ARGV[#ARGV]) == 1 then
  return nil
end

