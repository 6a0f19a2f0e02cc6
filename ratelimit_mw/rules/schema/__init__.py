"""The schema of a rules file: pydantic models that check its tree, and the JSON Schema that editors read."""
