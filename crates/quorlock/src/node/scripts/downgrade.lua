-- Makes a reader of a writer. At each of KEYS that holds ARGV[1] as a writer's value, ARGV[1] becomes a reader until
-- the key would have expired. A key without expiry stays the writer's until an extension gives it an expiry, because no
-- reader may stay for ever. Returns 1, also if ARGV[1] was a reader already. If nothing is written: 0 if a key is
-- another writer's or of another type, otherwise -1 if ARGV[1] is missing at a key.
local found, is_absent = {}, false
for _, key in ipairs(KEYS) do
  local it = look_at(key, ARGV[1])
  if it.kind == 'other' or it.kind == 'text' and not it.is_ours then
    return 0
  end
  is_absent = is_absent or not it.is_ours
  if it.kind == 'text' and it.ends then
    it.to = math.max(it.ends, it.time + 1)
    table.insert(found, it)
  end
end
if is_absent then
  return -1
end
return add(found, ARGV[1])
