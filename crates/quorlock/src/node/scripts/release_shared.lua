-- Releases a reader: removes ARGV[1] from the readers of KEYS, and sets each key's expiry to the end of its last
-- reader. A key that holds ARGV[1] as a writer's value is deleted. Returns 1 if the value was under all keys;
-- otherwise 0 if a key has another writer or another type, or else -1 because the value is missing under a key.
local ours, is_absent, is_other = {}, false, false
for _, key in ipairs(KEYS) do
  local state = read_key(key, ARGV[1])
  if state.is_ours then
    table.insert(ours, state)
  elseif state.kind == 'none' or state.kind == 'readers' then
    is_absent = true
  else
    is_other = true
  end
end
-- A missing right must show before the first change. So each command is first called in a form that changes nothing
-- that counts, unless the script makes only one change: no reader has our value with a '?' appended, and expired
-- readers do not count.
for _, state in ipairs(ours) do
  if state.kind == 'readers' and (#ours > 1 or state.next) then
    redis.call('ZREM', state.key, ARGV[1] .. '?')
    redis.call('ZREMRANGEBYSCORE', state.key, '-inf', string.format('(%.0f', state.time))
    redis.call('PEXPIREAT', state.key, math.max(state.last, state.time + 1))
  end
end
for _, state in ipairs(texts_first(ours)) do
  if state.kind == 'text' then
    redis.call('DEL', state.key)
  else
    redis.call('ZREM', state.key, ARGV[1])
    if state.next and state.next < state.last then
      redis.call('PEXPIREAT', state.key, math.max(state.next, state.time + 1))
    end
  end
end
return is_other and 0 or is_absent and -1 or 1
