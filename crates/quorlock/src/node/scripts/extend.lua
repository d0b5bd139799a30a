-- Extends a lock. If all of the lock's keys hold ARGV[1], each expires ARGV[2] milliseconds from now, but not earlier
-- than before. A key that has lost its expiry gets one, because otherwise a holder that crashes would block the lock
-- for ever. Without ARGV[3], KEYS are the lock's keys. With ARGV[3], the lock has a fencing token: the first half of
-- KEYS are the lock's keys, and the second half are their counters, which get a ttl of at least ARGV[3] milliseconds.
-- Returns 1 if the lock was extended. Otherwise nothing is written: returns 0 if a key has another value or type, or
-- else -1 if a key is absent.
local locks = ARGV[3] and #KEYS / 2 or #KEYS
local is_absent = false
for place = 1, locks do
  local value = redis.pcall('GET', KEYS[place])
  if value == false then
    is_absent = true
  elseif value ~= ARGV[1] then
    -- Any error but WRONGTYPE shows nothing about the key, so the script returns the error.
    if type(value) == 'table' and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) then
      return value
    end
    return 0
  end
end
if is_absent then
  return -1
end
for place, key in ipairs(KEYS) do
  local ttl = place <= locks and ARGV[2] or ARGV[3]
  if redis.call('PTTL', key) < tonumber(ttl) then
    redis.call('PEXPIRE', key, ttl)
  end
end
return 1
