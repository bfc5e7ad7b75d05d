#!/usr/bin/env python3
"""Writes recordings into web/learn-records.js, which the page /learn shows, from runs of the side-by-side comparison and from
tests/it/foreign_delete.rs and memory_queue.rs.

usage: scripts/record_learn.py RUN.json...    the raw data of runs: ./dev load compare --json RUN.json, or the lab's download

Stories are grouped by strategy, kind, number of nodes, and whether the unique index alone refused the second order (as after
the lab cut leases short); the first story of each group is taken. It replaces that group's recording, and all others stay. A story in which a strategy held is left out if another run broke
that strategy on as many nodes. Make the runs with at most three tries a buyer, so that the stories show every try.
The nodes of a run get the names that every page gives them: 8081, 8082.
"""

import json
import sys
from pathlib import Path

FILE = Path(__file__).parent.parent / "web" / "learn-records.js"
HEAD = "'use strict';\n// Recorded on real servers; written by scripts/record_learn.py, see docs/LAB-AND-LEARN.md.\nconst Records = [\n"


def brief(value):
    """Times to a microsecond."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {key: brief(one) for key, one in value.items()}
    return [brief(one) for one in value] if isinstance(value, list) else value


def group(record):
    steps = [step for request in record["requests"] for step in request["steps"]]
    nodes = len({request["node"] for request in record["requests"]})
    index = any(step.get("outcome") == "index-refused" for step in steps)
    return record["strategy"], record["kind"], nodes, index


def kept():
    """The recordings that are there."""
    lines = FILE.read_text().splitlines() if FILE.exists() else []
    return [json.loads(line.rstrip(",")) for line in lines if line.startswith("  {")]


def recorded(file):
    """The stories of a run."""
    lanes = json.loads(Path(file).read_text())["lanes"]
    stories = [(lane["strategy"], story) for lane in lanes for story in lane["stories"]]
    names = sorted({request["node"] for _, story in stories for request in story["requests"]})
    for strategy, story in stories:
        for request in story["requests"]:
            request["node"] = f"127.0.0.1:{8081 + names.index(request['node'])}"
        yield brief({"strategy": strategy, "kind": story["kind"], "requests": story["requests"]})


def main(files):
    new = {}
    for record in (record for file in files for record in recorded(file)):
        new.setdefault(group(record), record)
    found = {group(record): record for record in kept()} | new
    broken = {(strategy, nodes) for strategy, kind, nodes, *_ in found if kind != "held"}
    found = {key: record for key, record in found.items() if key[1] != "held" or (key[0], key[2]) not in broken}
    lines = [f"  {json.dumps(record, separators=(',', ':'))},\n" for _, record in sorted(found.items())]
    FILE.write_text(HEAD + "".join(lines) + "];\n")
    for strategy, kind, nodes, index in sorted(new):
        print(f"{strategy}: {kind}, {nodes} node(s){', refused by the index alone' if index else ''}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
