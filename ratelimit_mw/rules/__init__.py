"""Rules: from a configuration to what each request has to be asked.

This package is internal: its names may change in any release.
"""
