-- The twin of concurrency.py.
define('bucketed_window')

algorithms.concurrency = function(...)
  local allowed, remaining, reset_after, retry_after, write = algorithms.bucketed_window(...)
  if retry_after > 0 then retry_after = 1000000 end
  return allowed, remaining, reset_after, retry_after, write
end

refunds.concurrency = refunds.bucketed_window
