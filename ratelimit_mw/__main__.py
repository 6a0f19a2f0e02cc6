"""`python -m ratelimit_mw` is `ratelimit-mw`."""

from ratelimit_mw.cli import main

if __name__ == "__main__":
    main()
