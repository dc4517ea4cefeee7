"""Calls every tool twice, through the official Python SDK and through the command line, and compares the envelopes.

Arguments: the program, a fresh state directory. What differs between two calls by nature (ids, names made from them, times) is
masked first. A tool that the list shows and that is not called here is a failure.
"""

import asyncio
import json
import os
import re
import subprocess
import sys

from mcp import Client
from mcp.client.stdio import StdioServerParameters

PROGRAM, HOME = sys.argv[1], sys.argv[2]
ENVIRONMENT = {"PGSANDBOX_HOME": HOME, "PGSANDBOX_CONFIG": f"{HOME}.json", "PATH": os.environ["PATH"]}
REPO = f"{HOME}.repo"
# Beside the bundled ones' defaults: what the calls below have run, and where they clone from.
POLICIES = """
[[policy]]
source = "ownership"
[[policy]]
source = "quota"
[[policy]]
source = "statement-guard"
[[policy]]
source = "extensions"
[[policy]]
source = "host-command"
settings = { allow = [["true"]] }
[[policy]]
source = "clone-source"
settings = { allow = [{ host = "127.0.0.1" }] }
"""
MASKS = [
    (re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"), "<uuid>"),
    (re.compile(r"((?:every_[a-z]+|validation)_)[0-9a-f]{10}"), r"\1<short>"),
    (re.compile(r"\d{4}-\d\d-\d\dT[0-9:.]+Z"), "<time>"),
    (re.compile(r"\b[0-9a-f]{64}\b"), "<digest>"),
    # A handle is of one sandbox and its schema.
    (re.compile(r"\bdigest-[0-9a-f]{24}\b"), "digest-<handle>"),
    (re.compile(r"postgresql://([^:@/]+):[A-Za-z0-9_-]{20,}@"), r"postgresql://\1:<password>@"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|kB|MB|GB|MiB|GiB|bytes)\b"), "<quantity>"),
    (re.compile(r"\b\d+ (segments?|lines?|of \d+ connections)\b"), r"<count> \1"),
]
# An edge's own name, where something is called by it.
EDGE = re.compile(r"([\"`])(?:mcp|cli)\1")
# Numbers that measure, and so differ from call to call.
MEASURED = re.compile(r"(Ms|Bytes|Seconds|elapsed.*|bytes|ageSeconds|remaining|live)$")


def masked(value, key=""):
    if isinstance(value, dict):
        return {name: masked(inner, name) for name, inner in sorted(value.items())}
    if isinstance(value, list):
        return [masked(inner, key) for inner in value]
    if isinstance(value, str):
        for pattern, word in MASKS:
            value = pattern.sub(word, value)
        return value
    if isinstance(value, (int, float)) and not isinstance(value, bool) and MEASURED.search(key):
        return "<measured>"
    return value


class Fault(Exception):
    """What is told at the end, once the client has closed its connection."""


class Edge:
    """One way of calling. `made` holds what earlier calls by it made."""

    def __init__(self, name):
        self.name, self.made = name, {}


class Mcp(Edge):
    def __init__(self, client):
        super().__init__("mcp")
        self.client = client

    async def call(self, tool, arguments):
        answer = await self.client.call_tool(tool, arguments)
        envelope = answer.structured_content
        if bool(answer.is_error) is envelope["ok"]:
            raise Fault(f"{tool}: isError {answer.is_error} beside ok {envelope['ok']}")
        return envelope


class CommandLine(Edge):
    def __init__(self):
        super().__init__("cli")

    async def call(self, tool, arguments):
        command = [PROGRAM, "tool", tool, "--format", "json", "--input", "-"]
        run = await asyncio.to_thread(
            subprocess.run, command, input=json.dumps(arguments), capture_output=True, text=True, env=ENVIRONMENT
        )
        envelope = json.loads(run.stdout)
        if (run.returncode == 0) is not envelope["ok"]:
            raise Fault(f"{tool}: status {run.returncode} beside ok {envelope['ok']}: {run.stderr}")
        return envelope


def prepare():
    """Writes the configuration, and a repository."""
    os.makedirs(REPO, exist_ok=True)
    with open(f"{REPO}/package.json", "w", encoding="utf-8") as file:
        file.write("{}")
    with open(f"{HOME}.toml", "w", encoding="utf-8") as file:
        file.write(POLICIES)
    with open(f"{HOME}.json", "w", encoding="utf-8") as file:
        profiles = [{"name": "local", "managedLocal": True}]
        # A kernel that confines nothing is no reason to leave the calls out.
        json.dump({"profiles": profiles, "policies": f"{HOME}.toml", "commands": {"confinement": "available"}}, file)


def here(edge, what="first"):
    return {"databaseId": edge.made[what]}


def steps():
    """Yields (tool, arguments of an edge, whether it succeeds, what the result is kept as)."""
    yield "list_profiles", lambda e: {}, True, None
    yield "create_database", lambda e: {"nameHint": "every tool", "ttlMinutes": 20, "owner": e.name, "labels": {"edge": e.name}}, True, "first"
    yield "create_database", lambda e: {"nameHint": "x", "ttlMinutes": 0}, False, None
    yield "run_sql", lambda e: here(e) | {"sql": "create table t (id int primary key, name text not null); insert into t values (1, 'a'), (2, 'b'); select * from t order by id"}, True, None
    yield "run_sql", lambda e: here(e) | {"sql": "select nope from t"}, False, None
    yield "run_sql", lambda e: here(e) | {"sql": "delete from t", "readonly": True}, False, None
    yield "list_databases", lambda e: {"owner": e.name}, True, None
    yield "get_connection_string", lambda e: here(e), True, None
    yield "get_connection_string", lambda e: here(e) | {"includeCredentials": True, "access": "readonly"}, True, None
    yield "list_extensions", lambda e: here(e), True, None
    yield "extend_database", lambda e: here(e) | {"ttlMinutes": 30}, True, None
    yield "verify_sandbox", lambda e: here(e), True, None
    yield "describe_schema", lambda e: here(e), True, None
    yield "describe_schema", lambda e: here(e) | {"limit": 0}, False, None
    yield "schema_digest", lambda e: here(e) | {"schema": "public"}, True, None
    yield "create_schema_snapshot", lambda e: here(e) | {"snapshotName": e.name, "notes": "as it is"}, True, None
    yield "create_schema_snapshot", lambda e: here(e) | {"snapshotName": e.name}, False, None
    yield "run_sql", lambda e: here(e) | {"sql": "alter table t alter name type varchar(20)"}, True, None
    yield "schema_diff", lambda e: here(e) | {"snapshotName": e.name}, True, None
    yield "schema_diff", lambda e: here(e) | {"baseDigest": "0" * 64}, False, None
    yield "diff_schema_snapshot", lambda e: here(e) | {"snapshotName": e.name}, True, None
    yield "list_schema_snapshots", lambda e: here(e), True, None
    yield "delete_schema_snapshot", lambda e: {"snapshotName": e.name}, True, None
    yield "delete_schema_snapshot", lambda e: {"snapshotName": e.name}, False, None
    yield "explain_policy", lambda e: {"operation": "run_sql", "arguments": here(e) | {"sql": "select 1"}}, True, None
    command = {"repoPath": REPO, "command": ["true"]}
    yield "prepare_for_repo", lambda e: {"repoPath": REPO, "migrationCommand": ["true"]}, True, None
    yield "prepare_for_repo", lambda e: {"repoPath": "/no/such/place", "migrationCommand": ["sh", "-c", "id"]}, False, None
    yield "run_repo_command", lambda e: here(e) | command, True, None
    yield "run_repo_command", lambda e: here(e) | command | {"command": ["npm test"]}, False, None
    yield "seed_database", lambda e: here(e) | command, True, None
    yield "seed_database", lambda e: here(e) | {"repoPath": "/no/such/place"}, False, None
    yield "validate_schema_change", lambda e: here(e) | command, True, None
    yield "validate_schema_change", lambda e: here(e) | {"repoPath": "/no/such/place"}, False, None
    yield "validate_schema_change", lambda e: command, True, None
    yield "fork_database", lambda e: here(e) | {"nameHint": "every fork", "owner": e.name}, True, "fork"
    yield "run_sql", lambda e: here(e, "fork") | {"sql": "drop table t"}, True, None
    yield "reset_database", lambda e: here(e, "fork"), True, None
    yield "run_sql", lambda e: here(e, "fork") | {"sql": "select count(*) from t", "readonly": True}, True, None
    yield "create_template_from_sandbox", lambda e: here(e) | {"templateName": e.name}, True, None
    yield "create_template_from_sandbox", lambda e: here(e) | {"templateName": e.name}, False, None
    yield "create_sandbox_from_template", lambda e: {"templateName": e.name, "nameHint": "every seed", "owner": e.name}, True, "seed"
    yield "list_templates", lambda e: {}, True, None
    yield "export_template", lambda e: {"templateName": e.name}, True, None
    yield "export_template", lambda e: {"templateName": e.name}, False, None
    yield "import_template", lambda e: {"exportedName": e.name, "templateName": e.name, "replace": True}, True, None
    yield "import_template", lambda e: {"exportedName": "no-such"}, False, None
    yield "delete_template", lambda e: {"templateName": e.name, "exported": True}, True, None
    yield "delete_template", lambda e: {"templateName": e.name}, True, None
    yield "delete_template", lambda e: {"templateName": e.name}, False, None
    yield "get_connection_string", lambda e: here(e) | {"includeCredentials": True}, True, "url"
    yield "clone_database", lambda e: {"sourceDatabaseUrl": e.made["url"], "nameHint": "every clone", "owner": e.name}, True, "clone"
    yield "run_sql", lambda e: here(e, "clone") | {"sql": "select * from t order by id", "readonly": True}, True, None
    yield "clone_database", lambda e: {"sourceDatabaseUrl": "postgresql://u:p@192.0.2.1/d", "owner": e.name}, False, None
    for made in ("fork", "seed", "clone"):
        yield "delete_database", lambda e, made=made: here(e, made) | {"wait": True}, True, None
    yield "explain_query", lambda e: here(e) | {"sql": "select 1"}, True, None
    yield "explain_query", lambda e: here(e) | {"sql": "select 1; select 2"}, False, None
    yield "ensure_postgres", lambda e: {}, True, None
    yield "list_approvals", lambda e: {}, True, None
    yield "approve", lambda e: {"requestDigest": "0" * 64}, False, None
    yield "doctor", lambda e: {}, True, None
    yield "cleanup_expired", lambda e: {"dryRun": True, "owner": e.name}, True, None
    yield "delete_database", lambda e: here(e) | {"wait": True}, True, None
    yield "delete_database", lambda e: here(e) | {"wait": True}, False, None


def compare(tool, one, other):
    one, other = (json.loads(EDGE.sub(r"\1<edge>\1", json.dumps(masked(e)))) for e in (one, other))
    if one != other:
        lines = [json.dumps(e, indent=1, sort_keys=True).splitlines() for e in (one, other)]
        seen = [f"  {a}  |  {b}" for a, b in zip(*lines) if a != b][:20]
        raise Fault(f"{tool}: the envelopes differ\n" + "\n".join(seen) + f"\n  ({len(lines[0])} and {len(lines[1])} lines)")


async def main():
    prepare()
    server = StdioServerParameters(command=PROGRAM, args=["mcp", "--toolsets", "all"], env=ENVIRONMENT)
    async with Client(server) as client:
        listed = {tool.name for tool in (await client.list_tools()).tools}
        edges = [Mcp(client), CommandLine()]
        called = set()
        for tool, arguments, succeeds, kept in steps():
            envelopes = []
            for edge in edges:
                envelope = await edge.call(tool, arguments(edge))
                if envelope["ok"] is not succeeds:
                    raise Fault(f"{tool} by {edge.name}: {json.dumps(envelope, indent=1)}")
                if kept:
                    result = envelope["result"]
                    edge.made[kept] = result.get("databaseId") if kept != "url" else result["connectionString"]
                envelopes.append(envelope)
            compare(tool, *envelopes)
            called.add(tool)
        if listed != called:
            raise Fault(f"not called: {sorted(listed - called)}; not listed: {sorted(called - listed)}")
        print(f"every tool: {len(called)} tools gave one envelope through MCP and through the command line")


def faults(error):
    return [fault for inner in error.exceptions for fault in faults(inner)] if isinstance(error, BaseExceptionGroup) else [error]


try:
    asyncio.run(main())
except (Fault, BaseExceptionGroup) as error:
    raise SystemExit("\n".join(str(fault) or repr(fault) for fault in faults(error))) from None
