-- Extends or releases a lock with a value of the caller's. KEYS are the lock's key and the key of its nonce, a value
-- that each attempt has for itself. The lock's key must hold ARGV[1]; with ARGV[4] 'nonce', the other key must hold
-- ARGV[2]. With ARGV[3] 0, deletes both keys. Otherwise both expire ARGV[3] milliseconds from now, but the lock's key
-- not earlier than before, and the other key holds ARGV[2]. Returns 1 if the lock was extended or released. Otherwise
-- nothing is written: returns -1 if the lock's key is absent, or else 0.
local value = redis.pcall('GET', KEYS[1])
if value == false then
  return -1
end
local nonce = value == ARGV[1] and ARGV[4] == 'nonce' and redis.pcall('GET', KEYS[2])
for _, reply in ipairs({value, nonce or ''}) do
  -- Any error but WRONGTYPE shows nothing about the key, so the script returns the error.
  if type(reply) == 'table' and reply.err and not string.find(reply.err, 'WRONGTYPE', 1, true) then
    return reply
  end
end
if value ~= ARGV[1] or ARGV[4] == 'nonce' and nonce ~= ARGV[2] then
  return 0
end
if ARGV[3] == '0' then
  redis.call('DEL', KEYS[1], KEYS[2])
  return 1
end
local left = math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[3]))
-- This write comes first because a server whose memory is full refuses a SET that is the first write of a script.
redis.call('PEXPIRE', KEYS[1], left)
redis.call('SET', KEYS[2], ARGV[2], 'PX', left)
return 1
