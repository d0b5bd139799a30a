#!/bin/sh
# Makes the certificates of this folder: an authority, and a certificate by it for 127.0.0.1 and
# localhost that serves for servers and for clients. They are valid for a hundred years and worth
# nothing: the node's key is public, and the authority's is thrown away.
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
[node]
basicConstraints = critical,CA:FALSE
subjectAltName = IP:127.0.0.1,DNS:localhost
extendedKeyUsage = serverAuth,clientAuth
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
END
key() { openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes "$@"; }
sign() {
    # `openssl ca` and not `openssl req`, because only it can date a certificate back: a machine
    # whose clock is behind must be able to run the tests too.
    openssl ca -batch -notext -config "$work/conf" -name any -keyfile "$work/ca.key" \
        -startdate 20200101000000Z -enddate 21200101000000Z "$@"
}
key -keyout "$work/ca.key" -out "$work/ca.csr" -subj '/CN=quorlock test authority'
key -keyout node.key -out "$work/node.csr" -subj '/CN=quorlock test node'
sign -selfsign -extensions authority -in "$work/ca.csr" -out ca.pem
sign -cert ca.pem -extensions node -in "$work/node.csr" -out node.pem
