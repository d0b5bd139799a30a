-- Acquires a lock of several keys: if all KEYS are absent, sets each to ARGV[1] for ARGV[2] milliseconds.
-- Returns 1, or 0 if a key exists; nothing is written then.
if redis.call('EXISTS', unpack(KEYS)) > 0 then
  return 0
end
for _, key in ipairs(KEYS) do
  redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
end
return 1
