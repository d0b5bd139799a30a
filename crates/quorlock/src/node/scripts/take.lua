-- Takes a lock with a value of the caller's. KEYS are the lock's key and the key of its nonce, a value that each
-- attempt has for itself. If the lock's key is absent, sets it to ARGV[1] and the other key to ARGV[2], both with a
-- ttl of ARGV[3] milliseconds. Returns 1 if the keys were set. Returns 0 if the lock's key exists, with whatever
-- value; then nothing is written.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3])
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
return 1
