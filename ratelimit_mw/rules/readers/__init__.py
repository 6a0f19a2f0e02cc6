"""Readers of values: from a node of the tree to what rules are made of, or to what is wrong with it."""
