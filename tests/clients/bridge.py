"""Lets a client that speaks streamable HTTP talk to a server that speaks stdio: for the conformance suite, and for nothing else.

    tests/clients/bridge.py PROGRAM HOME

Prints its URL. Each session has a process of its own; what the server says before an answer comes before it in the stream.
"""

import json
import os
import subprocess
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PROGRAM, HOME = sys.argv[1], sys.argv[2]
ANSWER_SECONDS = 180
SESSIONS = {}


class Session:
    def __init__(self):
        environment = os.environ | {"PGSANDBOX_HOME": HOME}
        self.process = subprocess.Popen([PROGRAM, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
        self.heard, self.condition = [], threading.Condition()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            with self.condition:
                self.heard.append(json.loads(line))
                self.condition.notify_all()

    def send(self, message):
        with self.condition:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def answer(self, asked):
        """Returns what was heard up to the answer, the answer included."""
        def at():
            of = [n for n, m in enumerate(self.heard) if m.get("id") == asked and "method" not in m]
            return of[0] if of else None
        with self.condition:
            self.condition.wait_for(lambda: at() is not None, ANSWER_SECONDS)
            end = at()
            heard = self.heard[: end + 1] if end is not None else []
            del self.heard[: len(heard)]
            return heard


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def reply(self, status, body=b"", kind="application/json", session=None):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if session:
            self.send_header("Mcp-Session-Id", session)
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(405)

    def do_DELETE(self):
        session = SESSIONS.pop(self.headers.get("Mcp-Session-Id"), None)
        if session:
            session.process.stdin.close()
        self.reply(200 if session else 404)

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.headers.get("Mcp-Session-Id")
        if message.get("method") == "initialize":
            name = str(uuid.uuid4())
            SESSIONS[name] = Session()
        session = SESSIONS.get(name)
        if session is None:
            return self.reply(404)
        session.send(message)
        if "id" not in message or "method" not in message:
            return self.reply(202)
        heard = session.answer(message["id"])
        body = "".join(f"event: message\ndata: {json.dumps(m)}\n\n" for m in heard)
        self.reply(200, body.encode(), "text/event-stream", name)

    def log_message(self, *_):
        pass


class Server(ThreadingHTTPServer):
    def handle_error(self, *_):
        """Says nothing of a client that went away."""


server = Server(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}/mcp", flush=True)
server.serve_forever()
