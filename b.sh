cd /tmp/wt-models && timeout 280 flock /tmp/quorlock.lock cargo build --release -p quorlock-sim --bins 2>&1 | grep -A12 -E "^error" | head -60
