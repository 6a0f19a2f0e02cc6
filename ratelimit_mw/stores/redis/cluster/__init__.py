"""Counters on a Redis Cluster: its slots, which node serves them, and requests that span several."""
