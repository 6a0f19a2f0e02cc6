"""From a configuration to rules, or to everything that is wrong with it."""

import logging
import os
from collections.abc import Mapping, Sequence

from ratelimit_mw.config.documents import Config, Document, gather
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.errors import ConfigurationError, Problem
from ratelimit_mw.rules.domains import Examined, Rules

__all__ = ["Examined", "examine", "load", "load_documents"]

logger = logging.getLogger("ratelimit_mw")


def load(config: Config, *, environ: Mapping[str, str] = os.environ) -> Rules:
    """The compiled rules of a YAML file, of a folder of files, or of a mapping of the same shape.

    Raises ConfigurationError with every problem found, in the order of the file. `${NAME}` is read from `environ`.
    """
    return _insist(examine(config, environ=environ, thorough=False))


def load_documents(
    documents: Sequence[Document],
    *,
    environ: Mapping[str, str] = os.environ,
    frame: Document | None = None,
    logged: set[str] | None = None,
) -> Rules:
    """As `load`, of documents that have been read already. See `compose`."""
    from ratelimit_mw.config.composition import compose

    return _insist(compose(documents, environ, frame=frame, logged=logged), logged)


def examine(config: Config, *, environ: Mapping[str, str] = os.environ, thorough: bool = True) -> Examined:
    """The rules of a configuration, with every problem and every warning, in the order of the file.

    `thorough` also compares the rules with each other, to find those that can have no effect.
    """
    # Imported late: what reads a file is needed at start only, and would make the import of a middleware slower.
    from ratelimit_mw.config.composition import compose

    problems = Problems()
    documents = gather(config, problems)
    if problems:
        return Examined(None, problems.in_order())
    return compose(documents, environ, thorough=thorough)


def _insist(examined: Examined, logged: set[str] | None = None) -> Rules:
    rules, problems, warnings = examined
    if rules is None:
        raise ConfigurationError(problems)
    _log(warnings, logged)
    return rules


def _log(warnings: Sequence[Problem], logged: set[str] | None) -> None:
    """Log warnings, but for those that were logged before."""
    for warning in warnings:
        if logged is None or warning.message not in logged:
            logger.warning("%s", warning)
            if logged is not None:
                logged.add(warning.message)
