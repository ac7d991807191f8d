"""The efficiencies of the POP Centre, as `show` and `explain` print them."""

from __future__ import annotations

from pydantic import Field

from allpull.schema.base import Record


class OutsideCommunication(Record):
    """POP efficiencies if all work outside communication counts as useful, as for a tool that records it alone.

    ``parallel`` is that of the training's own useful work plus all of ``added``.
    """

    parallel: float
    load_balance: float
    communication: float
    added: dict[str, float] = Field(
        description="phase → share of the run time that counts as useful here alone, mean over ranks; evaluation is"
        " that by some of the ranks"
    )


class PopEfficiencies(Record):
    """Efficiencies as the POP Centre defines them, of the steps that `allpull explain` replays.

    parallel = load_balance · communication, communication = serialisation · transfer,
    global = parallel · computational.
    """

    parallel: float = Field(description="mean useful time ÷ run time")
    load_balance: float = Field(description="mean useful time ÷ largest")
    communication: float = Field(description="largest useful time ÷ run time")
    serialisation: float = Field(description="largest useful time ÷ run time on an ideal network")
    transfer: float = Field(description="run time on an ideal network ÷ run time")
    computational: float | None = Field(None, description="computational scaling; None without a reference")
    global_: float | None = Field(None, alias="global", description="global efficiency; None without a reference")
    useful_s_per_sample: float | None = Field(description="of all ranks together; None: samples are not known")
    outside_communication: OutsideCommunication
    first_step: int
    steps: int = Field(ge=1)
    seconds: float = Field(description="run time of these steps")
