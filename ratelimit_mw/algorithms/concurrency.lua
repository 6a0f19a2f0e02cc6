-- The counterpart of concurrency.py. A retry_after of one second is a guess.
algorithms[CONCURRENCY] = function(...)
  local allowed, remaining, reset_after, retry_after, write = algorithms[BUCKETED_WINDOW](...)
  if retry_after > 0 then retry_after = 1000000 end
  return allowed, remaining, reset_after, retry_after, write
end

refunds[CONCURRENCY] = refunds[BUCKETED_WINDOW]
