"""Compiles the rules of a configuration without a limiter."""

import os
from collections.abc import Mapping

from ratelimit_mw import ConfigurationError
from ratelimit_mw.config.load import Config, gather, load_documents
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.rules.domains import Rules


def load_rules(config: Config, *, environ: Mapping[str, str] = os.environ) -> Rules:
    """Return the compiled rules of a file, a folder or a mapping. Raises ConfigurationError with every problem."""
    problems = Problems()
    documents = gather(config, problems)
    if problems:
        raise ConfigurationError(problems.in_order())
    return load_documents(documents, environ=environ)
