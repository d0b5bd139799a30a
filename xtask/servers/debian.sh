# Extracts a server from packages of Debian 13 on a machine with another Debian version. Nothing is installed, and apt
# uses a configuration, lists and a cache in the given folder instead of the machine's. `sh` reads this script.
# Arguments: FOLDER PACKAGE VERSION SHA256. The unpacked tree is FOLDER/root.
set -eu
folder=$1 package=$2 version=$3 sha256=$4
suite=trixie
# The libraries of the server, because the machine's libraries may be too old. Their versions are not pinned, because
# Debian updates them. apt checks Debian's signature.
libraries='libc6 libatomic1 libjemalloc2 liblzf1 libssl3t64 libstdc++6 libgcc-s1 libsystemd0 libcap2
    libzstd1 zlib1g'

# The mirror and the keys that this machine uses.
mirror=$(apt-get indextargets --format '$(LABEL) $(REPO_URI)' 'Created-By: Packages' |
    sed -n 's/^Debian //p' | head -n 1)
if [ -z "$mirror" ]; then
    echo 'apt knows no mirror of Debian here' >&2
    exit 1
fi
mkdir -p "$folder/sources" "$folder/lists/partial" "$folder/cache/archives/partial" "$folder/packages"
keys=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keys] $mirror $suite main" > "$folder/sources/$suite.list"

# Runs an apt program with the folder's configuration. Arguments: PROGRAM ARGUMENTS.
of_ours() {
    program=$1
    shift
    "$program" -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts="$folder/sources" \
        -o Dir::State::Lists="$folder/lists" -o Dir::Cache="$folder/cache" \
        -o Dir::State::Status=/dev/null -o APT::Sandbox::User=root \
        -o Acquire::Languages=none "$@"
}
of_ours apt-get update
cd "$folder/packages"
# shellcheck disable=SC2086 # The list of libraries must be split into words.
of_ours apt-get download $libraries
# Debian removes the pinned package when it updates the package. Then the new package is trusted because of Debian's
# signature, like the libraries.
if of_ours apt-cache madison "$package" | grep -qF " $version "; then
    of_ours apt-get download "$package=$version"
    echo "$sha256 $(echo "$package"_*.deb)" | sha256sum --check --quiet
else
    of_ours apt-get download "$package"
    echo "note: Debian has updated $package $version; taken without a pinned hash: $(echo "$package"_*.deb)" >&2
fi
for file in *.deb; do dpkg-deb -x "$file" "$folder/root"; done
