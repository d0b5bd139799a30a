-- Extends a reader: if ARGV[1] is one of all KEYS, it counts for ARGV[2] milliseconds from now, never shorter than it
-- would. A key that holds it as a writer's becomes a reader's. Answers 1 extended; or, with nothing written, 0 some key
-- is another writer's or of another type, else -1 under some key it is not there.
local found, is_absent = {}, false
for place, key in ipairs(KEYS) do
  local it = look_at(key, ARGV[1])
  if it.kind == 'other' or it.kind == 'text' and not it.is_ours then
    return 0
  end
  is_absent = is_absent or not it.is_ours
  it.to = math.max(it.ends or 0, it.time + tonumber(ARGV[2]))
  found[place] = it
end
if is_absent then
  return -1
end
return add(found, ARGV[1])
