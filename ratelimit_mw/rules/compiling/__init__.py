"""From a checked file to its compiled rules."""
