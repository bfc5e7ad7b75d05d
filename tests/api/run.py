"""`./dev test api`: fuzzes a service of its own by its own API document. Schemathesis generates valid and invalid
requests; malformed.py adds what no generator sends. Fails on any 5xx, undocumented status, content type or header, and
on any response that violates its schema.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import malformed
from service import Service

HERE = Path(__file__).parent
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,unsupported_method,allow_header_conformance"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seckill", required=True, help="the service's binary")
    parser.add_argument("--database", required=True, help="the address of a database server")
    parser.add_argument("--log", type=Path, required=True, help="file for the service's log")
    parser.add_argument("--examples", type=int, default=150, help="generated requests per operation, about")
    parser.add_argument("--seed", type=int, default=7, help="another seed generates other requests")
    parser.add_argument("--at-least", type=int, default=5000, help="fail if fewer requests were sent")
    options = parser.parse_args()

    began = time.monotonic()
    with Service(options.seckill, options.database, options.log) as service:
        state, counts = service.folder / "state.json", service.folder / "counts.json"
        state.write_text(json.dumps(service.state))
        command = [
            sys.executable, "-m", "schemathesis.cli", "run", service.url + "/docs/openapi.json", "--url", service.url,
            "--checks", CHECKS, "--phases", "examples,coverage,fuzzing", "--workers", "2",
            "--max-examples", str(options.examples), "--seed", str(options.seed),
            "--continue-on-failure", "--generation-database", "none", "--warnings", "off",
            "--generation-with-security-parameters", "false", "--suppress-health-check", "all",
            "--request-timeout", "20", "--no-color",
        ]  # fmt: skip
        env = {**os.environ, "SCHEMATHESIS_HOOKS": "schemathesis_hooks", "PYTHONPATH": str(HERE), "API_STATE": str(state), "API_COUNTS": str(counts)}
        status = subprocess.run(command, env=env, cwd=service.folder, check=False).returncode
        sent = collections.Counter(json.loads(counts.read_text()) if counts.exists() else {})
        failures = malformed.run(service, sent)
        survived = service.alive()

    total, by_status, done = sum(sent.values()), collections.Counter(), set()
    for what, count in sent.items():
        method, path, status_code, *success = what.split()
        by_status[status_code] += count
        if success:
            done.add((method, path))
    print(f"{total} requests in {time.monotonic() - began:.0f} s; by status: {dict(sorted(by_status.items()))}")
    if total < options.at_least:
        failures.append(f"fewer than {options.at_least} requests were sent")
    # Otherwise a fuzzer whose every request is refused would pass.
    failures += [f"{method} {path} never succeeded" for method, path in sorted(service.operations - done)]
    if not survived:
        failures.append("the service or its Redis ended during the test")
    for failure in failures:
        print(f"FAILURE: {failure}")
    print("FAILED" if status or failures else "passed")
    return 1 if status or failures else 0


if __name__ == "__main__":
    sys.exit(main())
