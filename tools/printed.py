"""Put stored results into the documentation, so that no number in it was typed by hand.

A Markdown file marks a place by two comments, and what stands between them is made from ``benchmarks/results/``::

    <!-- stored: demo-short -->
    …
    <!-- /stored -->

``BLOCKS`` says what there is. Each comes with the names of the results that it is made from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import printed_accuracy
import printed_explain
import printed_forecast
import printed_loader
import printed_predicted
import printed_trainer
from allpull.units import percent, show_count, show_spread, show_time

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PLACE = re.compile(r"(<!-- stored: ([a-z-]+) -->\n).*?(<!-- /stored -->)", re.DOTALL)
SHOWN_EPOCHS = 1  # progress lines kept at each end of a training in the short form

Stored = dict[str, Any]


def fill(text: str) -> str:
    """``text`` with every marked place filled from the stored results.

    Raises:
        KeyError: a place names no block.
    """
    return PLACE.sub(lambda place: f"{place[1]}\n{BLOCKS[place[2]].made()}\n{place[3]}", text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What a marked place shows: Markdown made from the stored results ``needs``; their absence is said in it."""

    needs: tuple[str, ...]
    show: Callable[[dict[str, Stored]], str]

    def made(self) -> str:
        """The block as Markdown, with a line break at its end."""
        return self.show({name: found for name in self.needs if (found := stored(name)) is not None}) + "\n"


def stored(name: str) -> Stored | None:
    """The stored result ``name``, or None where it was not measured yet."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def demo_short(results: dict[str, Stored]) -> str:
    """The demo as a newcomer sees it, most progress lines left out."""
    if "demo" not in results:
        return NOT_YET
    said = results["demo"]["result"]
    return _console("make demo", [*_shortened(said["stderr"][:-1]), *said["stdout"], said["stderr"][-1]])


def demo_progress(results: dict[str, Stored]) -> str:
    """What the demo says while it trains."""
    if "demo" not in results:
        return NOT_YET
    return _console("allpull demo", list(_shortened(results["demo"]["result"]["stderr"][:-1])))


def demo_table(results: dict[str, Stored]) -> str:
    """The table of the demo and what it means."""
    if "demo" not in results:
        return NOT_YET
    return _console("allpull demo", results["demo"]["result"]["stdout"])


def own_script(*commands: str, is_short: bool = False) -> Callable[[dict[str, Stored]], str]:
    """What allpull says of the example script: these commands in their order, by how they begin."""

    def show(results: dict[str, Stored]) -> str:
        if "own_script" not in results:
            return NOT_YET
        left = list(results["own_script"]["result"]["commands"])
        lines = list[str]()
        for command in commands:
            index = next(index for index, one in enumerate(left) if one["command"].startswith(command))
            output = left[index]["lines"]
            lines += [f"$ {left[index]['command']}", *(_first_finding(output) if is_short else output), ""]
            left = left[index + 1 :]
        return "\n".join(["```console", *lines[:-1], "```"])

    return show


def _first_finding(lines: list[str]) -> list[str]:
    """The output of explain up to its second finding; of other commands all of it."""
    second = next((index for index, line in enumerate(lines) if line.startswith("2. ")), None)
    return lines if second is None else [*lines[:second], "…"]


def figures(results: dict[str, Stored]) -> str:
    """One row for each stored result: what, how much, and by which command on which machine."""
    rows = [(what, value, results[name]) for what, value, name in _figures(results)]
    head = ["| what | measured | by |", "|---|---|---|"]
    body = [f"| {what} | {value} | `{_shorter(result['command'])}` |" for what, value, result in rows]
    return "\n".join([*head, *body, "", *_made_on(results.values())])


def _figures(results: dict[str, Stored]) -> Iterator[tuple[str, str, str]]:
    if "demo" in results:
        demo = results["demo"]["result"]
        yield "`allpull demo`, from the first line to the last", show_time(demo["wall_s"]), "demo"
        accuracies = ", ".join(
            f"{percent(run['accuracy'], 1)} on {_ranks(run['ranks'])}" for run in demo["show"]["runs"]
        )
        yield "top-1 accuracy of the demo on its test digits", accuracies, "demo"
    if "recording_cost" in results:
        cost = results["recording_cost"]["result"]
        yield "writing one step record, in the rank", _microseconds(cost["step_record_us"]), "recording_cost"
        yield (
            "all that observation adds to a step of four phases, in a tight loop",
            _microseconds(cost["whole_step_us"]),
            "recording_cost",
        )
    if "overhead_inside" in results:
        for row in results["overhead_inside"]["result"]["loops"]:
            what = f"what `allpull run` adds to a step of {show_time(row['plain_step_us'] / 1e6)} (`{row['loop']}`)"
            yield what, _added(row["added_us"]), "overhead_inside"
    if "read_rate" in results:
        rate = results["read_rate"]["result"]
        seconds = show_time(rate["records"] / rate["records_per_s"]["median"])
        yield f"reading and checking {rate['records']:,} step records", seconds, "read_rate"
    if "allreduce_table" in results:
        table = results["allreduce_table"]["result"]["rows"]
        ratios = sorted(row["ratio"] for row in table)
        yield (
            "all-reduce on a shaped virtual cluster ÷ 2(N−1)/N · S/B",
            f"{ratios[0]:.3f} to {ratios[-1]:.3f}",
            "allreduce_table",
        )
    if "undisturbed_ranks" in results:
        undisturbed = results["undisturbed_ranks"]["result"]
        slowest = undisturbed["slowest_rank_over_alone"]
        what = f"step of the slowest of {undisturbed['ranks']} virtual accelerators ÷ that of one alone"
        yield what, f"{slowest['median']:.3f} ({slowest['low']:.3f} to {slowest['high']:.3f})", "undisturbed_ranks"
    for name in ("accuracy_digits", "accuracy_fashion_mnist"):
        if name in results:
            study = results[name]["result"]
            yield f"top-1 accuracy of the recipe `{study['recipe']}`", printed_accuracy.means(study), name
    for name, weight in (("loader_peers", "light"), ("loader_peers_heavy", "as heavy as ImageNet's")):
        if name in results:
            what = f"samples of the loader per CPU second, JPEGs unchanged ({weight})"
            yield what, printed_loader.short(results[name]["result"]), name
    if "trainer_peers" in results:
        what = "images/s of a trainer ÷ those of PyTorch's unmodified example, bf16 on a CPU, reading images"
        yield what, printed_trainer.short(results["trainer_peers"]["result"]), "trainer_peers"


def launchers(results: dict[str, Stored]) -> str:
    """The same training through every launcher, a row each, and on which of its results they agree bit for bit."""
    if "launchers" not in results:
        return NOT_YET
    measured = results["launchers"]["result"]
    head = ["launcher", "hosts", "samples", "test loss", "top-1", "samples/s", "wait", "transfer", "start-up"]
    body = [
        [
            f"`{row['launcher']}`",
            str(row["hosts"]),
            f"{row['samples']:,}",
            repr(row["test_loss"]),
            percent(row["accuracy"], 1),
            _rate(row["throughput"]),
            *(_share(row["phases"][name]) for name in ("wait", "transfer")),
            f"{row['startup_s']['value']:.1f} s",
        ]
        for row in measured["rows"]
    ]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(cells)} |" for cells in body)]
    about = (
        f"`{measured['recipe']}` on {_ranks(measured['ranks'])}: {measured['epochs']} epochs, global batch "
        f"{measured['global_batch']}, seed {measured['seed']}; the links of `rehearse` have "
        f"{measured['rehearsed_link']}. Start-up is known within half a second."
    )
    return "\n".join([*lines, "", about, "", *_agreement(measured), "", *_made_on(results.values())])


def scripts(results: dict[str, Stored]) -> str:
    """Real programs with and without `allpull run`, a row each."""
    if "scripts" not in results:
        return NOT_YET
    lines = ["| started by | prints the same | steps | samples | phases | collectives |", "|---" * 6 + "|"]
    for row in results["scripts"]["result"]["programs"]:
        command = f"`{row['started_by']}`"
        if "skipped" in row:
            lines.append(f"| {command} | {row['skipped']} | | | | |")
            continue
        same = f"{'yes' if row['prints_the_same'] else '**no**'}, exit code {row['exit_code']}"
        counts = [str(row.get(of)) for of in ("steps", "samples")]
        names = [", ".join(row.get(of, ())) for of in ("phases", "collectives")]
        lines.append(f"| {' | '.join([command, same, *counts, *names])} |")
    return "\n".join([*lines, "", *_made_on(results.values())])


def overhead(results: dict[str, Stored]) -> str:
    """What observation adds to a step, a row for each loop and way."""
    if "overhead" not in results:
        return NOT_YET
    head = ["loop, its step without", "with", "wall time ÷ plain", "CPU time ÷ plain", "added to a step", "says itself"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for loop in results["overhead"]["result"]["loops"]:
        about = f"`{loop['loop']}`, {show_time(loop['plain_step_us'] / 1e6)}"
        for row in loop["ways"]:
            if row["way"] == "plain":
                continue
            cells = [row.get("skipped", ""), "", "", ""]
            if "skipped" not in row:
                cells = [_ratio(row["wall_ratio"]), _ratio(row["cpu_ratio"]), _added(row["cpu_added_us"])]
                cells.append(f"{row['says_us']:.0f} µs" if "says_us" in row else "")
            lines.append(f"| {' | '.join([about, WAY_WORDS[row['way']], *cells])} |")
    return "\n".join([*lines, "", *_made_on(results.values())])


def identical_runs(results: dict[str, Stored]) -> str:
    """How often identical runs were called different, and slowed ones were found; a row for each way to compare."""
    if "identical_runs" not in results:
        return NOT_YET
    measured = results["identical_runs"]["result"]
    head = ["runs", "compared", "pairs", "called different", "gate failed", "gate unknown"]
    head += ["slower ones found", "change that is shown"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    kinds = {name: found for name, found in measured.items() if isinstance(found, dict)}
    for kind, both in kinds.items():
        same, planted = both["identical"], both["planted"]
        for way, about in COMPARED_WORDS.items():
            found = same[way]
            alarms = [percent(found[name], 1) for name in ("false_alarms", "false_failures")]
            alarms.append(percent(found["gate"].get("unknown", 0) / found["pairs"]))
            slowed = planted.get(way)
            cells = ["", ""]
            if slowed:
                share = slowed["decisions"].get("slower", 0) / slowed["pairs"]
                cells = [percent(share), percent(slowed["smallest_shown"], 1)]
            row = [kind, about, f"{found['pairs']:,}", *alarms, *cells]
            lines.append(f"| {' | '.join(row)} |")
    slower = next(iter(kinds.values()))["planted"]["slower"]
    about = f"The gate was `--fail-if '{measured['gate']}'`; slower ones took {percent(slower)} longer. "
    about += " ".join(_unlike(kind, both) for kind, both in kinds.items())
    return "\n".join([*lines, "", about, "", *_made_on(results.values())])


def _unlike(kind: str, measured: Stored) -> str:
    """How much runs of this kind differ, and what the gate said of three slowed ones against three others."""
    slowed = measured["planted"]["groups"]
    failed = slowed["gate"].get("failed", 0)
    return (
        f"Runs of `{kind}` differ by {percent(measured['spread_between_runs'], 1)} from one to the next (standard "
        f"deviation); the gate failed {failed or 'none'} of {slowed['pairs']} comparisons with slower ones, three with "
        "three."
    )


def explained(name: str, lines: Callable[[Stored], list[str]]) -> Callable[[dict[str, Stored]], str]:
    """A block whose ``lines`` are made from the stored result ``name``."""

    def show(results: dict[str, Stored]) -> str:
        if name not in results:
            return NOT_YET
        return "\n".join([*lines(results[name]["result"]), "", *_made_on(results.values())])

    return show


def accuracy(results: dict[str, Stored]) -> str:
    """How well the shipped recipes learn, on each number of ranks."""
    if not results:
        return NOT_YET
    lines = printed_accuracy.accuracy(result["result"] for result in results.values())
    return "\n".join([*lines, "", *_made_on(results.values())])


COMPARED_WORDS = {
    "groups": "three with three",
    "singles": "one with one, and a stored figure",
    "blocks": "three with the next three",
}


def overhead_inside(results: dict[str, Stored]) -> str:
    """What observation adds to a step where nothing else differs, a row for each loop."""
    if "overhead_inside" not in results:
        return NOT_YET
    rows = results["overhead_inside"]["result"]["loops"]
    passed_on = any("passed_on_us" in row for row in rows)  # older results have no such blocks
    wrappers = " wrappers that only pass on |" if passed_on else ""
    lines = [
        f"| loop, its step without | added to a step |{wrappers} the records say |",
        "|---" * (3 + passed_on) + "|",
    ]
    for row in rows:
        about = f"`{row['loop']}`, batch {row['batch']}, {show_time(row['plain_step_us'] / 1e6)}"
        alone = f" {_added(row['passed_on_us'])} |" if "passed_on_us" in row else " |" if passed_on else ""
        lines.append(f"| {about} | {_added(row['added_us'])} |{alone} {row['says_us']:.0f} µs |")
    return "\n".join([*lines, "", *_made_on(results.values())])


WAY_WORDS = {
    "allpull": "`allpull run`",
    "allpull_traced": "`allpull run --trace`",
    "profiler": "`torch.profiler` all the time",
    "traceml": "TraceML",
}


def _ratio(interval: dict[str, float]) -> str:
    return f"{interval['value']:.3f} ({interval['low']:.3f} to {interval['high']:.3f})"


def _added(interval: dict[str, float]) -> str:
    return f"{interval['value']:.0f} µs ({interval['low']:.0f} to {interval['high']:.0f})"


RESULT_WORDS = {
    "steps": "steps",
    "samples": "samples",
    "train_loss": "training loss",
    "test_loss": "test loss",
    "accuracy": "top-1",
    "curves_sha256": "all values of all curves",
    "state_sha256": "final weights with momentum and the batch statistics of each rank",
}
"""What launchers are compared by, in words."""


def _agreement(measured: Stored) -> Iterator[str]:
    groups = {RESULT_WORDS[name]: found for name, found in measured["agreement"].items()}
    same = [what for what, found in groups.items() if len(found) == 1]
    if same:
        yield f"The same in every bit on all {len(measured['rows'])}: {', '.join(same)}."
    for what, found in groups.items():
        if len(found) > 1:
            yield f"Not the same on all: {what} ({'; '.join(' = '.join(names) for names in found)})."


def _rate(interval: dict[str, float | None] | None) -> str:
    if interval is None or interval["value"] is None:
        return "not measured"
    low, high = interval["low"], interval["high"]
    if low is None or high is None:
        return show_count(interval["value"])
    return show_spread(interval["value"], (high - low) / 2)


def _share(share: float | None) -> str:
    return "not measured" if share is None else percent(share)


def _made_on(results: Iterable[Stored]) -> list[str]:
    """One sentence for each machine and torch that made some of the results, with the commits."""
    commits: dict[str, dict[str, None]] = {}
    for result in results:
        machine = f"{result['machine']['cpus']} CPUs ({result['machine']['cpu']})"
        setting = f"Measured on {machine} with torch {result['versions']['torch']}"
        commits.setdefault(setting, {})[f"`{result['commit'][:10]}`"] = None
    return [f"{setting}, at commit {', '.join(names)}." for setting, names in commits.items()] or [NOT_YET]


def _microseconds(spread: dict[str, float]) -> str:
    half_width = (spread["high"] - spread["low"]) / 2
    return f"{show_spread(spread['median'], half_width)} µs"


def _ranks(count: int) -> str:
    return f"{show_count(count)} rank{'s' * (count != 1)}"


def _shorter(command: str) -> str:
    return command.partition(" --output")[0]


def _shortened(lines: list[str]) -> Iterator[str]:
    """Progress lines with the epochs in the middle of each training left out."""
    epochs: list[str] = []
    for line in lines:
        if ": epoch " in line:
            epochs.append(line)
            continue
        yield from _ends(epochs)
        epochs = []
        yield line
    yield from _ends(epochs)


def _ends(epochs: list[str]) -> list[str]:
    if len(epochs) <= 2 * SHOWN_EPOCHS + 1:
        return epochs
    return [*epochs[:SHOWN_EPOCHS], "…", *epochs[-SHOWN_EPOCHS:]]


def _console(command: str, lines: list[str]) -> str:
    return "\n".join(["```console", f"$ {command}", *lines, "```"])


NOT_YET = "*Not measured yet: `make proof` does.*"

BLOCKS = {
    "time-to-accuracy": Block(
        needs=("predict_time_to_accuracy",),
        show=explained("predict_time_to_accuracy", printed_predicted.time_to_accuracy),
    ),
    "demo-short": Block(needs=("demo",), show=demo_short),
    "demo-progress": Block(needs=("demo",), show=demo_progress),
    "demo-table": Block(needs=("demo",), show=demo_table),
    "own-script": Block(
        needs=("own_script",), show=own_script("allpull run", "allpull explain", "allpull report", is_short=True)
    ),
    "own-run": Block(needs=("own_script",), show=own_script("allpull run")),
    "own-explain": Block(needs=("own_script",), show=own_script("allpull explain")),
    "own-report": Block(needs=("own_script",), show=own_script("allpull report")),
    "own-compare": Block(
        needs=("own_script",), show=own_script("allpull rename", "allpull run", "allpull compare", "allpull ls")
    ),
    "figures": Block(
        needs=(
            "demo",
            "recording_cost",
            "overhead",
            "read_rate",
            "allreduce_table",
            "undisturbed_ranks",
            "accuracy_digits",
            "accuracy_fashion_mnist",
            "loader_peers",
            "loader_peers_heavy",
            "trainer_peers",
        ),
        show=figures,
    ),
    "accuracy": Block(needs=("accuracy_digits", "accuracy_fashion_mnist", "accuracy_twelve_bands"), show=accuracy),
    "launchers": Block(needs=("launchers",), show=launchers),
    "scripts": Block(needs=("scripts",), show=scripts),
    "overhead": Block(needs=("overhead",), show=overhead),
    "overhead-inside": Block(needs=("overhead_inside",), show=overhead_inside),
    "identical-runs": Block(needs=("identical_runs",), show=identical_runs),
    "trainer-peers": Block(needs=("trainer_peers",), show=explained("trainer_peers", printed_trainer.trainer_peers)),
    "memory-layout": Block(needs=("memory_layout",), show=explained("memory_layout", printed_trainer.memory_layout)),
    "loader-peers": Block(needs=("loader_peers",), show=explained("loader_peers", printed_loader.loader_peers)),
    "loader-peers-heavy": Block(
        needs=("loader_peers_heavy",), show=explained("loader_peers_heavy", printed_loader.loader_peers)
    ),
    "planted-faults": Block(
        needs=("planted_faults",), show=explained("planted_faults", printed_explain.planted_faults)
    ),
    "predict-rehearsed": Block(
        needs=("predict_rehearsed",), show=explained("predict_rehearsed", printed_forecast.predict_rehearsed)
    ),
    "real-faults": Block(needs=("real_faults",), show=explained("real_faults", printed_explain.planted_faults)),
    "claix-like": Block(needs=("claix_like",), show=explained("claix_like", printed_explain.claix_like)),
}
"""What a marked place may show."""
