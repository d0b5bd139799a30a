-- Extends a reader: if ARGV[1] is at all of KEYS, it counts for at least ARGV[2] milliseconds from now. A key that
-- holds ARGV[1] as a writer's value becomes a reader's. Returns 1. If nothing is written: 0 if a key is another
-- writer's or of another type, otherwise -1 if ARGV[1] is missing at a key.
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
