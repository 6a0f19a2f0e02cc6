"""Rules that are changed while the app runs: their source, who watches it, what operators set."""
