#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# Installs into an empty root and uses only what is there: a C and a C++ program against the shared
# library, a C program against the archive; what the library exports, and what its headers promise.
# Prints TAP.
set -u
cd "$(dirname "$0")/../.." || exit 1
status=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root

try() {
	local title=$1 out
	shift
	if out=$("$@" 2>&1); then
		echo "ok - $title"
	else
		echo "not ok - $title"
		tail -n 40 <<<"$out" | sed 's/^/# /'
		status=1
	fi
}

try "make install into an empty root" make -s install DESTDIR="$root" prefix=/usr
export PKG_CONFIG_PATH=$root/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
lib=$root/usr/lib
read -ra use < <(pkg-config --cflags --libs omnikv)
version=$(pkg-config --modversion omnikv)

cat >"$work/use.c" <<'END'
#include <omnikv/version.h>
#include <stdio.h>
#include HEADERS
int main(void)
{
	uint64_t bytes = 0;

	puts(OMNIKV_VERSION);
	return omnikv_size_parse("129.5M", &bytes, NULL) || bytes != 135790592;
}
END
cp "$work/use.c" "$work/use.cc"
for header in "$root"/usr/include/*.h "$root"/usr/include/omnikv/*.h; do
	echo "#include <${header#"$root"/usr/include/}>"
done >"$work/headers.h"
runs() {
	[ "$(LD_LIBRARY_PATH=$lib "$1")" = "$version" ]
}
define="-DHEADERS=\"$work/headers.h\""
try "a C program builds against it" gcc -std=c11 "$define" "$work/use.c" -o "$work/c" "${use[@]}"
try "and runs, and is of version $version" runs "$work/c"
try "a C++ program builds against it" g++ "$define" "$work/use.cc" -o "$work/cc" "${use[@]}"
try "and runs, and is of version $version" runs "$work/cc"
# Libs.private names what a static link needs besides.
private=$(sed -n 's/^Libs.private: //p' "$lib/pkgconfig/omnikv.pc")
read -ra private <<<"$private"
try "a C program builds against the archive" \
	gcc -std=c11 "$define" -I"$root/usr/include" "$work/use.c" "$lib/libomnikv.a" -o "$work/static" "${private[@]}"
try "and runs without the shared library" sh -c "[ \"\$($work/static)\" = $version ]"

soname() {
	readelf -d "$lib/libomnikv.so" | grep -F "SONAME" | grep -qF "[libomnikv.so.${version%%.*}]"
}
try "the soname is libomnikv.so.${version%%.*}" soname

exports() {
	! nm -D --defined-only --with-symbol-versions "$lib/libomnikv.so" | awk '$2 != "A" {print $3}' | grep -v '^omnikv_.*@@OMNIKV_'
}
try "the shared library exports only omnikv_ names" exports
globals() {
	! nm -g --defined-only "$lib/libomnikv.a" 2>/dev/null | awk 'NF == 3 {print $3}' | grep -vE '^(omnikv|okv)_'
}
try "the archive defines only omnikv_ and okv_ names" globals

# Each function that an installed header declares is there.
promises() {
	local missing
	nm -D --defined-only "$lib/libomnikv.so" | awk '{sub(/@.*/, "", $3); print $3}' | sort -u >"$work/has"
	cat "$root"/usr/include/omnikv/*.h | gcc -fpreprocessed -dD -E -P - 2>/dev/null | tr '\n' ' ' | tr ';{}' '\n' |
		grep OMNIKV_API | sed -nE 's/^[^(]*\<(omnikv_[a-z0-9_]+)\(.*/\1/p' | sort -u >"$work/promised"
	missing=$(comm -13 "$work/has" "$work/promised")
	[ -s "$work/promised" ] || { echo "no declaration found"; return 1; }
	[ -z "$missing" ] || { echo "declared in a header and not in the library:"; echo "$missing"; return 1; }
}
try "what the headers declare is in the library" promises

# The service manager takes the units; it wants to see the program at its place.
units() {
	command -v systemd-analyze >/dev/null || { echo "skipped: no systemd-analyze"; return 0; }
	sed "s|/usr/bin/omnikvd|$root/usr/bin/omnikvd|" "$root/usr/lib/systemd/system/omnikvd.service" >"$work/omnikvd.service"
	cp "$root/usr/lib/systemd/system/omnikvd.socket" "$work/"
	out=$(systemd-analyze verify --man=no "$work/omnikvd.service" "$work/omnikvd.socket" 2>&1 | grep -F omnikvd)
	[ -z "$out" ] || { echo "$out"; return 1; }
}
try "the units are what systemd takes" units
# What was installed as settings is what the daemon reads.
settings() {
	LD_LIBRARY_PATH=$lib timeout 20 "$root/usr/bin/omnikvd" --config "$root/etc/omnikv/omnikvd.conf" \
		--pool 1x 2>&1 | grep -q '1x'
	[ "$(grep -c '^[^#;]' "$root/etc/omnikv/omnikvd.conf")" -ge 4 ]
}
try "the settings installed are ones that the daemon reads" settings

# Installed programs find everything below their prefix.
for program in "$root"/usr/bin/*; do
	[ -x "$program" ] || continue
	try "installed ${program##*/} --help" env LD_LIBRARY_PATH="$lib" "$program" --help
done
exit $status
