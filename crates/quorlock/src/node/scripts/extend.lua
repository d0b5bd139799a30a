-- Extends a lock: if its keys hold ARGV[1], each lives for ARGV[2] milliseconds from now, never
-- shorter than it would. A key of ours that has lost its expiry gets one again, or a holder that
-- crashes would block others for ever. The keys are KEYS; but if the lock has a fence, their first half,
-- and the others are their counters, which live on as well, for ARGV[3] milliseconds.
-- Answers 1 extended; or, with nothing changed, 0 some key has another value or type, else -1 some key is absent.
local locks = ARGV[3] and #KEYS / 2 or #KEYS
local is_absent = false
for place = 1, locks do
  local value = redis.pcall('GET', KEYS[place])
  if value == false then
    is_absent = true
  elseif value ~= ARGV[1] then
    -- An error other than that of another type says nothing about the key: it is handed on.
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
