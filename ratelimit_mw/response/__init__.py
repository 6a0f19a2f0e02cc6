"""What clients are told: headers, and the whole of a denial. Pure."""
