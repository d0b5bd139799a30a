-- Replaces the value of a lock by another. If all of KEYS hold ARGV[1], sets each to ARGV[2]. Each key expires ARGV[3]
-- milliseconds from now, but not earlier than before; with ARGV[3] 0, the expiry stays. Returns 1 if the value was
-- replaced. Otherwise nothing is written: returns 0 if a key has another value or type, or else -1 if a key is absent.
local is_absent = false
for _, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
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
local ttl = tonumber(ARGV[3])
for _, key in ipairs(KEYS) do
  local left = math.max(redis.call('PTTL', key), ttl)
  -- This write comes first because a server whose memory is full refuses a SET that is the first write of a script.
  if left > 0 then
    redis.call('PEXPIRE', key, left)
  end
  redis.call('SET', key, ARGV[2], 'KEEPTTL')
end
return 1
