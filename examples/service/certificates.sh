#!/bin/sh
# Makes run/ for envoy-mtls.yaml and envoy-bearer.yaml: an authority, the certificates of the service and of Envoy, a token.
# sh certificates.sh          needs OpenSSL 3. It is for a first try: later, use the authority that you have.
set -eu
mkdir -p run
cd run
new="-x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 90"
openssl req $new -subj /CN=authority -keyout ca.key -out ca.pem
for name in srv cli; do
    openssl req $new -CA ca.pem -CAkey ca.key -subj "/CN=$name" -addext basicConstraints=CA:FALSE \
        -addext subjectAltName=DNS:ratelimit.test,DNS:localhost -keyout "$name.key" -out "$name.pem"
done
echo "check $(openssl rand -hex 16)" > tokens
