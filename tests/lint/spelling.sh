#!/bin/bash
# SPDX-License-Identifier: GPL-2.0-only
#
# codespell over the sources, shellcheck over every shell script. Prints TAP.
set -u
cd "$(dirname "$0")/../.." || exit 1
status=0

report() {
	local ok=$1 title=$2 out=$3
	if [ "$ok" = 0 ]; then
		echo "ok - $title"
	else
		echo "not ok - $title"
		status=1
	fi
	[ -z "$out" ] || sed 's/^/# /' <<<"$out"
}

mapfile -t files < <(
	if [ -e .git ]; then
		git -c safe.directory="$PWD" ls-files --cached --others --exclude-standard
	else
		find . -type f -not -path './build/*' -printf '%P\n'
	fi | grep -vE '^LICENSES/|^tests/fuzz/corpus/' | while read -r file; do [ ! -f "$file" ] || echo "$file"; done
)

if command -v codespell >/dev/null; then
	out=$(codespell --ignore-words tests/lint/words.txt "${files[@]}" 2>&1)
	report $? "spelling" "$out"
else
	echo "ok - spelling # SKIP codespell is not installed"
fi

if command -v shellcheck >/dev/null; then
	scripts=()
	for file in "${files[@]}"; do
		head -n1 "$file" | grep -qE '^#!.*\b(ba)?sh\b' && scripts+=("$file")
	done
	out=$(shellcheck --severity=info --exclude=SC2317 "${scripts[@]}" 2>&1)
	report $? "shellcheck of ${#scripts[@]} scripts" "$out"
else
	echo "ok - shellcheck # SKIP shellcheck is not installed"
fi
exit $status
