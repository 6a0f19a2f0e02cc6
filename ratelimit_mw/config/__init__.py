"""From a configuration to rules: YAML text → a tree that knows its places → the values of words → a rule set."""
