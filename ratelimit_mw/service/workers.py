"""Several processes of the service: `--workers`. One more process starts them, watches them and passes on signals.

A proxy holds few connections, which the kernel would spread unevenly over the processes of one port. Each process
therefore has ports of its own, and the proxy has a list of them.

Each process is connected to its supervisor. The process tells where it is ready. The supervisor sends a byte for a
reload, and ends the connection to end the process, so that a process also ends if its supervisor was killed.

This module is internal: its names may change in any release.
"""

import json
import logging
import os
import select
import signal
import socket
import time
from collections.abc import Mapping
from contextlib import suppress

from ratelimit_mw.errors import ConfigurationError, Problem, collecting
from ratelimit_mw.service import ports, runner
from ratelimit_mw.service.servable import holds
from ratelimit_mw.service.settings import Settings, of_workers
from ratelimit_mw.stores import kind_of

logger = logging.getLogger("ratelimit_mw.service")

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_DELAY = 1.0
"""The seconds after which a process that has ended is started again."""


def run(settings: Settings) -> None:
    """See `ratelimit_mw.service.serve`."""
    log = logging.getLogger("ratelimit_mw")
    log.addFilter(_holds_for_a_service)
    try:
        if settings.workers == 1:
            runner.run(settings)
            return
        parts = of_workers(settings)
        _require_startable(parts)
        worker = _Supervisor(parts).run()
        if worker is not None:
            runner.run(worker.settings, worker.link)
    finally:
        log.removeFilter(_holds_for_a_service)


def _holds_for_a_service(record: logging.LogRecord) -> bool:
    return holds(record.getMessage())


def _require_startable(parts: tuple[Settings, ...]) -> None:
    """Raise ConfigurationError with every reason against a start of all processes. No port stays bound."""
    problems: list[Problem] = []
    bound: list[tuple[Settings, Mapping[str, socket.socket]]] = []
    first, *others = parts
    with collecting(problems):
        service, sockets = runner.prepare(first)
        bound.append((first, sockets))
        url = service.limiter.engine.storage.url
        if not kind_of(url).records:
            hint = "use lmdb:// for the processes of one machine, or redis://HOST:6379/0"
            problems.append(Problem(f"--workers: {len(parts)} processes cannot share the counters of {url}", hint=hint))
        service.limiter.close()
    for part in others:
        with collecting(problems):
            bound.append((part, ports.bind(part.addresses)))
    for part, sockets in bound:
        ports.close(sockets, part.addresses)
    if problems:
        raise ConfigurationError(problems)


class _Worker:
    """One process: in its supervisor what is known of it, and in the process itself what it is to serve.

    Args:
        number: Its number in the log, from 1.
        settings: Its settings.
    """

    def __init__(self, number: int, settings: Settings) -> None:
        self.number = number
        self.settings = settings
        self.pid = 0
        """The process. 0 if it does not run."""
        self.link: socket.socket | None = None
        """The connection between the supervisor and the process, at the end of the one that looks."""
        self.served: Mapping[str, str] = {}
        """Where it is ready, by the names of its ports. Empty if it never was."""
        self.due = 0.0
        """When it is to be started, by the monotonic clock."""


class _Supervisor:
    """Starts processes again when they end, until it is told to stop.

    Args:
        parts: The settings of each process.
    """

    def __init__(self, parts: tuple[Settings, ...]) -> None:
        self._workers = [_Worker(number, part) for number, part in enumerate(parts, 1)]
        self._stopping = False
        self._ready = False
        self._exit_code = 0
        # Signals arrive as bytes, so that none is lost between two looks.
        self._signals, self._signalled = socket.socketpair()
        self._signalled.setblocking(False)

    def run(self) -> _Worker | None:
        """Return in each process what it serves, and in the supervisor None after all of them have ended.

        Raises:
            SystemExit: A process ended before all were ready for the first time, so all of them have ended.
        """
        for number in _SIGNALS:
            signal.signal(number, _pass_on)
        signal.set_wakeup_fd(self._signalled.fileno())
        while not self._stopping or any(worker.pid for worker in self._workers):
            for worker in self._workers:
                if not (worker.pid or self._stopping) and worker.due <= time.monotonic() and self._start(worker):
                    return worker
            self._wait()
        logger.info("all workers have stopped")
        if self._exit_code:
            raise SystemExit(self._exit_code)
        return None

    def _start(self, worker: _Worker) -> bool:
        """Start a process. Return True in that process."""
        own, its = socket.socketpair()
        worker.pid = os.fork()
        if worker.pid:
            its.close()
            worker.link = own
            return False
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGINT, signal.SIGHUP):  # a terminal sends them to the supervisor, too
            signal.signal(number, signal.SIG_IGN)
        for each in (own, self._signals, self._signalled, *(other.link for other in self._workers)):
            if each is not None:
                each.close()
        worker.link = its
        return True

    def _wait(self) -> None:
        """Wait for a signal, for what a process tells, or until a process is to be started."""
        links = {worker.link: worker for worker in self._workers if worker.link is not None}
        due = [worker.due for worker in self._workers if not (worker.pid or self._stopping)]
        seconds = max(0.0, min(due) - time.monotonic()) if due else None
        for each in select.select([self._signals, *links], [], [], seconds)[0]:
            if each is not self._signals:
                self._hear(links[each], each)
                continue
            for number in each.recv(4096):
                self._on_signal(number)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGCHLD:
            for worker in self._workers:
                if worker.pid and (found := os.waitpid(worker.pid, os.WNOHANG))[0]:
                    self._on_end(worker, os.waitstatus_to_exitcode(found[1]))
        elif number == signal.SIGHUP:
            for worker in self._workers:
                if worker.link is not None:
                    with suppress(OSError):  # the process has just ended
                        worker.link.sendall(b"\n")
        elif self._stopping:
            for worker in self._workers:
                if worker.pid:
                    os.kill(worker.pid, signal.SIGKILL)
            self._exit_code = 128 + number
        else:
            self._stop()

    def _stop(self) -> None:
        self._stopping = True
        for worker in self._workers:
            if worker.link is not None:
                with suppress(OSError):
                    worker.link.shutdown(socket.SHUT_WR)

    def _on_end(self, worker: _Worker, code: int) -> None:
        worker.pid, worker.due = 0, time.monotonic() + _DELAY
        if self._stopping:
            return
        if not self._ready:
            logger.error("worker %d did not get ready (exit code %d), so all of them stop", worker.number, code)
            self._exit_code = code if code > 0 else 1
            self._stop()
        else:
            logger.error("worker %d has ended (exit code %d). It starts again in %g s", worker.number, code, _DELAY)

    def _hear(self, worker: _Worker, link: socket.socket) -> None:
        """Read where a process is ready, or that it has ended."""
        told = link.recv(4096)
        if not told:
            link.close()
            worker.link = None
            return
        worker.served = json.loads(told)
        if not self._ready and all(each.served for each in self._workers):
            self._ready = True
            ports_of = {name: [each.served[name] for each in self._workers] for name in worker.served}
            places = "; ".join(f"{name} at {' '.join(ports_of[name])}" for name in sorted(ports_of))
            logger.info("%d workers, for the list of the proxy: %s", len(self._workers), places)


def _pass_on(_number: int, _frame: object) -> None:
    """Do nothing. The signal arrives as a byte."""
