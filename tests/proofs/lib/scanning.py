"""Words that may be nowhere, the forms they could take, and the places to look for them.

A planted word is random letters and digits, so it survives URL encoding and JSON escapes as it is; Base64 and hex are
looked for beside it, at every alignment.
"""

import base64
import json
import os
import random
import string
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

# How every planted word begins: where none of its forms is, no word is.
MARK = "zqsecret"
# Letters and digits of a planted word: no chance of another's.
WORD_LENGTH = 20
# What is left in /tmp by a program is small; the homes of other proofs are not.
LEFT_BYTES_MAX = 1 << 20


def word(kind):
    """Returns a fresh word; its letters after the mark tell a person what it was planted as."""
    letters = string.ascii_letters + string.digits
    kind = "".join(c for c in kind if c in letters)[:6]
    return MARK + kind + "".join(random.SystemRandom().choice(letters) for _ in range(WORD_LENGTH))


def forms(planted):
    """Returns the forms in which a word is found, by name."""
    raw = planted.encode()
    found = {"plain": [raw], "hex": [raw.hex().encode(), raw.hex().upper().encode()]}
    # Of an encoding at another alignment the ends depend on what stands beside; the middle does not.
    middles = [base64.b64encode(b"\0" * shift + raw)[(0, 4, 4)[shift]:] for shift in range(3)]
    whole = [(len(raw) // 3, (len(raw) - 2) // 3, (len(raw) - 1) // 3)[shift] * 4 for shift in range(3)]
    found["base64"] = [middle[:length] for middle, length in zip(middles, whole)]
    found["base64url"] = [middle.translate(bytes.maketrans(b"+/", b"-_")) for middle in found["base64"]]
    found["UTF-16"] = [planted.encode("utf-16-le")]
    return found


MARKS = [pattern for patterns in forms(MARK).values() for pattern in patterns]


class Scan:
    """What was planted, where it was looked for, and what was found."""

    def __init__(self):
        self.planted = {}
        # Secrets that the program has made have no mark.
        self.unmarked = set()
        self.looked = {}
        self.found = []

    def plant(self, kind):
        """Returns a word of a kind; every call another."""
        planted = word(kind)
        self.planted.setdefault(kind, []).append(planted)
        return planted

    def know(self, kind, secret):
        """Looks for a secret that the program has made itself."""
        self.planted.setdefault(kind, []).append(secret)
        self.unmarked.add(kind)

    def look(self, place, name, content, but=()):
        """Looks through one content; kinds in `but` may be in it."""
        self.looked[place] = self.looked.get(place, 0) + 1
        hits = []
        marked = any(mark in content for mark in MARKS)
        for kind, words in self.planted.items():
            if kind in but or not (marked or kind in self.unmarked):
                continue
            for planted in words:
                for form, patterns in forms(planted).items():
                    at = next((at for at in map(content.find, patterns) if at >= 0), None)
                    if at is not None:
                        around = content[max(0, at - 80):at + 60].decode(errors="replace")
                        hits.append((kind, place, name, form, around))
        self.found += hits
        return hits

    def look_at_what_is_left(self, place, path, depth=2):
        """Looks through a file or folder that was not there before; what is big, or deep, is not a program's left-over."""
        if path.is_symlink():
            return
        if path.is_dir():
            try:
                inside = list(path.iterdir()) if depth else []
            except OSError:
                inside = []
            for entry in inside:
                self.look_at_what_is_left(place, entry, depth - 1)
        elif path.is_file() and path.stat().st_size <= LEFT_BYTES_MAX:
            self.look(place, str(path), str(path).encode() + b"\n" + path.read_bytes())

    def look_at_files(self, place, folder, leave_out=lambda path: False, but=()):
        for directory, _, names in os.walk(folder):
            for name in names:
                path = Path(directory) / name
                if path.is_symlink() or not path.is_file() or leave_out(path):
                    continue
                # The file's name and content.
                self.look(place, str(path), str(path).encode() + b"\n" + path.read_bytes(), but)


class Collector:
    """An OTLP collector that keeps what it is sent, headers and bodies."""

    def __init__(self):
        received = self.received = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                received.append((self.path, dict(self.headers), body))
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def stop(self):
        self.server.shutdown()


def image(pid):
    """Returns a process' parent, and what tells its image from another's: its program and where its stack and environment
    begin. A fork has these of its parent until it executes a program, which lays them out at random."""
    folder = Path("/proc") / str(pid)
    # Fields 4, 28, 50 and 51 of proc(5), of which the first two stand before the closing bracket.
    fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
    try:
        program = os.readlink(folder / "exe")
    except OSError:
        # A kernel thread, or another user's.
        program = ""
    return int(fields[1]), (program, fields[25], fields[47], fields[48])


class Sampler:
    """Looks at the process list, and at the environment of what a home has started, again and again until stopped."""

    def __init__(self, home, roots, activity):
        self.home, self.roots, self.activity = home, roots, activity
        self.lines, self.environments, self.sessions = set(), set(), set()
        self.samples = 0
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        while not self.stopping.is_set():
            self.sample()
            self.stopping.wait(0.2)

    def sample(self):
        parents, images, mine = {}, {}, set(self.roots())
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                parents[int(entry.name)], images[int(entry.name)] = image(entry.name)
                self.lines.add((entry / "cmdline").read_bytes())
            except (OSError, ValueError, IndexError):
                continue
        server = self.home.postmaster() if self.home.cluster else None
        for pid in list(parents):
            above, known = pid, []
            while above in parents and above not in mine and above != server and above > 1:
                known.append(above)
                above = parents[above]
            if known and (above in mine or above == server) or pid == server:
                try:
                    variables = (Path("/proc") / str(pid) / "environ").read_bytes()
                    again = image(pid)[1]
                except (OSError, ValueError, IndexError):
                    continue
                # What is between fork and exec shows what its parent was started with, and nothing of its own; so does
                # a worker of Postgres, whose parent is looked at anyhow. What changes meanwhile is seen the next time.
                if again == images[pid] and again != images.get(parents[pid]):
                    self.environments.add((again[0], variables))
        try:
            self.sessions.update(self.activity())
        except (RuntimeError, OSError, AttributeError, StopIteration):
            # The cluster is not there yet, or no more.
            pass
        self.samples += 1

    def stop(self):
        self.stopping.set()
        self.thread.join()


def table(scan, places, kept):
    """Returns the lines of the table: an input each, how often it was planted, where it was looked for and found."""
    width = max(len(kind) for kind in scan.planted)
    lines = [f"{'input':<{width}}  planted  looked in  found  may be in"]
    for kind, words in scan.planted.items():
        found = sum(1 for hit in scan.found if hit[0] == kind)
        lines.append(f"{kind:<{width}}  {len(words):>7}  {places:>9}  {found:>5}  {kept.get(kind, '')}")
    return lines


def compact(value):
    return json.dumps(value, separators=(",", ":"))


def wait_for(condition, within):
    until = time.monotonic() + within
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.05)
    return True
