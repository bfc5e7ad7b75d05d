"""Schemathesis hooks: add tokens and existing ids to generated requests, and forbid undocumented properties in
responses.

Loaded by schemathesis itself (SCHEMATHESIS_HOOKS). All choices are derived from the generated case, so that a failing
case fails again when it is repeated.
"""

import collections
import json
import os
import threading
import zlib

import schemathesis
from schemathesis.core import NotSet

with open(os.environ["API_STATE"]) as file:
    STATE = json.load(file)

LOCK = threading.Lock()
SENT: collections.Counter = collections.Counter()
IDS = {"shopId": [1, 2, 3], "id": STATE["vouchers"]}


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """Closes the response schemas: an undocumented property is a failure."""

    def close(schema):
        if isinstance(schema, dict):
            if schema.get("type") == "object" and "properties" in schema:
                schema.setdefault("additionalProperties", False)
            for value in schema.values():
                close(value)
        elif isinstance(schema, list):
            for value in schema:
                close(value)

    components = raw_schema["components"]
    close(components["responses"])
    requests = json.dumps([op.get("requestBody") for path in raw_schema["paths"].values() for op in path.values()])
    for name, schema in components["schemas"].items():
        if f"/{name}\"" not in requests and name != "NewVoucher":
            close(schema)
    for path in raw_schema["paths"].values():
        for operation in path.values():
            close(operation["responses"])


def case_hash(case) -> int:
    """A pseudo-random number derived from the case."""
    # The text of a body that is not set contains an address in memory, with which each run would have another number.
    body = "" if isinstance(case.body, NotSet) else repr(case.body)
    parts = (case.method, case.path, case.path_parameters, case.query, body)
    return zlib.crc32(repr(parts).encode("utf-8", "surrogatepass"))


@schemathesis.hook
def before_call(context, case, kwargs):
    """Authenticates most requests, and replaces most ids by existing ones."""
    random = case_hash(case)
    schemes = {name for requirement in case.operation.definition.raw.get("security", []) for name in requirement}
    headers = case.headers if case.headers is not None else {}
    if "authorization" in schemes and "authorization" not in headers:
        if (case.method, case.path) == ("POST", "/user/logout"):
            with LOCK:
                # All cases are alike, so their number decides how each is authenticated.
                random += 64 * len(STATE["sessions"])
                token = STATE["sessions"].pop() if STATE["sessions"] else "0" * 32
        else:
            token = STATE["tokens"][random % len(STATE["tokens"])]
        kind = random // 64 % 16
        if kind != 0:
            headers["authorization"] = "0123" if kind == 1 else ("Bearer " + token if kind == 2 else token)
    if "x-admin-token" in schemes and "x-admin-token" not in headers:
        kind = random // 64 % 16
        if kind != 0:
            headers["x-admin-token"] = "wrong" if kind == 1 else STATE["admin"]
    case.headers = headers
    if random // 1024 % 4 == 0:
        return
    for name, value in (case.path_parameters or {}).items():
        if isinstance(value, int) and not isinstance(value, bool):
            if name == "orderId":
                # A cancelled order cannot be paid, nor a paid one cancelled: each operation gets every second order.
                orders = STATE["orders"][case.path.endswith("/cancel") :: 2]
                token, order = orders[value % len(orders)]
                case.path_parameters[name] = int(order)
                # Mostly as the order's owner.
                if "authorization" in headers and random // 4096 % 8:
                    headers["authorization"] = token
                continue
            known = IDS["shopId"] if case.path.startswith(("/shop/{id}", "/user/{id}")) else IDS[name]
            case.path_parameters[name] = known[value % len(known)]
        elif case.path == "/lab/code/{phone}":
            case.path_parameters[name] = STATE["codes"][random % 9]
    if isinstance(case.body, dict):
        if case.path in ("/user/login", "/lab/login") and isinstance(case.body.get("phone"), str):
            with LOCK:
                # The first nine stay, for GET /lab/code/{phone}.
                if len(STATE["codes"]) > 9:
                    case.body.update(phone=STATE["codes"].pop(), code="123456")
        for name, known in (("shopId", IDS["shopId"]), ("voucherId", IDS["id"])):
            if type(case.body.get(name)) is int:
                case.body[name] = known[case.body[name] % len(known)]
        if (case.method, case.path) == ("PUT", "/shop") and type(case.body.get("id")) is int:
            case.body["id"] = case.body["id"] % 3 + 1


@schemathesis.hook
def after_call(context, case, response):
    """Counts the responses by operation, status and success."""
    with LOCK:
        done = response.status_code < 300 and not response.content.startswith(b'{"success":false')
        SENT[f"{case.method} {case.path} {response.status_code}{' done' * done}"] += 1
        with open(os.environ["API_COUNTS"], "w") as out:
            json.dump(SENT, out)
