"""Proposes limits for the traffic of a log: which clients are ordinary, and how many requests they need.

* `traffic` keeps the requests of each client.
* `clients` finds the routes, and the clients that are not people.
* `limits` calculates the limits that ordinary clients need, and what they deny.
* `proposal` chooses the rules.
* `text` writes them as a rules file, with their reasons.
"""
