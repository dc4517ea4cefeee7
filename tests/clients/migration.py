"""An agent tries a migration: create, snapshot, migrate, compare, fork, destroy, set back, clean up.

Arguments: the program, a fresh state directory. Ends with status 0 only if every step answered as it must.
"""

import asyncio
import sys

from mcp import Client
from mcp.client.stdio import StdioServerParameters

PROGRAM, HOME = sys.argv[1], sys.argv[2]
BEFORE = """
create table customers (id int primary key generated always as identity, name text not null, joined date default current_date);
create table orders (id bigint primary key, customer int references customers, total numeric(10,2) check (total >= 0));
create view open_orders as select id, total from orders where total > 0;
insert into customers (name) select 'customer ' || i from generate_series(1, 200) i;
insert into orders select i, 1 + i % 200, i from generate_series(1, 1000) i;
"""
MIGRATION = """
create type state as enum ('new', 'paid');
alter table orders add column state state not null default 'new';
create index orders_by_state on orders (state) where state = 'new';
create or replace view open_orders as select id, total, state from orders where state = 'new';
"""


def check(what, condition, seen):
    if not condition:
        raise SystemExit(f"migration: {what}: {seen}")
    print(f"migration: {what}")


async def main():
    server = StdioServerParameters(command=PROGRAM, args=["mcp", "--toolsets", "all"], env={"PGSANDBOX_HOME": HOME})
    async with Client(server) as client:

        async def call(tool, **arguments):
            envelope = (await client.call_tool(tool, arguments)).structured_content
            if not envelope["ok"]:
                raise SystemExit(f"migration: {tool}: {envelope['errors']}")
            return envelope["result"]

        async def count(database):
            seen = await call("run_sql", databaseId=database, sql="select count(*) from orders", readonly=True)
            return seen["resultSets"][0]["rows"][0][0]

        one = (await call("create_database", nameHint="migration", ttlMinutes=30))["databaseId"]
        await call("run_sql", databaseId=one, sql=BEFORE)
        before = await call("schema_digest", databaseId=one)
        await call("create_schema_snapshot", databaseId=one, snapshotName="before-state", notes="before orders have a state")
        trial = (await call("fork_database", databaseId=one, nameHint="trial"))["databaseId"]
        check("a fork has the same schema", (await call("schema_digest", databaseId=trial))["checksum"] == before["checksum"], before)

        await call("run_sql", databaseId=trial, sql=MIGRATION)
        diff = await call("diff_schema_snapshot", databaseId=trial, snapshotName="before-state")
        told = str(diff)
        check("the differences are told", diff["changed"] and "orders_by_state" in told and "open_orders" in told and "paid" in told, diff)
        other = await call("schema_diff", databaseId=trial, baseDigest=before)
        check("a digest tells the same", other["afterChecksum"] == diff["afterChecksum"] != before["checksum"], other)
        plan = await call("explain_query", databaseId=trial, sql="select * from open_orders where id = 7")
        check("a plan is told", plan["summary"], plan)

        await call("run_sql", databaseId=trial, sql="drop table customers cascade; delete from orders")
        check("what is destroyed in the fork is there in its source", (await count(trial), await count(one)) == ("0", "1000"), one)
        await call("reset_database", databaseId=trial)
        same = (await call("schema_digest", databaseId=trial))["checksum"] == before["checksum"]
        check("the fork is set back to where it began", same and await count(trial) == "1000", trial)

        await call("run_sql", databaseId=one, sql=MIGRATION)
        after = await call("diff_schema_snapshot", databaseId=one, snapshotName="before-state")
        check("the migration does in the source what it did in the trial", after["afterChecksum"] == diff["afterChecksum"], after)
        await call("create_template_from_sandbox", databaseId=one, templateName="migrated")
        fresh = (await call("create_sandbox_from_template", templateName="migrated"))["databaseId"]
        check("what begins from its template has it", await count(fresh) == "1000", fresh)

        for database in (fresh, trial, one):
            await call("delete_database", databaseId=database, wait=True)
        await call("delete_template", templateName="migrated")
        await call("delete_schema_snapshot", snapshotName="before-state")
        left = [
            (await call("list_databases"))["databases"],
            (await call("list_templates"))["templates"],
            (await call("list_schema_snapshots"))["snapshots"],
        ]
        check("nothing is left", left == [[], [], []], left)


asyncio.run(main())
