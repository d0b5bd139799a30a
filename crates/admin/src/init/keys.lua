-- Changes what a node says of whom it votes for, if it still says what was read there.
-- KEYS: the marker, the adoption. ARGV: what must be there of each ('' nothing, '*' anything), what is
-- to be there ('' nothing), how long an adoption lives, and how much of that may be left at most
-- (negative: all of it). Answers 1 changed, 0 something else is there.
local function holds(key, expected)
  if expected == '*' then
    return true
  end
  return (redis.call('GET', key) or '') == expected
end
if not holds(KEYS[1], ARGV[1]) or not holds(KEYS[2], ARGV[2]) then
  return 0
end
if tonumber(ARGV[6]) >= 0 and redis.call('PTTL', KEYS[2]) > tonumber(ARGV[6]) then
  return 0
end
redis.call('DEL', KEYS[1], KEYS[2])
if ARGV[3] ~= '' then
  redis.call('SET', KEYS[1], ARGV[3])
end
if ARGV[4] ~= '' then
  redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5])
end
return 1
