"""`ratelimit-mw schema`."""

from ratelimit_mw.cli.output import say_json
from ratelimit_mw.config.schema import json_schema


def schema() -> None:
    """Print the JSON Schema of a rules file, with which editors complete and check it.

    As in: ratelimit-mw schema > ratelimits.schema.json, and at the top of the rules file the comment
    # yaml-language-server: $schema=ratelimits.schema.json
    """
    say_json(json_schema())
