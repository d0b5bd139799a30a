#!/bin/sh
# Makes the certificates of this folder: an authority's, and node.pem, which the authority signs for 127.0.0.1 and
# localhost, for servers and for clients. The node's key itself signs three more: alone.pem is valid, ca-alone.pem
# claims to be an authority, and nameless.pem has no subjectAltName. All are valid for about a hundred years. They
# protect nothing: the node's key is public, and this script deletes the authority's key.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -r "$work"' EXIT
touch "$work/index"
cat > "$work/conf" <<END
[any]
database = $work/index
new_certs_dir = $work
rand_serial = yes
default_md = sha256
policy = name
[name]
commonName = supplied
[authority]
basicConstraints = critical,CA:TRUE
keyUsage = critical,keyCertSign
subjectKeyIdentifier = hash
[alone]
basicConstraints = critical,CA:FALSE
subjectAltName = IP:127.0.0.1
[ca-alone]
basicConstraints = critical,CA:TRUE
subjectAltName = IP:127.0.0.1
[nameless]
basicConstraints = critical,CA:FALSE
[node]
basicConstraints = critical,CA:FALSE
subjectAltName = IP:127.0.0.1,DNS:localhost
extendedKeyUsage = serverAuth,clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END
key() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "$@"; }
sign() {
    # `openssl ca` can set a start date in the past and `openssl req` cannot. The tests must run on a machine whose
    # clock is behind, too.
    openssl ca -batch -notext -config "$work/conf" -name any -startdate 20200101000000Z -enddate 21200101000000Z "$@"
}
key -keyout "$work/ca.key" -out "$work/ca.csr" -subj '/CN=quorlock test authority'
key -keyout node.key -out "$work/node.csr" -subj '/CN=quorlock test node'
sign -selfsign -keyfile "$work/ca.key" -extensions authority -in "$work/ca.csr" -out ca.pem
sign -cert ca.pem -keyfile "$work/ca.key" -extensions node -in "$work/node.csr" -out node.pem
for name in alone ca-alone nameless; do
    # Clears the list of signed certificates, because `openssl ca` signs only one certificate per subject in the list.
    : > "$work/index"
    sign -selfsign -keyfile node.key -extensions "$name" -in "$work/node.csr" -out "$name.pem"
done
