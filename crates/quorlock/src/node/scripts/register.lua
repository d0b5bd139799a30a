-- Which of the server's databases has the locks and the markers? That is written to KEYS[1] in the first one,
-- from whichever database it is asked: ARGV[1] if there is nothing yet (ARGV[2] 'new') or in any case
-- ('instead'); otherwise ('look') nothing is written. Answers what is there then. A server whose memory is full has
-- nothing there if it cannot write 'new': that is no error, because its locks must live on.
if ARGV[1] ~= '0' then
  redis.call('SELECT', 0)
end
local text = redis.call('GET', KEYS[1])
if ARGV[2] == 'instead' or (ARGV[2] == 'new' and not text) then
  local written = redis.pcall('SET', KEYS[1], ARGV[1])
  if not written.err then
    text = ARGV[1]
  elseif ARGV[2] == 'instead' or not string.find(written.err, 'OOM', 1, true) then
    return written
  end
end
return text
