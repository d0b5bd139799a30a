-- Gives a vote again that was lost: if KEYS[1] is absent and the counter KEYS[2] is not above ARGV[3],
-- the lock is set to ARGV[1] for ARGV[2] milliseconds and the counter to ARGV[3] for ARGV[4].
-- Answers 1 set, 0 the lock is there; or, with nothing written, {counter} if that is above.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
local counter = redis.call('GET', KEYS[2]) or '0'
if not string.find(counter, '^%d+$') then
  return redis.error_reply('ERR the fence counter is no number')
end
if tonumber(counter) > tonumber(ARGV[3]) then
  return {tonumber(counter)}
end
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
