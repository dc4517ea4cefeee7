"""Bad states of clocks: ours and the server's, far ahead, far behind, jumping while everything runs."""

import glob
import os
import time
from datetime import datetime, timezone

from bad_postgres import ByUrl
from bad_states import NotTried

CASES = []
LIBRARY = next(iter(glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")), None)
CLOCK_FILE = "clock"


def case(state, short=False):
    def put(function):
        CASES.append((state, function, short))
        return function
    return put


def faked(file):
    """Variables that give a program the clock that `file` says, while time itself goes on as ever."""
    return {"LD_PRELOAD": LIBRARY, "FAKETIME_TIMESTAMP_FILE": str(file), "FAKETIME_NO_CACHE": "1", "DONT_FAKE_MONOTONIC": "1"}


def ends_in_minutes(result):
    until = datetime.fromisoformat(result["expiresAt"].replace("Z", "+00:00"))
    return (until - datetime.now(timezone.utc)).total_seconds() / 60


@case("our clock ten years off and jumping")
def ours(play):
    if LIBRARY is None:
        raise NotTried("needs the package `faketime`")
    home = play.home()
    file = home.directory / CLOCK_FILE
    one = play.template.kept[0]
    file.write_text("+10y")
    server = home.server(**faked(file))
    for clock in ("+10y", "-10y", "+0", "+300d", "-5000d", "+0"):
        file.write_text(clock)
        wish = "run_sql", {"databaseId": one, "sql": "select count(*) from kept"}
        answered = server.call(*wish)
        # a budget that is to be full years from now counts as empty, once
        if not answered[0]["ok"] and answered[0]["errors"][0]["code"] == "rate_limited":
            time.sleep(min(2, answered[0]["errors"][0]["retryAfterMs"] / 1000))
            answered = server.call(*wish)
        play.expect(home, f"run_sql at {clock}", answered, "ok")
        envelope = play.expect(home, f"extend_database at {clock}", server.call("extend_database", {"databaseId": one, "ttlMinutes": 650}), "ok")
        if envelope["ok"]:
            minutes = ends_in_minutes(envelope["result"])
            play.note("its end by the server's clock", f"in {minutes:.0f} min", None if 640 < minutes < 660 else "not in 650 minutes")
    envelope = play.expect(home, "create_database", server.call("create_database", {"ttlMinutes": 60}), "ok")
    minutes = ends_in_minutes(envelope["result"])
    play.note("its end by the server's clock", f"in {minutes:.0f} min", None if 55 < minutes < 65 else "not in 60 minutes")
    server.end()
    play.whole(home)


@case("our clock set back with a rate limit used up")
def rates(play):
    if LIBRARY is None:
        raise NotTried("needs the package `faketime`")
    home = play.home()
    policies = home.directory / "policies.toml"
    policies.write_text("".join(f'[[policy]]\nsource = "{name}"\n' for name in ("ownership", "statement-guard", "extensions"))
                        + '[[policy]]\nsource = "rate-limit"\nsettings = { impacts = { reads = { burst = 3, per_interval = 1, interval_ms = 2000 } } }\n')
    config = home.directory / "rates.json"
    config.write_text('{"policies": "%s", "profiles": [{"name": "local", "managedLocal": true}]}' % policies)
    file = home.directory / CLOCK_FILE
    file.write_text("+10y")
    server = home.server(PGSANDBOX_CONFIG=str(config), **faked(file))
    answers = [server.call("list_databases")[0] for _ in range(8)]
    limited = sum(1 for envelope in answers if not envelope["ok"] and envelope["errors"][0]["code"] == "rate_limited")
    play.note("eight calls", f"{limited} limited", None if limited else f"none was limited: {answers[-1]}")
    file.write_text("-10y")
    waits, passed = 0, False
    for _ in range(20):
        envelope, _ = server.call("list_databases")
        if passed := envelope["ok"]:
            break
        waits += 1
        time.sleep(min(2, envelope["errors"][0].get("retryAfterMs", 1000) / 1000 + 0.1))
    play.note("after the clock was set back", f"after {waits} waits", None if passed else f"refused on and on: {envelope}")
    server.end()


@case("the server's clock a year ahead for a while")
def servers(play):
    if LIBRARY is None:
        raise NotTried("needs the package `faketime`")
    file = None

    class Faked(ByUrl):
        def start(self, data=None, port=None):
            nonlocal file
            file = self.directory / CLOCK_FILE
            if not file.exists():
                file.write_text("+0")
                file.chmod(0o644)
            kept = dict(os.environ)
            os.environ.update(faked(file))
            try:
                super().start(data, port)
            finally:
                os.environ.clear()
                os.environ.update(kept)

    it = Faked(play)
    one = play.kept[0]
    time.sleep(1)
    file.write_text("+366d")
    begun = time.monotonic()
    play.expect(it.home, "run_sql", it.server.call("run_sql", {"databaseId": one, "sql": "select 1"}), "sandbox_expired")
    doctor = play.expect(it.home, "doctor", it.server.call("doctor"), "ok")
    named = [check for check in doctor["result"]["checks"] if "clock" in check["name"] and check["status"] == "warn"]
    play.note("doctor says so", "", None if named else "doctor does not name the clock")
    other = it.home.server()
    play.expect(it.home, "list_databases of a new server", other.call("list_databases"), "ok")
    # two rounds of upkeep of each
    time.sleep(max(0, 33 - (time.monotonic() - begun)))
    file.write_text("+0")
    play.expect(it.home, "run_sql, set right", it.server.call("run_sql", {"databaseId": one, "sql": "select count(*) from kept"}), "ok")
    other.end()
    it.server.end()
    play.whole(it.home, kept=[*play.kept, play.victim][:2])


