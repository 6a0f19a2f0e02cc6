"""Proposes limits for the traffic of a log: which clients are ordinary, and how many requests they need.

`traffic` keeps the requests of each client, `routes` folds paths to templates, `behaviour` finds clients that are not
people, `peaks` measures busiest minutes, `proposal` chooses the rules, and `text` writes them with their reasons.
"""
