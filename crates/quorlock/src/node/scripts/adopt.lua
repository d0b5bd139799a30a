-- Writes the adoption ARGV[1], which starts a node's wait for a marker, to KEYS[1] for two days, if there is none or if
-- it is ARGV[2]. Appends the time of day, so no two adoptions are equal. Deletes the marker KEYS[2], which must be
-- ARGV[3] ('' if absent); otherwise writes nothing and returns 0. Returns {adoption, age in milliseconds}.
local LIFE = 172800000
-- TIME comes first: if the user may not call it, the script fails before it deletes the marker.
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
-- The age follows from the expiry. An adoption without a plausible expiry starts its life again.
if left < 0 or left > LIFE then
  redis.call('PEXPIRE', KEYS[1], LIFE)
  left = LIFE
end
return {string.sub(text, 1, 16384), LIFE - left}
