"""The service under test: the real binary on a Redis and a database of its own, seeded, with signed-in users and a
sale on every strategy. Leaving the `with` block ends every process that was started.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

ADMIN_TOKEN = "the-fuzzers-admin-token"
DATABASE = "seckill_test_api"
# Users whose sessions stay, and sessions for logouts to end.
USERS, SESSIONS = 40, 1500
# Phone numbers with a sign-in code in Redis, for sign-ins that succeed.
CODES = 1600


class Service:
    """`with Service(binary, database_server, log) as service`: `service.url` answers."""

    def __init__(self, binary: str, server: str, log: Path):
        self.binary, self.server, self.log = binary, urlsplit(server), log
        self.folder = Path(tempfile.mkdtemp(prefix="seckill-api-"))
        self.processes: list[subprocess.Popen] = []
        self.url = ""

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._sql(f"DROP DATABASE IF EXISTS {DATABASE}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self):
        self._sql(f"DROP DATABASE IF EXISTS {DATABASE}; CREATE DATABASE {DATABASE} DEFAULT CHARACTER SET utf8mb4")
        self.redis = free_port()
        self._spawn("redis-server", "--bind", "127.0.0.1", "--port", str(self.redis), "--save", "", "--dir", str(self.folder))
        wait_for("Redis", lambda: self.redis_cli("PING").strip() == "PONG")
        database = self.server._replace(path=f"/{DATABASE}", query="").geturl()
        self.env = {
            "PATH": os.environ["PATH"],
            # For 30 s after Redis was started, a look-up of an order that is found nowhere is answered 503. That is right, but
            # would count as a fault here.
            "STREAM_UNSURE_MS": "1",
            "DATABASE_URL": database,
            "REDIS_URL": f"redis://127.0.0.1:{self.redis}/",
            "ADMIN_TOKEN": ADMIN_TOKEN,
            "UNLIMITED_CLIENTS": "127.0.0.0/8",
            # So that the request id of a failure leads to a line of the log.
            "RUST_LOG": "info",
        }
        subprocess.run([self.binary, "migrate"], env=self.env, check=True, stderr=subprocess.DEVNULL)
        tokens = self.folder / "tokens"
        seed = [self.binary, "seed", "--tokens", str(USERS + SESSIONS), "--tokens-file", str(tokens)]
        subprocess.run(seed, env=self.env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with self.log.open("w") as log:
            # With the lab, so that every documented route exists.
            self._spawn(self.binary, "serve", "--lab", "--bind", "127.0.0.1:0", stderr=log, env=self.env)
        self.url = wait_for("the service", self._address)
        self.document = self._get("/docs/openapi.json")
        paths = self.document["paths"].items()
        self.operations = {(method.upper(), path) for path, operations in paths for method in operations}
        all_tokens = tokens.read_text().split()
        sale = self.document["components"]["schemas"]["NewSeckillVoucher"]["allOf"][1]
        strategies = sale["properties"]["strategy"]["oneOf"][1]["enum"]
        self.state = {
            "admin": ADMIN_TOKEN,
            "tokens": all_tokens[:USERS],
            "sessions": all_tokens[USERS:],
            "vouchers": [2] + [self._publish(strategy, stock) for strategy in strategies for stock in (1, 10_000)],
            "codes": [f"1371234{n:04}" for n in range(CODES)],
        }
        # As if the service had sent these codes.
        commands = "".join(f"SET login:code:{phone} 123456 EX 3600\n" for phone in self.state["codes"])
        self.redis_cli(stdin=commands)

        self.state["orders"] = [
            [token, order] for token in self.state["tokens"] for voucher in self.state["vouchers"][-8::2] if (order := self._buy(token, voucher))
        ]

    def _buy(self, token: str, voucher: int) -> str | None:
        return self._post(f"/voucher-order/seckill/{voucher}", {"authorization": token}).get("orderId")

    def _publish(self, strategy: str, stock: int) -> int:
        sale = {
            "shopId": 1, "title": strategy, "payValue": 100, "actualValue": 1000, "stock": stock,
            "beginTime": "2022-01-01T00:00:00", "endTime": "2037-01-01T00:00:00", "strategy": strategy,
        }  # fmt: skip
        return self._post("/voucher/seckill", {"x-admin-token": ADMIN_TOKEN}, sale)["data"]

    def _post(self, path: str, headers: dict[str, str], body=None):
        headers = {"content-type": "application/json", **headers}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode() if body else b"", headers)
        with urllib.request.urlopen(request, timeout=20) as reply:
            return json.load(reply)

    def _get(self, path: str):
        with urllib.request.urlopen(self.url + path, timeout=20) as reply:
            return json.load(reply)

    def _address(self):
        found = re.search(r"serving .*?127\.0\.0\.1:(\d+)", re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text()))
        return found and f"http://127.0.0.1:{found[1]}"

    def alive(self) -> bool:
        """Whether every process still runs."""
        return all(process.poll() is None for process in self.processes)

    def redis_cli(self, *command: str, stdin: str | None = None) -> str:
        """What redis-cli prints; nothing where Redis does not answer."""
        run = ["redis-cli", "-p", str(self.redis), *command]
        return subprocess.run(run, input=stdin, capture_output=True, text=True, check=False).stdout

    def _spawn(self, *command: str, stderr=subprocess.DEVNULL, env=None):
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
        self.processes.append(subprocess.Popen(command, stderr=stderr, env=env, **quiet))

    def _sql(self, text: str):
        where = ["-h", self.server.hostname or "127.0.0.1", "-P", str(self.server.port or 3306), "-u", self.server.username or "root"]
        env = {**os.environ, "MYSQL_PWD": self.server.password or ""}
        subprocess.run(["mariadb", *where, "-e", text], env=env, check=True)


def free_port() -> int:
    """A port that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what: str, condition, limit: float = 40.0):
    """The first true value of `condition`; ends the program after `limit` seconds."""
    deadline = time.monotonic() + limit
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"time-out after {limit:.0f} s, waiting for {what}")
        time.sleep(0.02)
    return value
