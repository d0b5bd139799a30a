-- Releases a reader: ARGV[1] is taken from the readers of KEYS, and a key expires with the last of those that are
-- left. One that holds it as a writer's is deleted. Answers 1 it was there under all; else 0 some key is
-- another writer's or of another type, else -1 under some key it is not there.
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
-- What is not allowed must fail before anything is done: so each command is given first such that it changes
-- nothing, unless there is a single one to give. No reader's value is ours with a '?' behind it, and readers that have
-- ended count no more.
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
