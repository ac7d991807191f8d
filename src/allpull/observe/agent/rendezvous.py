"""The rendezvous of a job whose hosts are known: rounds, coordinated through a store on one interface of host 0.

Round 0 is the first start of the ranks. When ranks fail and may be restarted, their host starts the next round in the
store; the other hosts see it, end their own ranks and join. Each round restarts every host, so all agents have the same
number of restarts left, and ``TORCHELASTIC_RESTART_COUNT`` is the same everywhere (torch itself counts the failures of
each host separately). A round is over when the ranks of every host have succeeded, and has failed when a host has no
restart left.
"""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, Callable, List, Optional, Tuple, TypeVar

from torch._C._distributed_c10d import HashStore, PrefixStore, Store, TCPStore
from torch.distributed import DistError, DistStoreError
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from allpull.observe.agent.checkpoint_transfer import receive, send
from allpull.observe.clock_pings import publish_server, server_address
from allpull.observe.store import PATIENCE, call, listen, serve_on

BACKEND = "allpull"
STORE_FILE = "ALLPULL_STORE_FILE"  # as in ``backend``, which Python 3.9 cannot import
RESTART, OVER, FAILED, GONE = "again", "over", "failed", "gone"
"""How a round ends; gone: host 0 disappeared without reporting an outcome."""

LAST_WORDS_S = 5.0  # from a failure elsewhere to ending our ranks: the same cause may end them, and they record it
REPLY_S = 30.0  # the longest that host 0 takes to answer a request
SIGNALS_EVERY_S = 0.2  # Python handles signals between waits; Linux may give one to a thread, which does not end ours
ONE_WAIT = timedelta(hours=1)  # torch counts a wait in 32-bit milliseconds
GRACE_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"  # seconds that torch's agent gives ranks to end

Answer = TypeVar("Answer")


class JobHost:
    """This host's index among the hosts of the job, its name in the records, and where host 0 listens."""

    def __init__(self, *, index: int, hosts: int, master: str, port: int, name: str) -> None:
        self.index = index
        self.hosts = hosts
        self.master = master
        self.port = port
        self.name = name


class HostsDisconnected(Exception):
    """The hosts of the job lost contact: one has disappeared, or cannot be reached."""


class FixedHosts(RendezvousHandler):
    """The rendezvous of this host: host 0 listens on one interface, the others connect to it.

    torch's own handlers listen on every interface, where anyone who can reach the port may join or stop the job.
    ``listener`` is host 0's; ``directory`` is where this host writes, which may differ from host to host. With
    ``files``, a private folder, the ranks of a single host meet in a file there, and nothing listens: torch's store
    takes orders from anybody who can connect. The agent of a single host needs nobody, and asks its own memory.
    """

    def __init__(
        self, place: JobHost, listener: Optional[socket.socket], nonce: str, directory: str, *, files: str = ""
    ) -> None:
        self._place = place
        self._listener = listener
        self._nonce = nonce
        self._directory = directory
        self._files = files
        self._round = -1
        self._finished_round = -1
        self._store: Optional[TCPStore] = None  # for the ranks of this round; it closes with the last reference
        self._rounds: Optional[Store] = None  # shared state of the agents, in the store of round 0
        self._outcome_listener: Optional[OutcomeListener] = None
        self._outcome_store: Optional[Store] = None
        self._received: List[str] = []

    def get_backend(self) -> str:
        """The name of this rendezvous backend."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Ranks use this store too, so no second port is opened."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """A store for the ranks of the next round, and the index of this host.

        Raises:
            HostsDisconnected: not all hosts joined, or host 0 cannot be reached.
        """
        place = self._place
        self._round += 1
        if self._files:
            os.environ[STORE_FILE] = os.path.join(self._files, f"store-{self._round}")  # the old one names ended ranks
            return RendezvousInfo(HashStore(), place.index, 1, RendezvousStoreInfo(place.master, 0))
        if self._round == 0:
            store = serve_on(self._listener, place.master) if self._listener else call(place.master, place.port)
            if place.hosts > 1:
                self._rounds = PrefixStore(f"{self._nonce}/rounds", store)
                self._outcome_store = PrefixStore(f"{self._nonce}/rounds", call(place.master, store.port))
                self._share_clock(self._rounds)
        elif self._rounds is None:
            store = serve_on(listen(place.master, 0), place.master)
        else:
            store = in_thread(self._restart)
        self._store = store
        if self._outcome_store is not None:
            self._outcome_listener = OutcomeListener(self._outcome_store, f"{self._round}/outcome")
        meeting = RendezvousStoreInfo(place.master, store.port)
        shared: Store = PrefixStore(self._nonce, store) if place.hosts > 1 else HashStore()
        return RendezvousInfo(shared, place.index, place.hosts, meeting)

    def outcome(self) -> Optional[str]:
        """How this round has ended: ``RESTART``, ``OVER`` or ``FAILED``; None: it still runs.

        A failure is reported ``LAST_WORDS_S`` after it became known.

        Raises:
            HostsDisconnected: host 0 is gone, with the same delay.
        """
        if self._outcome_listener is None:
            return OVER if self._finished_round == self._round else None
        outcome = self._outcome_listener.outcome
        if outcome in (FAILED, GONE) and time.monotonic() - self._outcome_listener.at_s < LAST_WORDS_S:
            return None
        if outcome == GONE:
            raise HostsDisconnected("the agent of the first host is gone")
        return outcome

    def finished(self) -> None:
        """Report that all ranks of this host have succeeded; further calls in this round do nothing.

        Raises:
            HostsDisconnected: host 0 cannot be reached.
        """
        rounds, number = self._rounds, self._round
        if self._finished_round == number:
            return
        self._finished_round = number
        if rounds is not None and in_thread(lambda: rounds.add(f"{number}/finished", 1), REPLY_S) == self._place.hosts:
            in_thread(lambda: rounds.set(f"{number}/outcome", OVER), REPLY_S)

    def failed(self) -> None:
        """Report that ranks of this host failed and no restart is left."""
        rounds, key = self._rounds, f"{self._round}/outcome"
        if rounds is not None:
            with suppress(HostsDisconnected):
                in_thread(lambda: rounds.set(key, FAILED), REPLY_S)
                in_thread(lambda: rounds.check([key]), REPLY_S)  # once it answers, the outcome has reached the store

    def _restart(self) -> TCPStore:
        """Start this round, wait for all hosts, and open a new store: the old one lists ended ranks to Gloo."""
        place, number, rounds = self._place, self._round, self._rounds
        assert rounds is not None  # set in round 0
        rounds.set(f"{number - 1}/outcome", RESTART)
        rounds.set(f"{number}/folder/{place.index}", self._directory)
        if rounds.add(f"{number}/hosts", 1) == place.hosts:
            rounds.set(f"{number}/all", "")
        try:
            in_thread(lambda: rounds.wait([f"{number}/all"], patience()))
        except HostsDisconnected as error:
            if not isinstance(error.__cause__, DistStoreError):
                raise
            missing = [index for index in range(place.hosts) if not rounds.check([f"{number}/folder/{index}"])]
            names = ", ".join(map(str, missing))
            raise HostsDisconnected(
                f"of {place.hosts} hosts, counted from 0, these did not join the restart: {names}"
            ) from None
        self._share_checkpoints(PrefixStore(f"{number}/checkpoints", rounds))
        if place.index == 0:
            store = serve_on(listen(place.master, 0), place.master)
            rounds.set(f"{number}/port", str(store.port))
            return store
        in_thread(lambda: rounds.wait([f"{number}/port"], ONE_WAIT))  # until others have their checkpoints
        return call(place.master, int(rounds.get(f"{number}/port")))

    def _share_clock(self, rounds: Store) -> None:
        """Publish the clock server to every host, also to hosts that do not share our file system."""
        if self._place.index == 0:
            rounds.set("clock", json.dumps(server_address(self._directory)))
            return
        place = json.loads(in_thread(lambda: rounds.get("clock")))
        if place is not None:
            with suppress(OSError):  # such as a full disk; the clocks are then not compared
                publish_server(self._directory, place)

    def _share_checkpoints(self, store: Store) -> None:
        """Copy the newest checkpoints, which rank 0 wrote on host 0, to every host."""
        rounds, number = self._rounds, self._round
        assert rounds is not None
        if self._place.index == 0:
            folders = rounds.multi_get([f"{number}/folder/{index}" for index in range(self._place.hosts)])
            send(store, self._directory, receivers=sum(folder != folders[0] for folder in folders))
        elif rounds.get(f"{number}/folder/0").decode() != self._directory:
            self._received = receive(store, self._directory, replaced=self._received)

    def is_closed(self) -> bool:
        """The rendezvous ends with the job."""
        return False

    def set_closed(self) -> None:
        """Nothing to close before the job ends."""

    def num_nodes_waiting(self) -> int:
        """No host joins later; ``outcome`` decides about a restart that a host requests."""
        return 0

    def get_run_id(self) -> str:
        """The nonce of the job."""
        return self._nonce

    def shutdown(self) -> bool:
        """Remove checkpoints that were received: host 0 has the originals."""
        for path in self._received:
            if os.path.exists(path):
                os.unlink(path)
        return True


class OutcomeListener:
    """Waits for the outcome of a round in a thread with its own connection: a waiting agent would handle no signals."""

    def __init__(self, store: Store, key: str) -> None:
        self.outcome: Optional[str] = None
        self.at_s = 0.0
        threading.Thread(target=self._listen, args=(store, key), name="outcome", daemon=True).start()

    def _listen(self, store: Store, key: str) -> None:
        outcome = None
        while outcome is None:
            try:
                store.wait([key], ONE_WAIT)
                outcome = store.get(key).decode()
            except DistStoreError:
                continue  # an hour has passed
            except RuntimeError:
                outcome = GONE
        self.at_s = time.monotonic()
        self.outcome = outcome


def in_thread(request: Callable[[], Answer], limit_s: Optional[float] = None) -> Answer:
    """Call ``request`` in a thread and wait for its answer, so that signals are handled: torch's stores block them.

    A terminal that closes and a parent that ends send two signals at once. While the first wakes the main thread, Linux
    gives both to another one; the main thread then sleeps on, and only the end of its wait lets Python handle them.

    Raises:
        HostsDisconnected: another host or our disk failed, or ``limit_s`` seconds have passed.
    """
    answers: "SimpleQueue[Tuple[Optional[BaseException], Any]]" = SimpleQueue()

    def run() -> None:
        try:
            answers.put((None, request()))
        except BaseException as error:  # noqa: BLE001  raised in the waiting thread
            answers.put((error, None))

    threading.Thread(target=run, name="request", daemon=True).start()
    deadline_s = math.inf if limit_s is None else time.monotonic() + limit_s
    while True:
        try:
            error, answer = answers.get(timeout=SIGNALS_EVERY_S)
            break
        except Empty:
            if time.monotonic() > deadline_s:
                raise HostsDisconnected(f"the agent of the first host gave no answer in {limit_s:g} s") from None
    if isinstance(error, (DistError, OSError)):
        raise HostsDisconnected(first_line(error)) from error
    if error is not None:
        raise error
    return answer  # type: ignore[no-any-return]  # what request returned


def patience() -> timedelta:
    """How long the other hosts may take to join: they first end their ranks, with the grace time."""
    grace = os.environ.get(GRACE_VARIABLE, "")
    return PATIENCE + 2 * timedelta(seconds=int(grace) if grace.isdigit() else 30)


def first_line(error: BaseException) -> str:
    """The message of an error of torch's, without its C++ stack."""
    return str(error).partition("\n")[0]
