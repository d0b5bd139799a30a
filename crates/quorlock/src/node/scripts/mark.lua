-- Writes the marker ARGV[1] to KEYS[1]. With ARGV[2] 'instead', KEYS[1] must hold ARGV[3]; with 'new', it must be
-- absent. If there is a KEYS[2], it must hold the adoption ARGV[4], which must be at least ARGV[5] milliseconds old;
-- the script then deletes KEYS[2]. Returns 1 if the marker was written, otherwise 0.
local LIFE = 172800000
local text = redis.call('GET', KEYS[1])
if text ~= (ARGV[2] == 'instead' and ARGV[3]) then
  return 0
end
if KEYS[2] then
  local left = redis.call('PTTL', KEYS[2])
  if redis.call('GET', KEYS[2]) ~= ARGV[4] or left < 0 or LIFE - left < tonumber(ARGV[5]) then
    return 0
  end
end
redis.call('SET', KEYS[1], ARGV[1])
if KEYS[2] then
  redis.call('DEL', KEYS[2])
end
return 1
