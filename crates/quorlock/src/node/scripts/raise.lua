-- Raises a lock's fence: if KEYS[1] holds ARGV[1] and the counter KEYS[2] is below ARGV[2], it is set
-- to that, to live for ARGV[3] milliseconds. Answers {counter}, or -1 absent, 0 another value or type.
local value = redis.pcall('GET', KEYS[1])
if value == ARGV[1] then
  local counter = redis.call('GET', KEYS[2]) or '0'
  if not string.find(counter, '^%d+$') then
    return redis.error_reply('ERR the fence counter is no number')
  end
  if tonumber(counter) >= tonumber(ARGV[2]) then
    return {tonumber(counter)}
  end
  redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
  return {tonumber(ARGV[2])}
end
if value == false then
  return -1
end
-- An error other than that of another type says nothing about the key: it is handed on.
if type(value) == 'table' and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
return 0
