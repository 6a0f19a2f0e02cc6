"""What carries out deferred requests. It needs the extra `worker`, for httpx."""
