#!/usr/bin/env python3
"""Runs real projects' migrations through `run_sql` and through psql, and compares what came of it.

    tests/migrations/run.py PROJECTS PROGRAM [--bin-dir DIR] [--only PROJECT] [--verbose]

PROJECTS is a folder with one folder of SQL files per project; `cases` beside this file is one, with statements chosen
to be hard. PROGRAM is a built `pgsandbox`. Python's standard library and a Postgres server with psql and pg_dump (in
DIR, or the newest installed) are all that is needed.

Each project's files run in order, one call or one `psql -f` per file, in two fresh sandboxes. Statement by statement the
same must succeed, and fail for the same SQLSTATE; both schemas must be the same afterwards as pg_dump sees them, but for
the sandboxes' own names. A file that the program is known to refuse is left out on both sides and listed with
the reason. Ends with status 0 only if nothing else differs.

The client of MCP here is a few lines of its own, so that nothing has to be installed.
"""

import argparse
import dataclasses
import difflib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import urllib.parse

ANSWER_SECONDS = 600
CALL_SECONDS = 300
# What a single statement may be refused with before it is sent, where psql's fails as well.
STATEMENTS_REFUSED = ("extension_not_allowed",)
# Files that the program refuses before anything is sent, with the code. Any other failure of a whole call is a difference.
REFUSALS = {
    "harbor": [(r"initial-registry", "sql_too_complex")],  # goes to another database by a command of psql
    "temporal": [(r"_(temporal|visibility)_database", "denied")],  # creates another database
}


@dataclasses.dataclass
class Way:
    """One way through a project's files that begins with an empty database."""

    name: str
    patterns: list  # files in the order of the patterns, and in natural order within one
    backwards: frozenset = frozenset()  # patterns whose files run in the opposite order
    fill: dict = dataclasses.field(default_factory=dict)  # variables that the project itself fills in
    before: str = ""  # what the project's own runner does before the first file
    one_transaction: bool = False  # whether its runner puts each file in a transaction


# What a project's own runner knows about the order of its files. A project that is not named here runs in natural order.
WORKER = {"GRAPHILE_WORKER_SCHEMA": "graphile_worker"}
WAYS = {
    "graphile": [
        Way("as they are", [r"reset-db", r"sql_\d+"]),
        Way(
            "as their runner does", [r"sql_\d+"], fill=WORKER,
            before="create schema graphile_worker", one_transaction=True,
        ),
        Way("dump", [r"schema\.sql$"]),
        Way("dump, then reset", [r"schema\.sql$", r"reset-db"], fill=WORKER),
    ],
    "harbor": [Way("migrations", [r"initial-registry", r"migrations_postgresql_\d+"])],
    "pagila": [Way("schema and additions", [r"pagila-schema\.sql$", r"jsonb", r"partman", r"temporal", r"pgq"])],
    "svix": [
        Way("up", [r"\.up\.sql$"]),
        Way("up and down", [r"\.up\.sql$", r"\.down\.sql$"], backwards=frozenset({r"\.down\.sql$"})),
    ],
    "temporal": [
        Way("main, schema", [r"_temporal_database", r"_temporal_schema"]),
        Way("main, versions", [r"_temporal_versioned"]),
        Way("visibility, schema", [r"_visibility_database", r"_visibility_schema"]),
        Way("visibility, versions", [r"_visibility_versioned"]),
    ],
}


def natural(path):
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.name)]


def files_of(project, way):
    every = sorted(project.glob("*.sql"), key=natural)
    ordered = []
    for pattern in way.patterns:
        found = [path for path in every if re.search(pattern, path.name) and path not in ordered]
        ordered += reversed(found) if pattern in way.backwards else found
    return ordered


class Program:
    """The program, asked over stdio."""

    def __init__(self, program, home, bin_dir):
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PGSANDBOX_HOME": str(home / "state")}
        if bin_dir:
            self.environment["PGSANDBOX_POSTGRES_BIN_DIR"] = str(bin_dir)
        self.program, self.bin_dir = program, bin_dir or newest_bin_dir()
        self.child = subprocess.Popen(
            [program, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self.environment, text=True
        )
        self.last_id = -1
        client = {"name": "migrations", "version": "1"}
        self.request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client})
        self.send({"method": "notifications/initialized"})

    def send(self, message):
        self.child.stdin.write(json.dumps({"jsonrpc": "2.0"} | message) + "\n")
        self.child.stdin.flush()

    def request(self, method, params):
        self.last_id += 1
        self.send({"id": self.last_id, "method": method, "params": params})
        overdue = threading.Timer(ANSWER_SECONDS, self.child.kill)
        overdue.start()
        try:
            for line in self.child.stdout:
                message = json.loads(line)
                if message.get("id") == self.last_id and "method" not in message:
                    return message
        finally:
            overdue.cancel()
        raise SystemExit(f"no answer to {method}")

    def call(self, tool, arguments):
        answer = self.request("tools/call", {"name": tool, "arguments": arguments})
        if "result" not in answer:
            raise SystemExit(f"{tool}: {answer}")
        return answer["result"]["structuredContent"]

    def must(self, tool, arguments):
        envelope = self.call(tool, arguments)
        if not envelope["ok"]:
            raise SystemExit(f"{tool}: {envelope['errors']}")
        return envelope["result"]

    def close(self):
        self.child.stdin.close()
        self.child.wait()
        subprocess.run([self.program, "local", "stop"], env=self.environment, check=False, capture_output=True)


class Sandbox:
    """A fresh sandbox."""

    def __init__(self, program, name):
        self.program = program
        made = program.must("create_database", {"nameHint": name, "ttlMinutes": 60})
        self.id, self.database, self.role = made["databaseId"], made["databaseName"], made["roleName"]

    def run_sql(self, sql):
        arguments = {"databaseId": self.id, "sql": sql, "continueOnError": True, "timeoutSeconds": CALL_SECONDS}
        return self.program.call("run_sql", arguments)

    def environment(self):
        """Says where the sandbox is, so that the password is in no argument list."""
        answer = self.program.must("get_connection_string", {"databaseId": self.id, "includeCredentials": True})
        parts = urllib.parse.urlsplit(answer["connectionString"])
        options = dict(urllib.parse.parse_qsl(parts.query))
        return {
            "PATH": os.environ["PATH"],
            "LC_ALL": "C",
            "PGHOST": parts.hostname,
            "PGPORT": str(parts.port),
            "PGUSER": urllib.parse.unquote(parts.username),
            "PGPASSWORD": urllib.parse.unquote(parts.password),
            "PGDATABASE": urllib.parse.unquote(parts.path[1:]),
            "PGSSLMODE": options.get("sslmode", "prefer"),
            "PGCLIENTENCODING": "UTF8",
        }

    def psql(self, sql):
        """Runs a text as psql does and returns each statement's text with its SQLSTATE, or None where it ran."""
        with tempfile.TemporaryDirectory() as folder:
            script, log = pathlib.Path(folder, "script.sql"), pathlib.Path(folder, "log")
            script.write_text(sql)
            done = subprocess.run(
                [self.program.bin_dir / "psql", "-X", "-v", "VERBOSITY=verbose", "-v", "ON_ERROR_STOP=0", "-L", log, "-o", "/dev/null", "-f", script],
                env=self.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            )
            failures = re.findall(r"^psql:.*?:\d+: (?:ERROR|FATAL|PANIC):  ([0-9A-Z]{5}): (.*)$", done.stderr, re.M)
            if "psql:" in re.sub(r"^psql:.*?:\d+: (?:ERROR|FATAL|PANIC|NOTICE|WARNING|INFO):  ", "", done.stderr, flags=re.M):
                raise SystemExit(f"psql says what is not understood here: {done.stderr}")
            return statements_of_log(log.read_text(), failures)

    def dump(self):
        arguments = [self.program.bin_dir / "pg_dump", "--schema-only", "--no-privileges"]
        done = subprocess.run(arguments, env=self.environment(), capture_output=True, text=True, check=True)
        text = done.stdout.replace(self.role, "THE_OWNER").replace(self.database, "THE_DATABASE")
        return re.sub(r"^\\(un)?restrict .*$", "", text, flags=re.M)

    def delete(self):
        self.program.must("delete_database", {"databaseId": self.id, "wait": True})


def newest_bin_dir():
    servers = pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres")
    return max((server.parent for server in servers), key=lambda path: int(path.parts[-2]))


def statements_of_log(log, failures):
    """Pairs the statements in psql's log with the failures: a statement that failed is followed by no result."""
    left = list(failures)
    statements = []
    for block in re.split(r"^/?\*+ QUERY \*+/?\n", log, flags=re.M)[1:]:
        text, result = re.split(r"^/?\*{20,}/?\n", block, maxsplit=1, flags=re.M)
        if not re.sub(r"--[^\n]*|/\*.*?\*/|[\s;]", "", text, flags=re.S):
            continue
        failed = not result.strip()
        statements.append((text.strip(), left.pop(0) if failed and left else None))
    if left:
        raise SystemExit(f"psql reports failures of no statement: {left}")
    return statements


def filled(sql, variables):
    for name, value in variables.items():
        # Two colons are a cast, and the variable may follow as a third.
        sql = re.sub(rf"(?<!:)((?:::)?):{name}\b", rf"\g<1>{value}", sql)
    return sql


class Row:
    """What came of one way through a project."""

    def __init__(self, project, way):
        self.project, self.name = project, f"{project}: {way}"
        self.files = self.statements = self.failed = self.refused = 0
        self.dumps = "-"
        self.states = {}
        self.refusals, self.differences = [], []


def compare_file(row, name, sql, ours, twin, verbose):
    envelope = ours.run_sql(sql)
    if not envelope["ok"]:
        error = envelope["errors"][0]
        if error["code"] == "syntax_error" and "no statement" in error["message"]:
            return
        line = f"{name}: {error['code']}: {error['message']}"
        known = REFUSALS.get(row.project, [])
        if any(re.search(pattern, name) and error["code"] == code for pattern, code in known):
            row.refused += 1
            row.refusals.append(line)
        else:
            row.differences.append(f"{line} {error}")
        return
    result = envelope["result"]
    seen = {entry["statementIndex"]: None for entry in result["resultSets"]}
    refused = {}
    for failure in result.get("statementFailures", []):
        seen[failure["statementIndex"]] = (failure.get("sqlstate"), failure["message"])
        if failure["code"] in STATEMENTS_REFUSED:
            refused[failure["statementIndex"]] = f"{failure['code']}: {failure['message']}"
    theirs = twin.psql(sql)
    row.statements += len(seen)
    if sorted(seen) != list(range(1, len(theirs) + 1)):
        row.differences.append(f"{name}: {len(seen)} statements here, {len(theirs)} in psql")
        return
    for index, (text, expected) in enumerate(theirs, 1):
        one, other = seen[index], expected
        if one and other and one[0] == other[0]:
            row.failed += 1
            row.states[one[0]] = row.states.get(one[0], 0) + 1
            if verbose:
                print(f"  {name} #{index}: {one[0]} {one[1]}")
        elif other and index in refused:
            row.refused += 1
            row.refusals.append(f"{name} #{index}: {refused[index]}; psql {other[0]}")
        elif one != other:
            row.differences.append(f"{name} #{index}: here {one}, psql {other}: {text[:200]}")


def run_way(program, project, way, verbose):
    row = Row(project.name, way.name)
    ours, twin = Sandbox(program, f"{project.name} run_sql"), Sandbox(program, f"{project.name} psql")
    if way.before:
        compare_file(row, "before", way.before, ours, twin, verbose)
    for path in files_of(project, way):
        row.files += 1
        sql = filled(path.read_text(), way.fill)
        if way.one_transaction:
            sql = f"begin;\n{sql}\n;commit;\n"
        compare_file(row, path.name, sql, ours, twin, verbose)
    one, other = ours.dump(), twin.dump()
    row.dumps = f"yes, {len(one.splitlines())} lines" if one == other else "NO"
    if one != other:
        row.differences += difflib.unified_diff(one.splitlines(), other.splitlines(), "run_sql", "psql", lineterm="", n=1)
    ours.delete()
    twin.delete()
    return row


def report(rows):
    print(f"\n{'project':<34}{'files':>6}{'statements':>12}{'failed both':>13}{'refused':>9}  dumps equal")
    for row in rows:
        print(f"{row.name:<34}{row.files:>6}{row.statements:>12}{row.failed:>13}{row.refused:>9}  {row.dumps}")
        if row.states:
            print("    failed with", ", ".join(f"{state} ×{count}" for state, count in sorted(row.states.items())))
        for line in row.refusals:
            print("    refused:", line)
        for line in row.differences:
            print("    DIFFERS:", line)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("projects", type=pathlib.Path)
    arguments.add_argument("program", type=pathlib.Path)
    arguments.add_argument("--bin-dir", type=pathlib.Path, help="the programs of the Postgres to use")
    arguments.add_argument("--only", help="the project to run")
    arguments.add_argument("--verbose", action="store_true", help="print each failure that both sides have")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="pgsandbox-migrations.", dir="/tmp") as folder:
        # The cluster's user is another one where this runs as root.
        os.chmod(folder, 0o755)
        program = Program(given.program.resolve(), pathlib.Path(folder), given.bin_dir)
        rows = []
        try:
            for project in sorted(path for path in given.projects.iterdir() if path.is_dir()):
                if given.only in (None, project.name):
                    ways = WAYS.get(project.name, [Way("files in order", [r"\.sql$"])])
                    left_out = set(project.glob("*.sql")).difference(*(files_of(project, way) for way in ways))
                    if left_out:
                        raise SystemExit(f"{project.name}: no way has {sorted(path.name for path in left_out)}")
                    rows += [run_way(program, project, way, given.verbose) for way in ways]
        finally:
            program.close()
    report(rows)
    sys.exit(any(row.differences for row in rows) or not rows)


if __name__ == "__main__":
    main()
