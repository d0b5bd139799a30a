-- Extends a lock: if all its keys hold ARGV[1], each lives for at least ARGV[2] milliseconds from now. A key of ours
-- without expiry gets one again, because a holder that crashes would otherwise block others for ever. KEYS are the
-- lock's keys. If the lock has a fencing token, the second half are its counters, which live for ARGV[3] milliseconds.
-- Returns 1. If nothing is written: 0 if a key has another value or type, otherwise -1 if a key is absent.
local locks = ARGV[3] and #KEYS / 2 or #KEYS
local is_absent = false
for place = 1, locks do
  local value = redis.pcall('GET', KEYS[place])
  if value == false then
    is_absent = true
  elseif value ~= ARGV[1] then
    -- An error other than WRONGTYPE says nothing about the key, so it is returned.
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
