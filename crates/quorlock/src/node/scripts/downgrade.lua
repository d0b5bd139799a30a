-- Makes a reader of a writer: each of KEYS that holds ARGV[1] as a writer's is made to hold it as a reader's, that
-- counts until the key would have expired. One that does not expire stays as it is: it is the writer's until an
-- extension gives it an end, for nobody may be a reader for ever. Answers 1 done, or it was a reader already; or, with
-- nothing written, 0 some key is another writer's or of another type, else -1 under some key it is not there.
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
