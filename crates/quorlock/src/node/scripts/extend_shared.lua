-- Extends a reader. If ARGV[1] is a reader of all KEYS, it ends ARGV[2] milliseconds from now, but not earlier than
-- before. A key that holds the value as a writer's becomes a reader's. Returns 1 if the reader was extended. Otherwise
-- nothing is written: returns 0 if a key has another writer or another type, or else -1 if the value is missing under a
-- key.
local read, is_absent = {}, false
for place, key in ipairs(KEYS) do
  local state = read_key(key, ARGV[1])
  if state.kind == 'other' or state.kind == 'text' and not state.is_ours then
    return 0
  end
  is_absent = is_absent or not state.is_ours
  state.to = math.max(state.ends or 0, state.time + tonumber(ARGV[2]))
  read[place] = state
end
if is_absent then
  return -1
end
return add(read, ARGV[1])
