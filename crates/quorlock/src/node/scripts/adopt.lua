-- Writes the adoption ARGV[1] to KEYS[1] with a ttl of two days, if KEYS[1] is absent or holds ARGV[2]. The script
-- appends the time of day, so no two adoptions have the same text. Deletes the marker KEYS[2], which must hold ARGV[3]
-- ('' means absent). If the marker differs, nothing is written, and the script returns 0. Otherwise returns
-- {adoption, age in milliseconds}.
local LIFE = 172800000
-- This call comes first, so that a user without the right to TIME changes nothing.
local time = redis.call('TIME')
local marker = redis.call('GET', KEYS[2])
if (marker or '') ~= ARGV[3] then
  return 0
end
if marker then
  redis.call('DEL', KEYS[2])
end
local text = redis.call('GET', KEYS[1])
if not text or text == ARGV[2] then
  text = string.format('%s since=%d%06d', ARGV[1], tonumber(time[1]), tonumber(time[2]))
  redis.call('SET', KEYS[1], text, 'PX', LIFE)
end
local left = redis.call('PTTL', KEYS[1])
-- The expiry shows the age. Without an expiry, or with one that is too late, the age starts at zero.
if left < 0 or left > LIFE then
  redis.call('PEXPIRE', KEYS[1], LIFE)
  left = LIFE
end
return {string.sub(text, 1, 16384), LIFE - left}
