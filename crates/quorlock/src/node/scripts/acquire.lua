-- Acquires a lock of several keys. If all of KEYS are absent, sets each to ARGV[1] with a ttl of ARGV[2] milliseconds.
-- Returns 1 if the keys were set. Returns 0 if a key exists; then nothing is written.
if redis.call('EXISTS', unpack(KEYS)) > 0 then
  return 0
end
for _, key in ipairs(KEYS) do
  redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
end
return 1
