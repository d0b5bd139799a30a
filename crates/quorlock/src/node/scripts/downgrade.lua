-- Makes a writer a reader. Each of KEYS that holds ARGV[1] as a writer's value becomes a key with the reader ARGV[1],
-- which ends when the key would have expired. A key without an expiry stays a writer's until an extension gives it an
-- expiry, because no reader may stay for ever. Returns 1 if the value is a reader's now. Otherwise nothing is written:
-- returns 0 if a key has another writer or another type, or else -1 if the value is missing under a key.
local read, is_absent = {}, false
for _, key in ipairs(KEYS) do
  local state = read_key(key, ARGV[1])
  if state.kind == 'other' or state.kind == 'text' and not state.is_ours then
    return 0
  end
  is_absent = is_absent or not state.is_ours
  if state.kind == 'text' and state.ends then
    state.to = math.max(state.ends, state.time + 1)
    table.insert(read, state)
  end
end
if is_absent then
  return -1
end
return add(read, ARGV[1])
