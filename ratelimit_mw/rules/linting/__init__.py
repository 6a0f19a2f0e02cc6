"""Warnings of `check`: rules that can have no effect, found by comparing them."""
