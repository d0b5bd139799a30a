cd /tmp/wt-models; echo "== $*"; N=${N:-3000000} M="$*" timeout 280 ./target/release/quorlock-models | cut -c1-200 | head -${L:-1}
