"""Requests that are put off instead of refused: a queue in Redis, and what both shells do with it."""
