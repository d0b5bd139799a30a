-- Releases a reader: removes ARGV[1] from the readers of KEYS. Each key then expires with its last reader. Deletes a
-- key that holds ARGV[1] as a writer's value. Returns 1 if ARGV[1] was at all keys. Otherwise 0 if a key is another
-- writer's or of another type, otherwise -1 if ARGV[1] was missing at a key.
local ours, is_absent, is_other = {}, false, false
for _, key in ipairs(KEYS) do
  local it = look_at(key, ARGV[1])
  if it.is_ours then
    table.insert(ours, it)
  elseif it.kind == 'none' or it.kind == 'readers' then
    is_absent = true
  else
    is_other = true
  end
end
-- A missing right must show before the first change. So each command is first called such that it changes nothing,
-- unless there is only one call. No reader's value is ARGV[1] with a '?' behind it, and ended readers do not count.
for _, it in ipairs(ours) do
  if it.kind == 'readers' and (#ours > 1 or it.next) then
    redis.call('ZREM', it.key, ARGV[1] .. '?')
    redis.call('ZREMRANGEBYSCORE', it.key, '-inf', string.format('(%.0f', it.time))
    redis.call('PEXPIREAT', it.key, math.max(it.last, it.time + 1))
  end
end
for _, it in ipairs(texts_first(ours)) do
  if it.kind == 'text' then
    redis.call('DEL', it.key)
  else
    redis.call('ZREM', it.key, ARGV[1])
    if it.next and it.next < it.last then
      redis.call('PEXPIREAT', it.key, math.max(it.next, it.time + 1))
    end
  end
end
return is_other and 0 or is_absent and -1 or 1
