-- Extends a lock: if KEYS[1] holds ARGV[1], it lives for ARGV[2] milliseconds from now, never
-- shorter than it would. A key of ours that has lost its expiry gets one again, or a holder that
-- crashes would block others for ever. If the lock has a fence, its counter KEYS[2] lives on as well,
-- for ARGV[3] milliseconds. Answers 1 extended, -1 absent, 0 another value or type.
local value = redis.pcall('GET', KEYS[1])
if value == ARGV[1] then
  for place, key in ipairs(KEYS) do
    if redis.call('PTTL', key) < tonumber(ARGV[place + 1]) then
      redis.call('PEXPIRE', key, ARGV[place + 1])
    end
  end
  return 1
end
if value == false then
  return -1
end
-- An error other than that of another type says nothing about the key: it is handed on.
if type(value) == 'table' and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
return 0
