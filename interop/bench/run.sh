#!/usr/bin/env bash
# Installs what the anchors of `make bench` need, where it may, builds, and measures.
#
#     bash interop/bench/run.sh [-rows P1,P6] [-lab] [-repeat 5] [-wait poll|block|events] [-j]
#
# docs/performance.md says what the rows are.
set -euo pipefail

tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

die() {
	echo "bench: $*" >&2
	exit 1
}

# What the host needs: command and Debian package.
host_packages() {
	local missing=() tool package
	while read -r tool package; do
		command -v "$tool" >/dev/null || missing+=("$package")
	done <<-'LIST'
		iperf3 iperf3
		ucx_perftest ucx-utils
		ib_write_bw perftest
		unshare util-linux
	LIST
	[ -e /etc/libibverbs.d/rxe.driver ] || missing+=(ibverbs-providers)
	[ ${#missing[@]} -gt 0 ] || return 0
	command -v apt-get >/dev/null || die "missing: ${missing[*]}; install these (names as in Debian) and try again"
	[ "$(id -u)" = 0 ] || die "missing packages: run as root: apt-get install --no-install-recommends ${missing[*]}"
	echo "bench: installing ${missing[*]}" >&2
	local log
	log=$(mktemp)
	export DEBIAN_FRONTEND=noninteractive # iperf3 would ask whether to start a daemon
	if ! { apt-get install -y --no-install-recommends "${missing[@]}" ||
		{ apt-get update && apt-get install -y --no-install-recommends "${missing[@]}"; }; } >"$log" 2>&1 </dev/null; then
		tail -n 20 "$log" >&2
		rm -f "$log"
		die "apt-get could not install ${missing[*]}: see above"
	fi
	rm -f "$log"
}

# only_lab ARGS: whether all rows that are asked for are measured in the lab's virtual machine, which has what it needs.
only_lab() {
	while [ $# -gt 0 ]; do
		case $1 in
		-rows | --rows)
			[[ ${2-} =~ ^[Rr][0-9]+(,[Rr][0-9]+)*$ ]]
			return
			;;
		esac
		shift
	done
	return 1
}

command -v go >/dev/null || die "go is not in PATH: install the Go that go.mod names"
only_lab "$@" || host_packages
cd "$tree"
make -s build
go build -o bin/softnic-bench ./interop/bench
exec bin/softnic-bench -softnic "$tree/bin/softnic" "$@"
