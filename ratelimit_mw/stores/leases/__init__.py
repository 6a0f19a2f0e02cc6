"""Decisions made in the process: the shares it holds of a counter, and how they are settled with the store."""
