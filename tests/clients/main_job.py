"""Plays the main job over stdio with the official Python SDK, in both styles of the protocol.

Arguments: the program, a fresh state directory. Ends with status 0 only if every step answered as it must.
"""

import asyncio
import sys

from mcp import Client
from mcp.client.stdio import StdioServerParameters

PROGRAM, HOME = sys.argv[1], sys.argv[2]


def check(what, condition, seen):
    if not condition:
        raise SystemExit(f"python: {what}: {seen}")
    print(f"python: {what}")


async def call(client, tool, arguments, ok=True, **options):
    answer = await client.call_tool(tool, arguments, **options)
    envelope = answer.structured_content
    check(f"{tool} answers {'ok' if ok else 'a failure'}", envelope["ok"] is ok and bool(answer.is_error) is not ok, envelope)
    return envelope["result"] if ok else envelope["errors"][0]


async def play(mode):
    server = StdioServerParameters(command=PROGRAM, args=["mcp"], env={"PGSANDBOX_HOME": HOME})
    async with Client(server, mode=mode) as client:
        tools = (await client.list_tools()).tools
        check(f"{mode}: tools are listed", len(tools) >= 12, [tool.name for tool in tools])
        news = []

        async def progress(done, total, message):
            news.append((done, total, message))

        made = await call(
            client,
            "create_database",
            {"nameHint": f"python {mode}", "ttlMinutes": 10, "labels": {"client": "python"}},
            progress_callback=progress,
        )
        check("progress is reported", len(news) > 0, news)
        here = {"databaseId": made["databaseId"]}
        await call(client, "run_sql", here | {"sql": "create table t (id int primary key, name text); insert into t select i, 'n' || i from generate_series(1, 500) i"})
        read = await call(client, "run_sql", here | {"sql": "select id, name from t order by id", "readonly": True, "rowLimit": 3})
        rows = read["resultSets"][0]
        check("a read is bounded", rows["rows"] == [[1, "n1"], [2, "n2"], [3, "n3"]] and rows["truncated"], rows)
        error = await call(client, "run_sql", here | {"sql": "delete from t", "readonly": True}, ok=False)
        check("a write is refused read-only", error["code"] == "readonly_violation", error)
        error = await call(client, "run_sql", here | {"sql": "alter system set work_mem = '1GB'"}, ok=False)
        check("a policy refuses", error["code"] == "denied" and error["policy"] == "statement-guard", error)
        error = await call(client, "create_database", {"nameHintt": "x"}, ok=False)
        check("the nearest argument is named", "nameHint" in error["message"], error)
        verified = await call(client, "verify_sandbox", here)
        check("the sandbox is isolated", verified["ok"], verified)
        listed = await call(client, "list_databases", {"labels": {"client": "python"}})
        check("the sandbox is listed", [d["databaseId"] for d in listed["databases"]] == [made["databaseId"]], listed)
        gone = await call(client, "delete_database", here | {"wait": True})
        check("the sandbox is deleted", gone["deleted"] is True, gone)
        error = await call(client, "run_sql", here | {"sql": "select 1"}, ok=False)
        check("a deleted sandbox is not found", error["code"] == "database_not_found", error)


async def main():
    for mode in ("legacy", "auto"):
        await play(mode)


asyncio.run(main())
