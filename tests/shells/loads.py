"""A load that tests set, for `load: python:tests.shells.loads:load`."""

level = 0.0


def load():
    return level
