"""Rules: from a configuration to what each request has to be asked."""
