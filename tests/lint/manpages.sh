#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# mandoc over every manual page: not even a matter of style is left. Prints TAP.
set -u
cd "$(dirname "$0")/../.." || exit 1
status=0

for page in Documentation/man/*; do
	if ! command -v mandoc >/dev/null; then
		echo "ok - $page # SKIP mandoc is not installed"
	elif out=$(mandoc -T lint "$page" 2>&1) && [ -z "$out" ]; then
		echo "ok - $page"
	else
		echo "not ok - $page"
		while read -r line; do echo "# $line"; done <<<"$out"
		status=1
	fi
done
exit $status
