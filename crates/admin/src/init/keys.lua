-- Changes a node's marker and adoption if they are still as the client has read them. KEYS are the marker and the
-- adoption. ARGV[1] and ARGV[2] are their expected texts ('' absent, '*' any text), ARGV[3] and ARGV[4] the new texts
-- ('' absent). ARGV[5] is the ttl of the new adoption in milliseconds. ARGV[6] is the largest ttl that the present
-- adoption may have left (negative: any). Returns 1 if the keys were changed, 0 if a text or the ttl differs.
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
