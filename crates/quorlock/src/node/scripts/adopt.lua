-- Writes the adoption ARGV[1] to KEYS[1] for two days, if there is none, or if it is ARGV[2]; with the time
-- of day behind it, for no two adoptions may be the same. Takes the marker KEYS[2] away, which must be ARGV[3]
-- ('' nothing); else nothing is written, and the answer is 0. Answers {adoption, age in milliseconds}.
local LIFE = 172800000
-- First, for if it may not be asked for, nothing is to be taken away.
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
-- Its age is told by its expiry. One without, or with a later one than it can have, counts anew.
if left < 0 or left > LIFE then
  redis.call('PEXPIRE', KEYS[1], LIFE)
  left = LIFE
end
return {string.sub(text, 1, 16384), LIFE - left}
