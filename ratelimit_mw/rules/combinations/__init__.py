"""What does not go with what within a rule, and why."""
