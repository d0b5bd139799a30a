-- Acquires a lock that has a fence: if KEYS[1] is absent, it is set to ARGV[1] for ARGV[2]
-- milliseconds, and the counter KEYS[2] moves on, to live for ARGV[3] milliseconds: to what is
-- largest of the next number, the floor in the marker KEYS[3], and the number ARGV[4] that the client
-- proposes; of that, no more than an hour ahead of this server's clock, for clients' clocks err.
-- Answers the counter; or, with nothing written, {counter, ttl, value} of who holds the lock, without
-- the value if it is no string.
local counter = redis.call('GET', KEYS[2]) or '0'
if not string.find(counter, '^%d+$') then
  return redis.error_reply('ERR the fence counter is no number')
end
counter = tonumber(counter)
local ttl = redis.call('PTTL', KEYS[1])
if ttl ~= -2 then
  local value = redis.pcall('GETRANGE', KEYS[1], 0, 511)
  if type(value) == 'string' then
    return {counter, ttl, value}
  end
  -- An error other than that of another type says nothing about the key: it is handed on.
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  return {counter, ttl}
end
local marker = redis.call('GET', KEYS[3]) or ''
local floor = tonumber(string.match(marker, 'floor=(%d+)$')) or 0
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local fence = math.max(counter + 1, floor, math.min(tonumber(ARGV[4]), now + 3600000000))
-- From here on numbers are not exact any more.
if fence >= 9007199254740992 then
  return redis.error_reply('ERR the fence counter is at its end')
end
redis.call('SET', KEYS[2], string.format('%.0f', fence), 'PX', ARGV[3])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return fence
