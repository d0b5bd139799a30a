# Installs the distribution's redis-server as a binary, not as a service: nothing is started, now or at the next boot,
# and nothing listens on port 6379. `sh` reads this script as root. However the script ends, it restores the machine's
# own policy about services.
set -eu
export DEBIAN_FRONTEND=noninteractive

policy=/usr/sbin/policy-rc.d
kept=$policy.kept-by-quorlock
mark='# by quorlock, for the length of one apt-get install'

put_back() {
    rm -f "$policy"
    if [ -e "$kept" ]; then mv "$kept" "$policy"; fi
}

# If the policy contains the mark, an earlier run was killed before it restored the machine's policy.
if [ -e "$policy" ] && grep -qsF "$mark" "$policy"; then put_back; fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM

answer=0
if [ -x "$policy" ]; then "$policy" redis-server start > "$log" 2>&1 || answer=$?; fi
# A policy that answers 101 forbids the start of a service. Most containers have such a policy. Elsewhere this script
# sets one until it ends.
if [ "$answer" != 101 ]; then
    trap 'put_back; rm -f "$log"' EXIT
    if [ -e "$policy" ]; then mv "$policy" "$kept"; fi
    printf '#!/bin/sh\n%s\nexit 101\n' "$mark" > "$policy"
    chmod 755 "$policy"
fi

installed() { dpkg-query -W -f '${Status}' redis-server 2> /dev/null | grep -q '^install ok'; }
install() {
    apt-get install -y -qq --no-install-recommends \
        -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=60 redis-server >> "$log" 2>&1
}

if ! installed; then
    # On a new machine, the lists of packages may be missing or out of date.
    if ! install && ! { apt-get update -qq >> "$log" 2>&1 && install; }; then
        tail -n 5 "$log" >&2
        exit 1
    fi
    update-rc.d redis-server disable >> "$log" 2>&1 || tail -n 5 "$log" >&2
fi
