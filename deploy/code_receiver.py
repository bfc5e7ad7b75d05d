# A receiver of sign-in codes (docs/OPERATIONS.md, "Sign-in codes"), with Python alone. It checks the signature, refuses
# requests older than five minutes, and sends nothing for those it has seen.
#
#   CODE_WEBHOOK_SECRET=... python3 deploy/code_receiver.py          # PORT: 8090
#   seckill serve --code-webhook-url http://127.0.0.1:8090/     # with the same secret
import base64, hashlib, hmac, http.server, json, os, time

key = base64.b64decode(os.environ["CODE_WEBHOOK_SECRET"].removeprefix("whsec_"))
seen = set()  # of ids; a real receiver forgets them after five minutes


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        id, at, given = (self.headers.get("webhook-" + name, "") for name in ("id", "timestamp", "signature"))
        mac = hmac.new(key, f"{id}.{at}.".encode() + body, hashlib.sha256).digest()
        if not hmac.compare_digest("v1," + base64.b64encode(mac).decode(), given) or abs(time.time() - int(at)) > 300:
            return self.send_error(401)
        if id not in seen:
            message = json.loads(body)
            # Call your provider here. If it fails and has sent nothing: return self.send_error(503)
            print(f"To {message['phone']}: your code is {message['code']}", flush=True)
            seen.add(id)
        self.send_response(204)
        self.end_headers()


http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ.get("PORT", 8090))), Receiver).serve_forever()
