"""The rendezvous of a job whose hosts are known: rounds, agreed on in a store on one interface of host 0.

Round 0 is the first start of the ranks. Where ranks fail that may be started again, their host calls the next round
in the store; the others hear of it, end their own ranks and come too. A round is a restart on every host, so all
agents count alike: none has one left when another has not, and ``TORCHELASTIC_RESTART_COUNT`` is the same everywhere
(torch itself counts the failures of each host apart). A round is over when the ranks of every host have ended well,
and has failed when a host has no restart left.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any, Callable, List, Optional, Tuple, TypeVar

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.distributed import DistError, DistStoreError
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

from allpull.observe.agent.checkpoint_transfer import give, take
from allpull.observe.clock_pings import publish_server, server_address
from allpull.observe.store import PATIENCE, call, listen, serve_on

BACKEND = "allpull"
RESTART, OVER, FAILED, GONE = (
    "again",
    "over",
    "failed",
    "gone",
)  # how a round ends; gone: host 0 is, and nobody failure_records
LAST_WORDS_S = 5.0  # from a failure elsewhere to ending our ranks: what ended those may end them too, and they say so
TALK_S = 30.0  # longest that host 0 takes to answer a word
ONE_WAIT = timedelta(hours=1)  # torch counts a wait in 32-bit milliseconds
GRACE_VARIABLE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"  # seconds that torch's agent gives ranks to end

Answer = TypeVar("Answer")


class JobHost:
    """This host among the hosts of the job, its name in the records, and where host 0 listens."""

    def __init__(self, *, index: int, hosts: int, master: str, port: int, name: str) -> None:
        self.index = index
        self.hosts = hosts
        self.master = master
        self.port = port
        self.name = name


class HostsDisconnected(Exception):
    """The hosts of the job cannot meet: one is gone, or cannot be reached."""


class FixedHosts(RendezvousHandler):
    """Where this host meets the others: host 0 listens on one interface, the others call it there.

    torch's own handlers listen on every interface, where anyone who can reach the port may join or stop the job.
    ``listener`` is host 0's; ``directory`` is where this host writes, which need not be where another does.
    """

    def __init__(self, place: JobHost, listener: Optional[socket.socket], nonce: str, directory: str) -> None:
        self._place = place
        self._listener = listener
        self._nonce = nonce
        self._directory = directory
        self._round = -1
        self._finished_round = -1
        self._store: Optional[TCPStore] = None  # where ranks meet in this round; it ends with the last that has it
        self._rounds: Optional[Store] = None  # what agents tell each other, in the store of round 0
        self._outcome_listener: Optional[OutcomeListener] = None
        self._outcome_store: Optional[Store] = None
        self._received: List[str] = []

    def get_backend(self) -> str:
        """The name of this kind of rendezvous."""
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        """Ranks meet in this store too, so no second port is opened."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """A store for the ranks of the next round, and our place among the hosts.

        Raises:
            HostsDisconnected: not all hosts came, or host 0 cannot be reached.
        """
        place = self._place
        self._round += 1
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
        return RendezvousInfo(PrefixStore(self._nonce, store), place.index, place.hosts, meeting)

    def outcome(self) -> Optional[str]:
        """How this round has ended: ``RESTART`` where a host called the next, ``OVER`` or ``FAILED``; None: it goes on.

        A failure is failure_records ``LAST_WORDS_S`` later.

        Raises:
            HostsDisconnected: host 0 is gone, as late.
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
        """Say that all ranks of this host have ended well; said again, it says nothing.

        Raises:
            HostsDisconnected: host 0 cannot be reached.
        """
        rounds, number = self._rounds, self._round
        if self._finished_round == number:
            return
        self._finished_round = number
        if rounds is not None and in_thread(lambda: rounds.add(f"{number}/finished", 1), TALK_S) == self._place.hosts:
            in_thread(lambda: rounds.set(f"{number}/outcome", OVER), TALK_S)

    def failed(self) -> None:
        """Say that ranks of this host failed for the last time."""
        rounds, key = self._rounds, f"{self._round}/outcome"
        if rounds is not None:
            with suppress(HostsDisconnected):
                in_thread(lambda: rounds.set(key, FAILED), TALK_S)
                in_thread(lambda: rounds.check([key]), TALK_S)  # once it answers, everybody was failure_records

    def _restart(self) -> TCPStore:
        """Call this round, wait for all hosts, and open a new store: in the old one Gloo would find the dead."""
        place, number, rounds = self._place, self._round, self._rounds
        assert rounds is not None  # it has been there since round 0
        rounds.set(f"{number - 1}/outcome", RESTART)
        rounds.set(f"{number}/folder/{place.index}", self._directory)
        if rounds.add(f"{number}/hosts", 1) == place.hosts:
            rounds.set(f"{number}/all", "")
        try:
            rounds.wait([f"{number}/all"], patience())
        except DistStoreError:
            missing = [index for index in range(place.hosts) if not rounds.check([f"{number}/folder/{index}"])]
            names = ", ".join(map(str, missing))
            raise HostsDisconnected(
                f"of {place.hosts} hosts, counted from 0, these did not come to start again: {names}"
            ) from None
        self._share_checkpoints(PrefixStore(f"{number}/checkpoints", rounds))
        if place.index == 0:
            store = serve_on(listen(place.master, 0), place.master)
            rounds.set(f"{number}/port", str(store.port))
            return store
        rounds.wait([f"{number}/port"], ONE_WAIT)  # until others have their checkpoints
        return call(place.master, int(rounds.get(f"{number}/port")))

    def _share_clock(self, rounds: Store) -> None:
        """Let every host know whose clock it compares its own with, also where it does not see our files."""
        if self._place.index == 0:
            rounds.set("clock", json.dumps(server_address(self._directory)))
            return
        place = json.loads(in_thread(lambda: rounds.get("clock")))
        if place is not None:
            with suppress(OSError):  # the disk is full, say; clocks then stay apart
                publish_server(self._directory, place)

    def _share_checkpoints(self, store: Store) -> None:
        """Let every host have the newest checkpoints, which rank 0 wrote on host 0."""
        rounds, number = self._rounds, self._round
        assert rounds is not None
        if self._place.index == 0:
            folders = rounds.multi_get([f"{number}/folder/{index}" for index in range(self._place.hosts)])
            give(store, self._directory, takers=sum(folder != folders[0] for folder in folders))
        elif rounds.get(f"{number}/folder/0").decode() != self._directory:
            self._received = take(store, self._directory, instead_of=self._received)

    def is_closed(self) -> bool:
        """It ends with the job."""
        return False

    def set_closed(self) -> None:
        """Nothing to close before the job ends."""

    def num_nodes_waiting(self) -> int:
        """No host joins later; that one calls a restart is outcome by ``outcome``."""
        return 0

    def get_run_id(self) -> str:
        """The nonce of the job."""
        return self._nonce

    def shutdown(self) -> bool:
        """Remove checkpoints that were handed over: host 0 has them."""
        for path in self._received:
            if os.path.exists(path):
                os.unlink(path)
        return True


class OutcomeListener:
    """Hears how a round ends, on a connection of its own and in a thread: an agent that waited would hear no signal."""

    def __init__(self, store: Store, key: str) -> None:
        self.outcome: Optional[str] = None
        self.at_s = 0.0
        threading.Thread(target=self._listen, args=(store, key), name="ear", daemon=True).start()

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


def in_thread(talk: Callable[[], Answer], limit_s: Optional[float] = None) -> Answer:
    """Do ``talk`` in a thread and wait for it, open to signals: torch's stores are not, and may wait for ever.

    Raises:
        HostsDisconnected: another host, or our disk, failed it, or ``limit_s`` seconds have passed.
    """
    answers: "SimpleQueue[Tuple[Optional[BaseException], Any]]" = SimpleQueue()

    def run() -> None:
        try:
            answers.put((None, talk()))
        except BaseException as error:  # noqa: BLE001  handed to whoever waits
            answers.put((error, None))

    threading.Thread(target=run, name="talk", daemon=True).start()
    try:
        error, answer = answers.get(timeout=limit_s)
    except Empty:
        raise HostsDisconnected(f"the agent of the first host gave no answer in {limit_s:g} s") from None
    if isinstance(error, (DistError, OSError)):
        raise HostsDisconnected(first_line(error)) from error
    if error is not None:
        raise error
    return answer  # type: ignore[no-any-return]  # what talk returned


def patience() -> timedelta:
    """How long the other hosts may take to come: they end their ranks first, and that politely."""
    grace = os.environ.get(GRACE_VARIABLE, "")
    return PATIENCE + 2 * timedelta(seconds=int(grace) if grace.isdigit() else 30)


def first_line(error: BaseException) -> str:
    """What an error of torch's says, without the stack of C++ below it."""
    return str(error).partition("\n")[0]
