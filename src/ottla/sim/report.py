"""Results of runs as text and as JSON values.

Zone: pure.
"""

from __future__ import annotations

from dataclasses import replace

from ottla.sim.clients.runner import ClientOptions, ClientResult
from ottla.sim.cluster.runner import ClusterOptions, ClusterResult
from ottla.sim.cluster.shrink import Shrunk
from ottla.sim.compaction.runner import CompactionOptions
from ottla.sim.runner import Options, Result
from ottla.sim.security.runner import SecurityOptions, SecurityResult
from ottla.sim.swarm import Coverage
from ottla.sim.transactions.runner import TransactionOptions, TransactionResult
from ottla.sim.world import SECOND

Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]


def replay_command(result: Result, options: Options | ClusterOptions) -> str:
    """The command line that runs a seed again."""
    words = ["ottla sim"]
    if isinstance(options, ClusterOptions):
        words.append(_clients_of(options))
        if options.brokers:
            words.append(f"--brokers {options.brokers}")
        if options.flush:
            words.append("--flush")
    elif options.defects:
        words.append("--defects")
    words.append(f"--seed {result.seed}")
    # Only what differs from the defaults, so that the command stays short enough to be read.
    if options.seconds != 60:
        words.append(f"--seconds {options.seconds}")
    if options.without:
        words.append(f"--ablate {options.without}")
    if isinstance(options, ClusterOptions) and options.kinds:
        words.append(f"--kinds '{','.join(options.kinds)}'")
    # A run that was made smaller has only these faults; the seed alone would have all of them.
    if isinstance(options, ClusterOptions) and options.strikes is not None:
        words.append(f"--faults {','.join(map(str, options.strikes)) or 'none'}")
    return " ".join(words)


def _clients_of(options: ClusterOptions) -> str:
    """The option that selects this kind of run."""
    if isinstance(options, TransactionOptions):
        return "--transactions"
    if isinstance(options, CompactionOptions):
        return "--compaction"
    if isinstance(options, SecurityOptions):
        return "--security"
    return "--clients" if isinstance(options, ClientOptions) else "--cluster"


def result_lines(result: Result, options: Options | ClusterOptions) -> list[str]:
    """One run as text."""
    lines = [
        f"seed {result.seed}: {'ok' if result.ok else 'FAILED'}",
        f"  simulated     {result.simulated_ns / SECOND:.1f} s, {result.events:,} events",
        f"  acknowledged  {result.acknowledged:,} records, {result.read:,} read",
        f"  recoveries    {result.recoveries}",
        *_cluster_lines(result),
        *_compaction_lines(result),
        f"  faults        {sum(result.faults.values())}: {_fault_counts(result.faults)}",
        f"  trace         {result.trace_hash}",
    ]
    if result.unmet_minimums:
        lines.append(f"  does not count: only {', '.join(result.unmet_minimums)}")
    lines += [f"  {name}: {sentence}" for name, sentence in result.violations]
    if not result.ok:
        lines.append(f"  again: {replay_command(result, options)}")
    return lines


def _cluster_lines(result: Result) -> list[str]:
    if not isinstance(result, ClusterResult):
        return []
    return [
        f"  elections     {result.elections}, {result.controllers} of a controller",
        f"  excused       {result.excused} logs lost data on all in-sync replicas",
        *_flush_lines(result),
        *_transaction_lines(result),
        *_client_lines(result),
        *_security_lines(result),
    ]


def _flush_lines(result: ClusterResult) -> list[str]:
    if not result.durable and not result.whole_losses:
        return []
    return [f"  flushed       {result.durable:,} records acknowledged, {result.whole_losses} losses of power of all"]


def _client_lines(result: ClusterResult) -> list[str]:
    if not isinstance(result, ClientResult):
        return []
    return [
        f"  producers     {result.accepted:,} records accepted, {result.failed:,} failed",
        f"  sent again    {result.retried:,} records, {result.splits} batches in halves",
        f"  sequences     restarted {result.epochs} times",
        f"  the group     {result.generations} generations",
    ]


def _security_lines(result: ClusterResult) -> list[str]:
    if not isinstance(result, SecurityResult):
        return []
    return [
        f"  rights        {result.allowed:,} requests allowed, {result.denied:,} denied, {result.doubtful:,} in doubt",
        f"  ACLs          {result.acl_changes:,} changes",
        f"  sessions      {result.logins:,} logins, {result.renewed:,} renewals, {result.expired:,} requests too late",
    ]


def _compaction_lines(result: Result) -> list[str]:
    if not result.written:
        return []
    return [f"  compacted     {result.written:,} records to {result.kept:,}, {result.keys:,} keys deleted"]


def _transaction_lines(result: ClusterResult) -> list[str]:
    if not isinstance(result, TransactionResult):
        return []
    return [
        f"  transactions  {result.commits} committed, {result.aborts} aborted, {result.unsure} unknown",
        f"  offsets       {result.offset_commits} commits outside of transactions, {result.generations} generations",
        f"  coordinators  {result.coordinator_changes} changes, {result.removed:,} of their records compacted away",
    ]


def shrunk_lines(shrunk: Shrunk, options: ClusterOptions) -> list[str]:
    """The smallest failing run that was found: its faults, its violations and its trace."""
    result = shrunk.result
    strikes = tuple(strike.number for strike in result.strikes)
    command = replay_command(result, replace(options, strikes=strikes))
    lines = [f"made smaller in {shrunk.runs} runs: {len(strikes)} faults", f"  {command}"]
    lines += [f"  {strike.at_ns / SECOND:8.3f} s  {strike.kind}" for strike in result.strikes]
    lines += [f"  {name}: {sentence}" for name, sentence in result.violations]
    return [*lines, "what happened:", *shrunk.story]


def coverage_lines(coverage: Coverage, options: Options | ClusterOptions) -> list[str]:
    """A swarm as text."""
    counted = coverage.seeds - len(coverage.not_counted) - len(coverage.failed)
    lines = []
    for result in coverage.failed:
        lines += result_lines(result, options)
    lines += [
        f"seeds         {coverage.seeds}: {counted} clean, {len(coverage.failed)} failed"
        + (f", {len(coverage.not_counted)} not counted" if coverage.not_counted else ""),
        f"simulated     {coverage.simulated_seconds:,.0f} s, {coverage.events:,} events, {_speed_text(coverage)}",
        f"acknowledged  {coverage.acknowledged:,} records, {coverage.read:,} read",
        f"recoveries    {coverage.recoveries:,}",
        *_cluster_totals(coverage, options),
        f"faults        {sum(coverage.faults.values()):,}",
    ]
    lines += [f"  {count:8,}  {kind}" for kind, count in sorted(coverage.faults.items())]
    lines += [f"seed {seed} does not count: only {', '.join(why)}" for seed, why in coverage.not_counted]
    return lines


def _speed_text(coverage: Coverage) -> str:
    return f"{coverage.simulated_seconds / max(coverage.processor_s, 0.001):,.0f} s per second of a processor"


def _cluster_totals(coverage: Coverage, options: Options | ClusterOptions) -> list[str]:
    if not isinstance(options, ClusterOptions):
        return []
    lines = [
        f"elections     {coverage.elections:,}",
        f"excused       {coverage.excused:,} logs",
        f"flushed       {coverage.durable:,} records acknowledged, {coverage.whole_losses:,} losses of power of all",
    ]
    if isinstance(options, ClientOptions):
        lines.append(
            f"producers     {coverage.accepted:,} records accepted, {coverage.failed_records:,} failed,"
            f" {coverage.retried:,} sent again; sequences restarted {coverage.epochs:,} times"
        )
    if isinstance(options, SecurityOptions):
        lines += [
            f"rights        {coverage.allowed:,} requests allowed, {coverage.denied:,} denied",
            f"ACLs          {coverage.acl_changes:,} changes",
            f"sessions      {coverage.renewed:,} renewals, {coverage.expired:,} requests too late",
        ]
    if isinstance(options, TransactionOptions):
        lines += [
            f"transactions  {coverage.commits:,} committed, {coverage.aborts:,} aborted",
            f"offsets       {coverage.offset_commits:,} commits outside of transactions",
            f"coordinators  {coverage.coordinator_changes:,} changes",
        ]
    return lines


def result_value(result: Result) -> dict[str, Value]:
    """One run as a JSON value."""
    return {
        **_cluster_value(result),
        **_transaction_value(result),
        **_client_value(result),
        **_security_value(result),
        **_compaction_value(result),
        "seed": result.seed,
        "ok": result.ok,
        "counts": not result.unmet_minimums,
        "simulated_seconds": result.simulated_ns / SECOND,
        "events": result.events,
        "acknowledged": result.acknowledged,
        "read": result.read,
        "recoveries": result.recoveries,
        "faults": dict(result.faults),
        "violations": [{"property": name, "what": sentence} for name, sentence in result.violations],
        "trace": result.trace_hash,
    }


def _compaction_value(result: Result) -> dict[str, Value]:
    if not result.written:
        return {}
    return {"written": result.written, "kept": result.kept, "keys": result.keys}


def _cluster_value(result: Result) -> dict[str, Value]:
    if not isinstance(result, ClusterResult):
        return {}
    return {
        "elections": result.elections,
        "controllers": result.controllers,
        "excused": result.excused,
        "whole_losses": result.whole_losses,
        "durable": result.durable,
        "strikes": [
            {"number": strike.number, "at_seconds": strike.at_ns / SECOND, "kind": strike.kind}
            for strike in result.strikes
        ],
    }


def _transaction_value(result: Result) -> dict[str, Value]:
    if not isinstance(result, TransactionResult):
        return {}
    return {
        "commits": result.commits,
        "aborts": result.aborts,
        "unsure": result.unsure,
        "offset_commits": result.offset_commits,
        "generations": result.generations,
        "coordinator_changes": result.coordinator_changes,
        "removed": result.removed,
    }


def _security_value(result: Result) -> dict[str, Value]:
    if not isinstance(result, SecurityResult):
        return {}
    return {
        "allowed": result.allowed,
        "denied": result.denied,
        "doubtful": result.doubtful,
        "acl_changes": result.acl_changes,
        "logins": result.logins,
        "renewed": result.renewed,
        "expired": result.expired,
    }


def _client_value(result: Result) -> dict[str, Value]:
    if not isinstance(result, ClientResult):
        return {}
    return {
        "accepted": result.accepted,
        "failed_records": result.failed,
        "retried": result.retried,
        "epochs": result.epochs,
        "splits": result.splits,
        "generations": result.generations,
    }


def coverage_value(coverage: Coverage) -> dict[str, Value]:
    """A swarm as a JSON value."""
    return {
        "ok": coverage.ok,
        "seeds": coverage.seeds,
        "counted": coverage.seeds - len(coverage.not_counted) - len(coverage.failed),
        "simulated_seconds": coverage.simulated_seconds,
        "processor_seconds": coverage.processor_s,
        "events": coverage.events,
        "acknowledged": coverage.acknowledged,
        "read": coverage.read,
        "recoveries": coverage.recoveries,
        "whole_losses": coverage.whole_losses,
        "durable": coverage.durable,
        "commits": coverage.commits,
        "aborts": coverage.aborts,
        "offset_commits": coverage.offset_commits,
        "coordinator_changes": coverage.coordinator_changes,
        "accepted": coverage.accepted,
        "failed_records": coverage.failed_records,
        "retried": coverage.retried,
        "epochs": coverage.epochs,
        "allowed": coverage.allowed,
        "denied": coverage.denied,
        "acl_changes": coverage.acl_changes,
        "renewed": coverage.renewed,
        "expired": coverage.expired,
        "faults": dict(sorted(coverage.faults.items())),
        "failed": [result_value(result) for result in coverage.failed],
        "not_counted": [{"seed": seed, "only": list(why)} for seed, why in coverage.not_counted],
    }


def _fault_counts(faults: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
