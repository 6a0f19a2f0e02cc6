"""How loaded this process is, and what follows: how far elastic limits open, and what is shed."""
