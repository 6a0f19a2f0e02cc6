"""How many requests of a client fall into one window: arithmetic over all arrivals at once. This module needs numpy."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_LARGEST = 2**62


class TooLong(ValueError):
    """The window and the times are too long, or the counts too high, for the arithmetic of 64 bits."""


class Sequences(NamedTuple):
    """Arrivals by client, and in order of time for each client.

    Attributes:
        times: The time of each arrival, in microseconds since the epoch.
        clients: The number of the client of each arrival.
        starts: The index of the first arrival of each client that has any.
        order: Where each arrival was before it was sorted.
    """

    times: Ints
    clients: Ints
    starts: Ints
    order: Ints


def in_sequence(times: Ints, clients: Ints) -> Sequences:
    """Sort arrivals by client. The arrivals of one client must be in order of time already, and stay in their order."""
    order = np.argsort(clients, kind="stable")
    by_client = clients[order]
    return Sequences(times[order], by_client, changes(by_client), order)


def changes(*values: Ints) -> Ints:
    """Return the indices at which one of the arrays has another value than before. The first index is one of them."""
    new = np.zeros(len(values[0]), np.bool_)
    new[:1] = True
    for each in values:
        new[1:] |= each[1:] != each[:-1]
    return np.flatnonzero(new)


def spread(starts: Ints, size: int) -> Ints:
    """Return the start of the group of each index, for groups that begin at `starts`."""
    return np.repeat(starts, np.diff(starts, append=size))


def first_within(arrivals: Sequences, back: Ints) -> Ints:
    """Return, for each arrival, the index of its client's first arrival that is at most `back` microseconds earlier.

    Raises:
        TooLong: The times cannot be put in one line.
    """
    if not len(arrivals.times):
        return arrivals.times
    span = int(arrivals.times.max() - arrivals.times.min())
    back = np.minimum(back, span)
    apart = int(back.max()) + 1
    # One line of time for all clients: each client begins so long after the one before that no window has both.
    steps = np.minimum(np.diff(arrivals.times, prepend=arrivals.times[0]), apart)
    steps[arrivals.starts] = apart
    if float(steps.sum(dtype=np.float64)) > _LARGEST:
        raise TooLong
    line = np.cumsum(steps)
    return np.searchsorted(line, line - back, side="left")


def busiest_windows(times: Ints, clients: Ints, window: int, *, aligned: bool = False) -> Ints:
    """Return the most requests of each client in any window.

    Args:
        times: The times of the requests in microseconds. Those of one client must be in order.
        clients: The numbers of their clients, from 0 on.
        window: The length of a window in microseconds.
        aligned: Windows begin at the multiples of their length. Otherwise a window is any span of this length.

    Returns:
        One number for each client: the number at index n is that of client n. 0 for a client without requests.

    Raises:
        TooLong: The window is too long for the arithmetic.
    """
    arrivals = in_sequence(times, clients)
    found = np.zeros(int(clients.max()) + 1 if len(clients) else 0, np.int64)
    if len(times):
        counts = _counts(arrivals, window, aligned=aligned)
        found[arrivals.clients[arrivals.starts]] = np.maximum.reduceat(counts, arrivals.starts)
    return found


def _counts(arrivals: Sequences, window: int, *, aligned: bool) -> Ints:
    """Return the number of requests in the window that ends with each arrival."""
    places = np.arange(len(arrivals.times))
    if aligned:
        return places - spread(changes(arrivals.clients, arrivals.times // window), len(places)) + 1
    return places - first_within(arrivals, np.full(len(places), window - 1)) + 1


def distribution(peaks: Ints, most: int = 400) -> tuple[tuple[int, int], ...]:
    """Return how many clients have each peak, as (peak, clients), ascending.

    If there are more than `most` different peaks, neighbours are joined under the greatest of them.
    """
    values, counts = np.unique(peaks, return_counts=True)
    if len(values) > most:
        edges = np.unique(np.geomspace(values[0], values[-1], most).astype(np.int64))
        edges[-1] = values[-1]
        bins = np.searchsorted(edges, values, side="left")
        starts = changes(bins)
        ends = np.append(starts[1:], len(values)) - 1
        values, counts = values[ends], np.add.reduceat(counts, starts)
    return tuple(zip(values.tolist(), counts.tolist(), strict=True))
