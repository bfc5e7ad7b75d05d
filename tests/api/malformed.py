"""Malformed requests, which a generator of valid HTTP does not send: invalid UTF-8, repeated parameters, numbers
out of range, deep nesting, broken escapes. Each is written to a socket as it is, to every operation with such an
input, and the response is validated against the API's document.
"""

import json
import socket
from urllib.parse import urlsplit

import jsonschema_rs

# In place of a value in a JSON body.
JSON_VALUES = [
    b"1e400", b"-1e400", b"1e308", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775809",
    b"18446744073709551615", b"123456789012345678901234567890", b"-1", b"0", b"-0", b"1.5", b"1.0", b"1E2", b"NaN", b"Infinity",
    b"null", b"true", b"[]", b"{}", b'""', b'"\\u0000"', b'"\\ud800"', b'"\\udfff\\ud800"', b'"\xff\xfe"', b'"\xed\xa0\x80"',
    b'"\\x"', b'"' + b"a" * 5000 + b'"', b'"' + "長".encode() * 300 + b'"', '"💥"'.encode(), b'"%00"', b'"1"', b'"\' OR 1=1 -- "',
    b'"2026-02-30T00:00:00"', b'"2026-01-01"', b'"0000-00-00T00:00:00"', b'"-262144-01-01T00:00:00"', b'"+262143-12-31T23:59:59"',
    b'"2026-01-01T24:00:00"', b'"2026-01-01T23:59:60"', b'"2026-01-01T00:00:00.999999999"', b'"2026-01-01T00:00:00Z"', b'"9999-12-31T23:59:59"',
]  # fmt: skip
# In place of a whole body.
BODIES = [
    b"", b"\x00", b"\xff", b"{", b"}", b"[" * 60_000, b'{"a":' * 20_000, b"null", b"1", b'"x"', b"[]", b"{}", b"\xef\xbb\xbf{}",
    b'{"id":1,"id":2}', b'{"voucherId":1,"voucherId":2}', b'{"add":1}{"add":2}', b" " * 70_000, b'{"x":"' + b"a" * 70_000 + b'"}',
]  # fmt: skip
# In place of a parameter in a path, a query or a header.
PARAMETERS = [
    "0", "-1", "-0", "+1", "1.0", "1e3", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1" * 400, "NaN", "inf",
    "-inf", "1e400", "%00", "%ff%fe", "%ed%a0%80", "%", "%2", "%zz", "%F0%9F%92%A5", "%25", "%25%5f!", "a" * 6000, "'", "..", "%2e%2e%2f", "1%201",
    "%E9%95%B7" * 200, "", "null", "true", "[]", "4294967295", "4294967296", "%D9%A1",
]  # fmt: skip


class Client:
    """Sends raw requests and validates the responses."""

    def __init__(self, service, sent):
        self.service, self.sent = service, sent
        self.failures: dict[tuple, str] = {}
        self.address = urlsplit(service.url).hostname, urlsplit(service.url).port
        # `$ref` is resolved against the whole document.
        registry = jsonschema_rs.Registry([("urn:api", {"components": service.document["components"]})])
        self.validator = lambda schema: jsonschema_rs.Draft202012Validator(
            json.loads(json.dumps(schema).replace('"#/components', '"urn:api#/components')), registry=registry
        )

    def send(self, method: str, path: str, target: bytes, headers: dict[str, bytes], body: bytes = b""):
        """One request on a connection of its own."""
        lines = [f"{method} ".encode() + target + b" HTTP/1.1", b"host: x", b"connection: close"]
        lines += [name.encode() + b": " + value for name, value in headers.items()]
        lines += [b"content-length: %d" % len(body), b"", b""] if body or "content-type" in headers else [b"", b""]
        description = f"{method} {target[:100]!r} {headers!r} {body[:100]!r}"
        try:
            with socket.create_connection(self.address, timeout=20) as connection:
                try:
                    connection.sendall(b"\r\n".join(lines) + body)
                except (ConnectionError, BrokenPipeError):
                    pass  # Refused before the end of the body: the response is there already.
                response = b""
                while chunk := connection.recv(65536):
                    response += chunk
        except OSError as error:
            self.record(method, path, description, f"no response ({error})")
            return
        head, _, content = response.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 "):
            self.record(method, path, description, f"not HTTP: {response[:100]!r}")
            return
        status = head[9:12].decode()
        done = " done" if status < "300" and not content.startswith(b'{"success":false') else ""
        self.sent[f"{method} {path} {status}{done}"] += 1
        problem = self.validate(method, path, status, head.lower(), content)
        if problem:
            self.record(method, path, description, f"{status}: {problem}", content[:200])

    def record(self, method: str, path: str, description: str, problem: str, content: bytes = b""):
        """Keeps the first failure of each kind."""
        self.failures.setdefault((method, path, problem), f"{description}: {problem} {content!r}")

    def validate(self, method: str, path: str, status: str, head: bytes, content: bytes) -> str | None:
        """What is wrong with a response; None if nothing is."""
        if status in ("400", "414", "431") and not content and b"x-request-id" not in head:
            return None  # It was not HTTP, and never reached a route.
        if status >= "500":
            return "a server error"
        if b"\r\nx-request-id: " not in head:
            return "no x-request-id"
        if status in ("404", "405"):
            return None if b'"code":"' in content else "no envelope"  # The input changed the path.
        response = self.service.document["paths"][path][method.lower()]["responses"].get(status)
        if response is None:
            return "an undocumented status"
        if "$ref" in response:
            response = self.service.document["components"]["responses"][response["$ref"].rsplit("/", 1)[1]]
        kind, media = next(iter(response["content"].items()))
        if b"\r\ncontent-type: " + kind.encode() not in head:
            return f"the content type is not {kind}"
        if kind != "application/json":
            return None
        try:
            error = next(self.validator(media["schema"]).iter_errors(json.loads(content)), None)
        except ValueError as error:
            return f"the body is not JSON ({error})"
        return error and error.message


def run(service, sent) -> list[str]:
    """Sends all requests; returns the failures."""
    client = Client(service, sent)
    for path, operations in service.document["paths"].items():
        for method, operation in operations.items():
            method = method.upper()
            if (method, path) not in service.operations or path == "/user/logout":
                continue  # Logout has no input, and would end the session that the other requests use.
            headers = {}
            for requirement in operation.get("security", []):
                for scheme in requirement:
                    headers[scheme] = (service.state["tokens"][0] if scheme == "authorization" else service.state["admin"]).encode()
            parameters = operation.get("parameters", [])
            queried = [p for p in parameters if p["in"] == "query"]
            query = "&".join(f"{p['name']}={p['example']}" for p in queried)
            plain = path
            for parameter in parameters:
                if parameter["in"] == "path":
                    plain = plain.replace("{" + parameter["name"] + "}", str(parameter["example"]))

            for parameter in parameters:
                name = parameter["name"]
                for text in PARAMETERS:
                    if parameter["in"] == "path":
                        client.send(method, path, path.replace("{" + name + "}", text).encode(), headers)
                    elif parameter["in"] == "query":
                        rest = "&".join(f"{p['name']}={p['example']}" for p in queried if p is not parameter)
                        client.send(method, path, f"{plain}?{rest}&{name}={text}".encode(), headers)
                        client.send(method, path, f"{plain}?{query}&{name}={text}".encode(), headers)
                    else:
                        client.send(method, path, plain.encode(), {**headers, name: text[:200].encode("utf-8")})
            for name in (*headers, "x-request-id", "x-forwarded-for", "x-lab-trace", "range", "expect"):
                for value in (b"", b"\xff\xfe", b"a" * 8000, b"Bearer", b"bytes=0-0", b"127.0.0.1, ::, 1.2.3.4.5"):
                    client.send(method, path, f"{plain}?{query}".encode(), {**headers, name: value})

            for kind, media in operation.get("requestBody", {}).get("content", {}).items():
                typed = {**headers, "content-type": kind.encode()}
                for body in BODIES:
                    client.send(method, path, plain.encode(), typed, body)
                for other in (b"text/plain", b"\xff", b"application/json; charset=utf-16", b"multipart/form-data"):
                    client.send(method, path, plain.encode(), {**headers, "content-type": other}, b'{"a":1}')
                if kind != "application/json":
                    for text in PARAMETERS:
                        client.send(method, path, plain.encode(), typed, f"phone={text}".encode())
                    continue
                valid = example(service.document, media["schema"])
                for name in valid:
                    for value in JSON_VALUES:
                        fields = [json.dumps(k).encode() + b":" + (value if k == name else json.dumps(v).encode()) for k, v in valid.items()]
                        client.send(method, path, plain.encode(), typed, b"{" + b",".join(fields) + b"}")
    return list(client.failures.values())


def example(document, schema) -> dict:
    """A valid body, from the examples of its properties."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    body = {}
    for part in schema.get("allOf", []):
        body |= example(document, part)
    for name, value in schema.get("properties", {}).items():
        body[name] = value.get("example", "reentrant-lock" if name == "strategy" else None)
    return body
