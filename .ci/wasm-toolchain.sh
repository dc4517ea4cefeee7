#!/usr/bin/env bash
# Lays a Rust toolchain for the target wasm32-unknown-unknown into a folder.
#
#   wasm-toolchain.sh PREFIX
#
# It is for machines where `rustup target add` can reach nothing but where
# Debian's package archive answers. Nothing is installed on the system: the
# packages are only downloaded and unpacked below PREFIX. A PREFIX that is
# already complete is left as it is, at once.
#
# Needs: apt-get, dpkg-deb, a C compiler, and any recent stable cargo.
# Result: PREFIX/bin/rustc       rustc that knows wasm32-unknown-unknown
#         PREFIX/bin/cargo-wasm  cargo with that rustc and that target
#         PREFIX/env             the same as variables, to be sourced
#         PREFIX/VERSIONS        what the folder was made from
# PREFIX may be moved afterwards: the wrappers find themselves (not so env, which
# has the path in it).
#
# Environment: RUST_WEB_VERSION  Debian version to take instead of the newest
#              CARGO             cargo to build std with (default: the one that
#                                is on PATH here)
#
# Why it is more than a download:
#
# * Debian's rustc-web (the compiler that Debian's browsers are built with, so
#   it is much newer than the release's rustc) comes without a std for
#   wasm32-unknown-unknown. The std is therefore built here, once, from
#   rust-web-src, and its rlibs are put where rustc looks for them. Guests then
#   build with plain stable cargo, with no -Zbuild-std of their own.
# * Compiler and library source must be one and the same version, since std
#   uses the unstable features of exactly its own compiler. All packages are
#   hence taken at one version, and the rustup toolchain's rustc is not used.
# * `apt-get download` + `dpkg-deb -x`, not `apt-get install`: rustc-web
#   conflicts with other rustc packages and would put a second rustc on PATH.
# * The linker is lld from the same LLVM as rustc. It is linked to under the
#   name rust-lld, the default linker of this target, at the place where rustc
#   looks for it, so that no guest has to set a linker.
# * Paths of the build must not get into the result, or two prefixes would give
#   two different modules: see "Build std" below.
set -euo pipefail

RECIPE=1 # raise it when the result changes, so that older folders are rebuilt
TARGET=wasm32-unknown-unknown

say() { printf 'wasm-toolchain: %s\n' "$*"; }
die() { printf 'wasm-toolchain: error: %s\n' "$*" >&2; exit 1; }

[ $# -eq 1 ] && [ -n "$1" ] || { echo "usage: $0 PREFIX" >&2; exit 2; }
prefix=$(realpath -m -- "$1")

usage() {
    cat <<USAGE
wasm-toolchain: ready in $prefix ($(head -n 1 "$prefix/VERSIONS"))
  build a guest:  $prefix/bin/cargo-wasm build --release
  or by hand:     . $prefix/env && cargo build --release --target $TARGET
USAGE
}

if [ "$(sed -n 's/^recipe //p' "$prefix/VERSIONS" 2>/dev/null || true)" = "$RECIPE" ] &&
   { [ -z "${RUST_WEB_VERSION:-}" ] ||
     grep -qxF "rustc-web $RUST_WEB_VERSION" "$prefix/VERSIONS"; }; then
    say "already complete"
    usage
    exit 0
fi

# The real cargo, looked up from the caller's folder: further down cargo runs
# from /, where a rustup proxy would not see a project's rust-toolchain.toml.
cargo=${CARGO:-$(RUSTUP_AUTO_INSTALL=0 rustup which cargo 2>/dev/null || command -v cargo || true)}
[ -n "$cargo" ] || die "no cargo found"
command -v cc >/dev/null || die "no C compiler (cc) found, needed to link build scripts"

# --- Which packages -----------------------------------------------------------

candidate() { LC_ALL=C apt-cache policy "$1" 2>/dev/null | sed -n 's/^  Candidate: //p' | grep -vxF '(none)' || true; }
# depends PACKAGE[=VERSION] REGEX: the first dependency that matches REGEX whole
depends() {
    apt-cache show --no-all-versions "$1" 2>/dev/null | sed -n 's/^Depends: //p' |
        tr ',|' '\n\n' | sed 's/^ *//; s/[ :].*//' | grep -xE "$2" | head -n 1 || true
}

# Sets the names and versions, or fails with a message in $why.
resolve() {
    version=${RUST_WEB_VERSION:-$(candidate rustc-web)}
    why="the package archive has no rustc-web ${RUST_WEB_VERSION:-}"
    [ -n "$version" ] && [ -n "$(apt-cache show "rustc-web=$version" 2>/dev/null)" ] || return 1
    why="no libstd-rust-web-X.Y among the dependencies of libstd-rust-web-dev $version"
    libstd=$(depends "libstd-rust-web-dev=$version" 'libstd-rust-web-[0-9.]+')
    [ -n "$libstd" ] || return 1
    why="no libllvmN among the dependencies of $libstd $version"
    libllvm=$(depends "$libstd=$version" 'libllvm[0-9]+')
    [ -n "$libllvm" ] || return 1
    lld=lld-${libllvm#libllvm}
    why="the package archive has no $libllvm"
    llvm_version=$(candidate "$libllvm")
    [ -n "$llvm_version" ] || return 1
}

# --- Download and unpack ------------------------------------------------------

# Everything happens in a folder beside PREFIX that is renamed at the very end,
# so an interrupted run leaves no PREFIX that looks usable.
mkdir -p "$(dirname "$prefix")"
stage=$(mktemp -d "$prefix.XXXXXX")
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"
mkdir "$stage/tmp" "$stage/tmp/debs" "$stage/bin"

# APT::Sandbox::User: as root, apt would download as the user _apt, who has no
# access to this folder, and warn about it.
download() {
    say "downloading rustc-web $version, $libllvm and $lld $llvm_version"
    (cd "$stage/tmp/debs" && apt-get -qq download -o APT::Sandbox::User="$(id -un)" \
        "rustc-web=$version" "libstd-rust-web-dev=$version" "$libstd=$version" \
        "rust-web-src=$version" "$libllvm=$llvm_version" "$lld=$llvm_version")
}

# These packages are replaced by newer ones every few weeks, and the old ones
# leave the archive: lists that are missing or stale are refreshed, once.
if ! resolve || ! download; then
    say "refreshing the package lists"
    apt-get -qq update
    rm -f "$stage"/tmp/debs/*
    resolve || die "$why"
    download || die "the download failed"
fi

say "unpacking"
for deb in "$stage"/tmp/debs/*.deb; do
    case $deb in
    */rust-web-src_*) # only std's own source, not the whole of rustc's
        mkdir "$stage/tmp/src"
        dpkg-deb --fsys-tarfile "$deb" |
            tar -x -C "$stage/tmp/src" --wildcards --no-wildcards-match-slash './usr/src/rustc-*/library' ;;
    *) dpkg-deb -x "$deb" "$stage" ;;
    esac
done
rm -rf "$stage/tmp/debs" "$stage/usr/share/man" "$stage/usr/share/lintian"

libdir=$(cd "$stage" && echo usr/lib/*/librustc_driver-*.so)
[ -f "$stage/$libdir" ] || die "no librustc_driver in $libstd"
libdir=$(dirname "$libdir")

# lld looks for libLLVM in ../lib beside itself.
llvm=usr/lib/llvm-${libllvm#libllvm}
mkdir -p "$stage/$llvm/lib"
for so in "$stage/$libdir"/libLLVM.so.*; do
    ln -sf "../../../../$libdir/$(basename "$so")" "$stage/$llvm/lib/"
done

# The only thing hidden in this wrapper, besides the library path: the folder of
# downloaded crates is named /cargo in panic messages, so that a guest is the
# same bytes whoever's home folder it was built from.
cat >"$stage/bin/rustc" <<WRAPPER
#!/bin/sh
here=\$(dirname -- "\$(readlink -f -- "\$0")")/..
export LD_LIBRARY_PATH="\$here/$libdir\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
exec "\$here/usr/bin/rustc" --remap-path-prefix="\${CARGO_HOME:-\${HOME:-}/.cargo}=/cargo" "\$@"
WRAPPER
cat >"$stage/bin/rustdoc" <<WRAPPER
#!/bin/sh
here=\$(dirname -- "\$(readlink -f -- "\$0")")/..
export LD_LIBRARY_PATH="\$here/$libdir\${LD_LIBRARY_PATH:+:\$LD_LIBRARY_PATH}"
exec "\$here/usr/bin/rustdoc" "\$@"
WRAPPER
cat >"$stage/bin/cargo-wasm" <<WRAPPER
#!/bin/sh
# cargo with this folder's rustc, for $TARGET unless another target is named.
# Also works as a cargo subcommand ("cargo wasm build") with this folder on PATH.
[ "\${1:-}" != wasm ] || shift
here=\$(dirname -- "\$(readlink -f -- "\$0")")
export RUSTC="\$here/rustc" RUSTDOC="\$here/rustdoc"
export CARGO_BUILD_TARGET="\${CARGO_BUILD_TARGET:-$TARGET}"
exec "\${CARGO:-cargo}" "\$@"
WRAPPER
chmod 755 "$stage"/bin/*

missing=$(LD_LIBRARY_PATH="$stage/$libdir" ldd "$stage/usr/bin/rustc" "$stage/$llvm/bin/lld" |
    sed -n 's/^[[:space:]]*\([^ ]*\) => not found.*/\1/p' | sort -u | tr '\n' ' ')
[ -z "$missing" ] || die "the system lacks $missing(see the dependencies of $libllvm; apt-get install them)"

info=$("$stage/bin/rustc" -vV)
host=$(sed -n 's/^host: //p' <<<"$info")
release=$(sed -n 's/^release: //p' <<<"$info")
commit=$(sed -n 's/^commit-hash: //p' <<<"$info")
say "compiler: $(head -n 1 <<<"$info")"
[ -d "$stage/tmp/src/usr/src/rustc-$release/library" ] ||
    die "rust-web-src is not the source of rustc $release: $(ls "$stage/tmp/src/usr/src")"

rustlib=$stage/usr/lib/rustlib
mkdir -p "$rustlib/$host/bin"
ln -s "../../../../../$llvm/bin/lld" "$rustlib/$host/bin/rust-lld"

# --- Build std ----------------------------------------------------------------

# -Zbuild-std takes the source from this place in the sysroot.
mkdir -p "$rustlib/src/rust"
mv "$stage/tmp/src/usr/src/rustc-$release/library" "$rustlib/src/rust/library"

# A nearly empty crate for -Zbuild-std to have something to build std for. Its
# workspace root is the folder that also holds std's source, because cargo
# hashes the path of a crate into its symbol names, but only relative to the
# workspace root if it lies below that.
cat >"$stage/Cargo.toml" <<'TOML'
[package]
name = "std-for-wasm"
version = "0.0.0"
edition = "2021"
[lib]
path = "tmp/lib.rs"
[profile.release]
codegen-units = 1
[workspace]
TOML
echo '#![no_std]' >"$stage/tmp/lib.rs"

# A cargo home of its own: no user settings, and crates.io replaced by the
# vendored crates that come with the source, so nothing is downloaded.
mkdir "$stage/tmp/cargo-home"
cat >"$stage/tmp/cargo-home/config.toml" <<TOML
[source.crates-io]
replace-with = "vendored"
[source.vendored]
directory = "$rustlib/src/rust/library/vendor"
TOML

# The flags for std are given behind cargo's back, in a wrapper, as cargo would
# hash RUSTFLAGS, with the path in them, into the crates' names.
#   embed-bitcode:      without it a guest with `lto = true` does not link
#   remap-path-prefix:  std's panic messages name /rustc/COMMIT/library/...,
#                       as those of the official builds do. Twice, as cargo
#                       names sources below the workspace root by their path
#                       from there, and others (build scripts) in full
cat >"$stage/tmp/rustc" <<WRAPPER
#!/bin/sh
exec "$stage/bin/rustc" "\$@" -Cembed-bitcode=yes \\
    --remap-path-prefix="$stage=/build" \\
    --remap-path-prefix="${rustlib#"$stage"/}/src/rust=/rustc/$commit" \\
    --remap-path-prefix="$rustlib/src/rust=/rustc/$commit"
WRAPPER
chmod 755 "$stage/tmp/rustc"

say "building std for $TARGET with $("$cargo" --version)"
# From /, with the caller's cargo and rustc settings cleared, so that neither a
# project's .cargo/config.toml nor its environment takes part.
# RUSTC_BOOTSTRAP=1 makes stable cargo and rustc take -Z flags.
(
    cd /
    while IFS='=' read -r name _; do
        case $name in CARGO*|RUSTC*|RUSTFLAGS|RUSTDOC*) unset "$name" ;; esac
    done < <(env)
    export CARGO_HOME="$stage/tmp/cargo-home" CARGO_TARGET_DIR="$stage/tmp/target"
    export RUSTC="$stage/tmp/rustc" RUSTC_BOOTSTRAP=1
    "$cargo" build --manifest-path "$stage/Cargo.toml" --release --offline --quiet \
        --target "$TARGET" -Zbuild-std=std,panic_abort
)

mkdir -p "$rustlib/$TARGET/lib"
cp "$stage/tmp/target/$TARGET/release/deps"/lib*.rlib "$rustlib/$TARGET/lib/"
rm -f "$rustlib/$TARGET/lib"/libstd_for_wasm-*.rlib
for crate in core alloc std panic_abort compiler_builtins; do
    ls "$rustlib/$TARGET/lib/lib$crate"-*.rlib >/dev/null || die "std was built without $crate"
done

# The source has served.
rm -rf "$rustlib/src" "$stage/Cargo.toml" "$stage/Cargo.lock"

# --- Try it -------------------------------------------------------------------

say "linking a test module"
cat >"$stage/tmp/try.rs" <<'RUST'
#[no_mangle]
pub extern "C" fn total(n: u32) -> u32 {
    let v: Vec<u32> = (0..n).collect();
    assert!(v.len() == n as usize, "{v:?}");
    v.iter().sum()
}
RUST
for lto in off fat; do
    "$stage/bin/rustc" --edition 2021 --crate-type cdylib --target "$TARGET" -O \
        -Cpanic=abort -Clto="$lto" -o "$stage/tmp/try.wasm" "$stage/tmp/try.rs"
    [ "$(head -c 4 "$stage/tmp/try.wasm" | od -An -tx1 | tr -d ' \n')" = 0061736d ] ||
        die "the test module is no wasm file"
    ! grep -qaF -e "$stage" "$stage/tmp/try.wasm" || die "the test module contains the path of its toolchain"
done

# --- Done ---------------------------------------------------------------------

cat >"$stage/env" <<ENV
# Source this to build with the toolchain of this folder:
#   cargo build --release --target $TARGET
export RUSTC="$prefix/bin/rustc" RUSTDOC="$prefix/bin/rustdoc"
ENV
cat >"$stage/VERSIONS" <<VERSIONS
$(head -n 1 <<<"$info")
recipe $RECIPE
rustc-web $version
$libllvm $llvm_version
$lld $llvm_version
std built with $("$cargo" --version)
VERSIONS
rm -rf "$stage/tmp" "$prefix"
mv -T "$stage" "$prefix"
trap - EXIT
usage
