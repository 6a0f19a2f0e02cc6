"""The rules database in Redis: numbered versions of the rules. The newest version is in force."""

import json
import os
import random
import time
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import NamedTuple

from ratelimit_mw.config.load import Config, Document, gather, load_documents
from ratelimit_mw.config.tree import Problems
from ratelimit_mw.errors import ConfigurationError, PermanentFault, Problem, StoreUnavailable, VersionConflict
from ratelimit_mw.reload.source import LONGEST, RulesSnapshot, Source
from ratelimit_mw.stores import kind_of, open_records
from ratelimit_mw.stores.base import Records

_chance = random.Random()  # separate, so that the app's seeded random numbers are not disturbed

KEPT = 100
"""The number of versions that are kept. Older ones are removed when new ones are pushed."""

_TRIES = 1_000
"""How many times a push is tried while other pushes come first."""


class Version(NamedTuple):
    """One version: its number, its author, the time of its push (`at`, in epoch seconds), a comment and its files."""

    number: int
    author: str
    at: float
    comment: str
    files: tuple[str, ...]


class RulesDatabase(Source):
    """Rules in Redis, or in another storage that processes share.

    Every method may raise StoreUnavailable.

    Args:
        url: A storage URL. A name after `#` selects one of several databases: `redis://localhost/0#shop`.

    Raises:
        ValueError: The URL is malformed.
    """

    longest = LONGEST

    def __init__(self, url: str) -> None:
        if not kind_of(url).server:
            raise ValueError(f"rules can't be in {url.partition(':')[0]}://; use redis://")
        address, _, name = url.partition("#")
        self._records: Records = open_records(address)
        self._key = f"ratelimit_mw:rules:{{{name}}}" if name else "ratelimit_mw:rules"
        self.name = f"{self._records.name}#{name}" if name else self._records.name
        self._snapshot: RulesSnapshot | None = None
        self._about: str | None = None

    def fetch(self) -> RulesSnapshot:
        """See `Source`. The snapshot is the newest version."""
        try:
            known = self._snapshot.version if self._snapshot is not None else "0"
            number, texts = self._records.read(self._key, [f"about:{known}"])
            # The number alone is not enough: a database that was deleted and filled again has the same numbers.
            if self._snapshot is None or known != str(number) or texts.get(f"about:{known}") != self._about:
                # It is read before the rules, so that a change between both calls is noticed at the next fetch.
                self._about = self._records.read(self._key, [f"about:{number}"])[1].get(f"about:{number}")
                self._snapshot = (
                    RulesSnapshot(str(number), self.pull(number or None)) if number else RulesSnapshot("0", ())
                )
        except StoreUnavailable as error:
            hint = error.remedy if isinstance(error, PermanentFault) else "start its server, or correct its URL"
            raise ConfigurationError(
                [Problem(f"the rules database {self.name} is unavailable: {error}", hint=hint)]
            ) from error
        except LookupError as error:
            raise ConfigurationError([Problem(f"the rules database is incomplete: {error}")]) from error
        return self._snapshot

    def close(self) -> None:
        """Close the connection."""
        self._records.close()

    def push(
        self,
        config: Config | Sequence[Document],
        *,
        author: str = "",
        comment: str = "",
        base: int | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> int:
        """Push rules as the newest version.

        Args:
            config: A file, a folder, a mapping or documents.
            author: Who pushes them.
            comment: A note for people.
            base: The number of the version that was edited. None skips the check that it is still the newest.
            environ: The environment that `${NAME}` is read from, to check the rules.

        Returns:
            The number of the new version.

        Raises:
            ConfigurationError: The rules cannot be loaded. Nothing is pushed.
            VersionConflict: `base` is not the newest version any more.
        """
        documents = _documents(config)
        if load_documents(documents, environ=environ).source is not None:
            problem = Problem("these rules refer to another source", hint="push the rules of that source")
            raise ConfigurationError([problem])
        return self._append(documents, author, comment, base)

    def pull(self, number: int | None = None) -> tuple[Document, ...]:
        """Return the documents of a version, or of the newest one. Raises LookupError if the version does not exist."""
        number = number or self._records.version(self._key)
        if not number:
            raise LookupError(f"{self.name} has no rules yet")
        _, texts = self._records.read(self._key, [f"rules:{number}"])
        if not texts:
            raise LookupError(f"{self.name} has no version {number} of the rules")
        try:
            files: dict[str, str] = json.loads(texts[f"rules:{number}"])
            return tuple(Document(name, text.encode()) for name, text in files.items())
        except (ValueError, AttributeError, RecursionError):
            raise LookupError(f"version {number} of the rules in {self.name} can't be read") from None

    def list(self, most: int = 20) -> "tuple[Version, ...]":
        """Return the newest versions, at most `most`. The newest is the first."""
        newest = self._records.version(self._key)
        numbers = range(newest, max(newest - min(most, KEPT), 0), -1)
        _, texts = self._records.read(self._key, [f"about:{number}" for number in numbers])
        return tuple(_version(number, texts[name]) for number in numbers if (name := f"about:{number}") in texts)

    def diff(self, old: int, new: int | None = None) -> str:
        """Return the unified diff of two versions. If `new` is None, it is the newest version. "" if they are equal."""
        from difflib import unified_diff

        before, after = (_texts(self.pull(number)) for number in (old, new))
        return "".join(
            line if line.endswith("\n") else f"{line}\n"
            for name in sorted(before | after)
            for line in unified_diff(
                before.get(name, "").splitlines(keepends=True),
                after.get(name, "").splitlines(keepends=True),
                f"{name} (version {old})",
                f"{name} (version {new or 'newest'})",
            )
        )

    def rollback(
        self, number: int, *, author: str = "", comment: str = "", environ: Mapping[str, str] = os.environ
    ) -> int:
        """Push an earlier version again, and return its new number. Raises the same exceptions as `push`."""
        return self.push(self.pull(number), author=author, comment=comment or f"as version {number}", environ=environ)

    def _append(self, documents: Sequence[Document], author: str, comment: str, base: int | None) -> int:
        files = json.dumps(_texts(documents), ensure_ascii=False)
        about = {"author": author, "comment": comment, "files": [name for name, _ in documents]}
        for _ in range(_TRIES):
            before = self._records.version(self._key)
            if base is not None and before != base:
                raise VersionConflict(before)
            number = before + 1
            about_now = json.dumps({**about, "at": time.time()}, ensure_ascii=False)
            put = {f"rules:{number}": files, f"about:{number}": about_now}
            drop = (f"rules:{number - KEPT}", f"about:{number - KEPT}") if number > KEPT else ()
            try:
                return self._records.write(self._key, put, drop, expected=before)
            except VersionConflict:  # another push was first: take the next number
                time.sleep(_chance.uniform(0, 0.01))
        raise StoreUnavailable("other pushes keep changing the rules database; try again")


def _documents(config: Config | Sequence[Document]) -> list[Document]:
    """Return the documents to push. Their names are file names without a folder."""
    if isinstance(config, Sequence) and not isinstance(config, str):
        return list(config)
    problems = Problems()
    found = gather(config, problems)
    if problems:
        raise ConfigurationError(problems.in_order())
    return [
        Document(PurePath(name).name, content)
        if isinstance(content, bytes)
        else Document("ratelimits.yaml", json.dumps(content, ensure_ascii=False, indent=2).encode())
        for name, content in found
    ]


def _texts(documents: Sequence[Document]) -> dict[str, str]:
    return {name: content.decode("utf-8-sig") for name, content in documents if isinstance(content, bytes)}


def _version(number: int, text: str) -> Version:
    try:
        about = json.loads(text)
        return Version(number, about["author"], float(about["at"]), about["comment"], tuple(about["files"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return Version(number, "", 0.0, "(can't be read)", ())
