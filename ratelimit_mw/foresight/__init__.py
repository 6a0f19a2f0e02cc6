"""Foresight: what limits would do to the requests of a log, before they are in force.

`replay` runs a log through the rules. `logs` reads the log. The command line shows the result.

This package is internal: its names may change in any release.
"""
