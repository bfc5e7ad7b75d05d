"""`./dev test api`: a service of its own is asked what its own document allows, and what it does not, by
schemathesis; then what no generator sends (crooked.py). It fails on any 5xx, undocumented status, content type or
header, and on any reply that its schema does not allow.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import crooked
from stand import NEVER_DONE, Stand

HERE = Path(__file__).parent
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,unsupported_method,allow_header_conformance"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seckill", required=True, help="the binary")
    parser.add_argument("--log", type=Path, required=True, help="where the service's log goes")
    parser.add_argument("--examples", type=int, default=150, help="generated requests for each operation, about")
    parser.add_argument("--seed", type=int, default=7, help="another seed generates other requests")
    parser.add_argument("--at-least", type=int, default=5000, help="fewer requests than this fail")
    options = parser.parse_args()

    began = time.monotonic()
    with Stand(options.seckill, os.environ["TEST_DATABASE_URL"], options.log) as stand:
        state, counts = stand.folder / "state.json", stand.folder / "counts.json"
        state.write_text(json.dumps(stand.state))
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", stand.url + "/docs/openapi.json", "--url", stand.url,
            "--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--workers", "2",
            "--max-examples", str(options.examples), "--seed", str(options.seed),
            "--exclude-operation-id", "lab_start", "--exclude-operation-id", "lab_kill", "--continue-on-failure", "--generation-database", "none", "--warnings", "off",
            "--generation-with-security-parameters", "false", "--suppress-health-check", "all",
            "--request-timeout", "20", "--no-color",
        ]  # fmt: skip
        env = {**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE), "API_STATE": str(state), "API_COUNTS": str(counts)}
        status = subprocess.run(command, env=env, cwd=stand.folder, check=False).returncode
        sent = collections.Counter(json.loads(counts.read_text()) if counts.exists() else {})
        faults = crooked.run(stand, sent)
        survived = stand.alive()

    total, by_status, done = sum(sent.values()), collections.Counter(), set()
    for what, count in sent.items():
        method, path, status_code, *success = what.split()
        by_status[status_code] += count
        if success:
            done.add((method, path))
    print(f"{total} requests in {time.monotonic() - began:.0f} s; by status: {dict(sorted(by_status.items()))}")
    if total < options.at_least:
        faults.append(f"fewer than {options.at_least} requests were sent")
    # Else a fuzzer that is refused everywhere would find nothing and say that all is well.
    faults += [f"{method} {path} never succeeded" for method, path in sorted(stand.operations - NEVER_DONE - done)]
    if not survived:
        faults.append("the service or its Redis ended")
    for fault in faults:
        print(f"FAULT: {fault}")
    print("FAILED" if status or faults else "no fault found")
    return 1 if status or faults else 0


if __name__ == "__main__":
    sys.exit(main())
