"""Counters and records in Redis: one server, its Sentinels, a cluster; nothing else talks to Redis."""
