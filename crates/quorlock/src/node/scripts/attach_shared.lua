-- Replaces a reader by another. If ARGV[1] is a reader of all of KEYS, makes ARGV[2] a reader in its place, which ends
-- ARGV[3] milliseconds from now, but not earlier than ARGV[1] would have. A key that holds ARGV[1] as a writer's
-- becomes a reader's. Returns 1 if the reader was replaced. Otherwise nothing is written: returns 0 if a key has
-- another writer or another type, or else -1 if ARGV[1] is missing under a key.
local states, is_absent = {}, false
for place, key in ipairs(KEYS) do
  local state = read_key(key, ARGV[1])
  if state.kind == 'other' or state.kind == 'text' and not state.is_ours then
    return 0
  end
  is_absent = is_absent or not state.is_ours
  state.to = math.max(state.ends or 0, state.time + tonumber(ARGV[3]))
  states[place] = state
end
if is_absent then
  return -1
end
for _, state in ipairs(states) do
  if state.kind == 'readers' then
    -- Each attempt has a value of its own, so the client has asked this server twice, as two nodes.
    if redis.call('ZSCORE', state.key, ARGV[2]) then
      return redis.error_reply('SAMESERVER the value is already one of the readers')
    end
    -- A missing right must show before the first change: no reader has this value.
    redis.call('ZREM', state.key, ARGV[1] .. '?')
  end
end
local added = add(states, ARGV[2])
if added ~= 1 then
  return added
end
for _, state in ipairs(states) do
  if state.kind == 'readers' then
    redis.call('ZREM', state.key, ARGV[1])
  end
end
return 1
