-- Acquires a lock of several keys: if all of KEYS are absent, each is set to ARGV[1] for ARGV[2]
-- milliseconds. Answers 1 set, 0 some key is there; then nothing is written.
if redis.call('EXISTS', unpack(KEYS)) > 0 then
  return 0
end
for _, key in ipairs(KEYS) do
  redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
end
return 1
