-- Releases a lock: if KEYS[1] holds ARGV[1], it is deleted.
-- Answers 1 deleted, -1 absent, 0 another value or another type.
local value = redis.pcall('GET', KEYS[1])
if value == ARGV[1] then
  redis.call('DEL', KEYS[1])
  return 1
end
if value == false then
  return -1
end
-- An error other than that of another type says nothing about the key: it is handed on.
if type(value) == 'table' and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
return 0
