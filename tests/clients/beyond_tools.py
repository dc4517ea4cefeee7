"""Reads prompts and resources with the official Python SDK, in both styles of the protocol.

Arguments: the program, a fresh state directory. Ends with status 0 only if every step answered as it must.
"""

import asyncio
import json
import sys

from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp.types import PromptReference, ResourceTemplateReference

PROGRAM, HOME = sys.argv[1], sys.argv[2]


def check(what, condition, seen):
    if not condition:
        raise SystemExit(f"python: {what}: {seen}")
    print(f"python: {what}")


async def play(mode):
    server = StdioServerParameters(command=PROGRAM, args=["mcp", "--toolsets", "all"], env={"PGSANDBOX_HOME": HOME})
    async with Client(server, mode=mode) as client:
        prompts = (await client.list_prompts()).prompts
        names = [prompt.name for prompt in prompts]
        check(f"{mode}: prompts are listed", "verify_roles" in names and "migrate_and_verify" in names, names)
        filled = await client.get_prompt("verify_roles", {"databaseId": "some-id"})
        check("a prompt is filled", '"databaseId": "some-id"' in filled.messages[0].content.text, filled)
        resources = (await client.list_resources()).resources
        check("resources are listed", "pgsandbox://profiles/local" in [str(r.uri) for r in resources], resources)
        templates = (await client.list_resource_templates()).resource_templates
        check("templates are listed", len(templates) >= 2, templates)
        made = (await client.call_tool("create_database", {"nameHint": "beyond"})).structured_content["result"]
        uri = f"pgsandbox://sandboxes/{made['databaseId']}"
        read = await client.read_resource(uri)
        told = json.loads(read.contents[0].text)
        check("a sandbox is read", told["databaseName"] == made["databaseName"], told)
        completed = await client.complete(PromptReference(type="ref/prompt", name="verify_roles"), {"name": "databaseId", "value": made["databaseId"][:6]})
        check("an id is completed", completed.completion.values == [made["databaseId"]], completed)
        completed = await client.complete(ResourceTemplateReference(type="ref/resource", uri="pgsandbox://profiles/{profile}"), {"name": "profile", "value": "l"})
        check("a profile is completed", completed.completion.values == ["local"], completed)
        here = {"databaseId": made["databaseId"]}
        digest = (await client.call_tool("schema_digest", here)).structured_content["result"]
        await client.call_tool("create_schema_snapshot", here | {"snapshotName": f"beyond-{mode}"})
        await client.call_tool("create_template_from_sandbox", here | {"templateName": f"beyond-{mode}"})
        kept = [("digests", "handle", digest["handle"]), ("snapshots", "snapshotName", f"beyond-{mode}"), ("templates", "templateName", f"beyond-{mode}")]
        listed = [str(r.uri) for r in (await client.list_resources()).resources]
        for path, variable, name in kept:
            of = f"pgsandbox://{path}/{name}"
            check(f"{path} are listed", of in listed, listed)
            told = json.loads((await client.read_resource(of)).contents[0].text)
            # A schema that was digested before is kept as it was then.
            check(f"one of {path} is read", told.get("handle") == name or made["databaseName"] in json.dumps(told), told)
            template = ResourceTemplateReference(type="ref/resource", uri=f"pgsandbox://{path}/{{{variable}}}")
            completed = await client.complete(template, {"name": variable, "value": name[:4]})
            check(f"a name of {path} is completed", name in completed.completion.values, completed)
        await client.call_tool("delete_schema_snapshot", {"snapshotName": f"beyond-{mode}"})
        await client.call_tool("delete_template", {"templateName": f"beyond-{mode}"})
        await client.call_tool("delete_database", {"databaseId": made["databaseId"], "wait": True})
        for what, asked in [
            ("a deleted sandbox", client.read_resource(uri)),
            ("a strange cursor", client.list_prompts(cursor="strange")),
            ("a strange prompt", client.get_prompt("strange")),
            ("a deleted snapshot", client.read_resource(f"pgsandbox://snapshots/beyond-{mode}")),
            ("a deleted template", client.read_resource(f"pgsandbox://templates/beyond-{mode}")),
        ]:
            try:
                check(f"{what} is refused", False, await asked)
            except MCPError as error:
                check(f"{what} is refused", True, error)


async def main():
    for mode in ("legacy", "auto"):
        await play(mode)


asyncio.run(main())
