"""Loads of tests: one that they set, for `load: python:tests.shells.loads:load`, and that of a machine at rest."""

level = 0.0


def load():
    return level


class Idle:
    """A processor that does nothing, so that the machine's own load is in no one's way."""

    def share(self, now):
        return 0.0
