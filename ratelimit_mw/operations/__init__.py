"""What operators look at while an app runs: the data of the live page, and how processes share it.

This package is internal: its names may change in any release.
"""
