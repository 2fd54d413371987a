"""The report's figures as SVG files, each with its numbers in a CSV file beside it.  Needs matplotlib."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from benchmarks import plots
from benchmarks.measures import percentile
from benchmarks.report import tables
from benchmarks.report.references import OFFICIAL_PIPELINE_MS, OFFICIAL_SOURCE
from benchmarks.report.state import State, csv_text, write_text

BINS = 150
LEGEND = dict(fontsize="x-small", loc="upper left", bbox_to_anchor=(1, 1))  # beside the axes, over no line
SHARES = tuple(range(0, 101, 2))


@dataclasses.dataclass(frozen=True)
class Figure:
    """name: of folder/figures/NAME.svg and .csv."""

    name: str
    title: str
    path: Path
    data: Path


class Album:
    """Draws into folder/figures; `figures` in the order in which they were drawn."""

    def __init__(self, state: State, records: list[dict]):
        import matplotlib

        matplotlib.use("svg")  # no display needed
        matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "report", "font.size": 9})  # text stays text
        self.state, self.records, self.figures = state, records, []

    @contextlib.contextmanager
    def draw(self, name: str, title: str, data: list[dict], panels: int = 1, height: float = 2.6):
        """Gives the axes; saved when the block ends, with `data` beside it."""
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(
            panels, 1, sharex=panels > 1, figsize=(8, height * panels), layout="constrained", squeeze=False
        )
        yield axes[:, 0]
        for axis in axes[:, 0]:
            axis.grid(alpha=0.3)
        path = self.state.folder / "figures" / f"{name}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.suptitle(title)
        figure.savefig(path, metadata={"Date": None})
        pyplot.close(figure)
        write_text(path.with_suffix(".csv"), csv_text(data))
        self.figures.append(Figure(name, title, path, path.with_suffix(".csv")))

    def draw_all(self, ranges: tables.Table, tpot_ms: float) -> list[Figure]:
        self.throughput()
        for pair in tables.pairs(self.records):
            self.course(pair)
            self.ranges(pair, ranges)
            self.latency(pair)
        self.compression()
        self.operations()
        self.online(tpot_ms)
        self.workloads()
        return self.figures

    def offline(self, pair) -> list[dict]:
        return [r for r in tables.offline_rows(self.records, pair) if r["decode_steps"]]

    def throughput(self):
        """Tokens a second of every mode, by workload."""
        found = tables.pairs(self.records)
        rows = [
            dict(workload=f"{pair[0]}\n{pair[1]}", mode=r["mode"], rate=r["rate"], half_rate=r["half_rate"])
            for pair in found
            for r in self.offline(pair)
        ]
        if not rows:
            return
        names, modes = list(dict.fromkeys(r["workload"] for r in rows)), list(dict.fromkeys(r["mode"] for r in rows))
        with self.draw("throughput", "Output tokens a second", rows, panels=2) as axes:
            for axis, key, label in zip(axes, ("rate", "half_rate"), ("tokens/s, whole run", "tokens/s, 2nd half")):
                for n, mode in enumerate(modes):
                    mine = {r["workload"]: r[key] for r in rows if r["mode"] == mode and r[key] is not None}
                    axis.bar(
                        [i + 0.8 * n / len(modes) for i, name in enumerate(names) if name in mine],
                        [mine[n] for n in names if n in mine],
                        0.8 / len(modes),
                        label=mode,
                    )
                axis.set_ylabel(label)
                axis.set_xticks([i + 0.4 - 0.4 / len(modes) for i in range(len(names))], names)
            axes[0].legend(**LEGEND)

    def course(self, pair):
        """Running, waiting, tokens a second and pool over time."""
        panels = (
            ("running", "requests running"),
            ("waiting", "requests waiting"),
            ("rate", "output tokens/s"),
            ("usage", "share of the pool"),
        )
        curves, data = {}, []
        for r in self.offline(pair):
            steps = self.state.rows(r["unit"], "steps")
            curves[r["mode"]] = {key: plots.smooth(steps, key, BINS) for key, _ in panels}
            times = curves[r["mode"]]["running"][0]
            data += [
                dict(mode=r["mode"], time=times[n], **{key: curves[r["mode"]][key][1][n] for key, _ in panels})
                for n in range(len(times))
            ]
        if not curves:
            return
        with self.draw(
            f"course-{tables.file_of(pair)}", f"{tables.title_of(pair)}: over time", data, panels=4, height=1.9
        ) as axes:
            for axis, (key, label) in zip(axes, panels):
                for mode, curve in curves.items():
                    axis.plot(*curve[key], label=mode, linewidth=1.4)
                axis.set_ylabel(label)
                axis.set_ylim(bottom=0)
            axes[0].legend(**LEGEND)
            axes[-1].set_xlabel("time (s)")

    def ranges(self, pair, table: tables.Table):
        """Time of a step, and share of steps, by requests running."""
        rows = [r for r in table.raw() if (r["workload"], r["arrivals"]) == pair]
        if not rows:
            return
        spans, modes = (
            list(dict.fromkeys((r["low"], r["high"]) for r in rows)),
            list(dict.fromkeys(r["mode"] for r in rows)),
        )
        with self.draw(
            f"ranges-{tables.file_of(pair)}", f"{tables.title_of(pair)}: steps by requests running", rows, panels=2
        ) as axes:
            for n, mode in enumerate(modes):
                mine = [next(r for r in rows if r["mode"] == mode and r["low"] == low) for low, _ in spans]
                where = [i + 0.8 * n / len(modes) for i in range(len(spans))]
                timed = [(x, r["step_p50_ms"]) for x, r in zip(where, mine) if r["step_p50_ms"] is not None]
                axes[0].bar([x for x, _ in timed], [y for _, y in timed], 0.8 / len(modes), label=mode)
                axes[1].bar(where, [r["share"] for r in mine], 0.8 / len(modes), label=mode)
            axes[0].set_ylabel("step, median ms")
            axes[1].set_ylabel("share of steps")
            axes[0].legend(**LEGEND)
            axes[1].set_xticks(
                [i + 0.4 - 0.4 / len(modes) for i in range(len(spans))], [f"{low:.0f}-{high:.0f}" for low, high in spans]
            )
            axes[1].set_xlabel("requests running")

    def latency(self, pair):
        """Distribution of TTFT and TPOT over requests."""
        data = []
        for r in self.offline(pair):
            rows = self.state.rows(r["unit"], "requests")
            ttft = [q["first"] - q["sent"] for q in rows if q["first"] is not None]
            tpot = [1000 * (q["last"] - q["first"]) / (q["tokens"] - 1) for q in rows if q["tokens"] > 1]
            data += [
                dict(mode=r["mode"], share=s / 100, ttft_s=percentile(ttft, s), tpot_ms=percentile(tpot, s))
                for s in SHARES
                if ttft and tpot
            ]
        if not data:
            return
        with self.draw(
            f"latency-{tables.file_of(pair)}", f"{tables.title_of(pair)}: share of requests within a time", data, panels=2
        ) as axes:
            for axis, key, label in zip(axes, ("ttft_s", "tpot_ms"), ("TTFT (s)", "TPOT (ms)")):
                for mode in dict.fromkeys(r["mode"] for r in data):
                    mine = [r for r in data if r["mode"] == mode]
                    axis.plot([r["share"] for r in mine], [r[key] for r in mine], label=mode)
                axis.set_ylabel(label)
                axis.set_ylim(bottom=0)
            axes[0].legend(**LEGEND)
            axes[1].set_xlabel("share of requests")

    def compression(self):
        """Seconds of compressing and of all else, by mode."""
        rows = [
            dict(run=f"{r['workload']}\n{r['mode']}", compressing=r["compression_seconds"], other=r["other_seconds"])
            for r in tables.compression(self.records).rows
        ]
        if not rows:
            return
        with self.draw("compression", "Compressing against all other time", rows, height=max(2.6, 0.6 * len(rows) + 1)) as (
            axis,
        ):
            names = [r["run"] for r in rows]
            axis.barh(names, [r["other"] for r in rows], label="decode, prefill, waiting")
            axis.barh(names, [r["compressing"] for r in rows], left=[r["other"] for r in rows], label="compressing")
            axis.set_xlabel("seconds")
            axis.legend(**LEGEND)

    def operations(self):
        """Milliseconds of each operation, stacked, by requests compressed together."""
        table = tables.operations_table(self.records)
        if table is None:
            return
        rows = [r for r in table.raw() if r["share"] is not None]
        whole = {r["requests"]: r["ms"] for r in table.raw() if r["share"] is None}
        names, groups = list(dict.fromkeys(r["operation"] for r in rows)), list(dict.fromkeys(r["requests"] for r in rows))
        with self.draw("operations", "A compression, operation by operation", table.raw(), height=3.4) as (axis,):
            base = [0.0] * len(groups)
            for name in names:
                ms = [sum(r["ms"] for r in rows if r["operation"] == name and r["requests"] == g) for g in groups]
                axis.bar(range(len(groups)), ms, 0.5, bottom=base, label=name)
                base = [a + b for a, b in zip(base, ms)]
            known = [i for i, g in enumerate(groups) if g in whole]
            axis.hlines(
                [whole[groups[i]] for i in known],
                [i - 0.35 for i in known],
                [i + 0.35 for i in known],
                colors="black",
                label="the pipeline as one",
            )
            if "Qwen3-8B" in table.note:  # the official figures are of these shapes
                for i, g in enumerate(groups):
                    if g in OFFICIAL_PIPELINE_MS:
                        axis.hlines(
                            OFFICIAL_PIPELINE_MS[g],
                            i - 0.35,
                            i + 0.35,
                            colors="grey",
                            linestyles="dashed",
                            label=OFFICIAL_SOURCE if i == 0 else None,
                        )
                axis.set_yscale("log")
            axis.set_xticks(range(len(groups)), [f"{g:.0f}" for g in groups])
            axis.set_xlabel("requests compressed together")
            axis.set_ylabel("ms a request")
            axis.legend(**LEGEND)

    def online(self, tpot_ms: float):
        """What happens as the request rate rises."""
        rows = tables.online_table(self.records, self.state, tpot_ms).raw()
        if not rows:
            return
        panels = (
            ("output_throughput", "tokens/s"),
            ("median_tpot_ms", "TPOT p50 (ms)"),
            ("p99_ttft_ms", "TTFT p99 (ms)"),
            ("goodput", "good requests/s"),
        )
        with self.draw("online", f"Online; good: at most {tpot_ms:g} ms a token", rows, panels=4, height=1.9) as axes:
            axes[1].axhline(tpot_ms, color="grey", linestyle="dashed")
            for axis, (key, label) in zip(axes, panels):
                for mode in dict.fromkeys(r["mode"] for r in rows):
                    mine = [r for r in rows if r["mode"] == mode]
                    axis.plot([r["request_rate"] for r in mine], [r[key] for r in mine], marker="o", label=mode)
                axis.set_ylabel(label)
                axis.set_ylim(bottom=0)
            axes[0].legend(**LEGEND)
            axes[-1].set_xlabel("requests a second")

    def workloads(self):
        """Output lengths that were asked for."""
        data = []
        for workload in dict.fromkeys(w for w, _ in tables.pairs(self.records)):
            record = next(r for r in self.records if r.get("workload") == workload and r["kind"] == "offline")
            wanted = [q["wanted"] for q in self.state.rows(record["unit"], "requests")]
            data += [dict(workload=workload, share=s / 100, output_tokens=percentile(wanted, s)) for s in SHARES]
        if not data:
            return
        with self.draw("lengths", "Output lengths of the workloads", data) as (axis,):
            for workload in dict.fromkeys(r["workload"] for r in data):
                mine = [r for r in data if r["workload"] == workload]
                axis.plot([r["share"] for r in mine], [r["output_tokens"] for r in mine], label=workload)
            axis.set_xlabel("share of requests")
            axis.set_ylabel("output tokens")
            axis.set_ylim(bottom=0)
            axis.legend(**LEGEND)
