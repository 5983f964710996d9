#!/bin/sh
# Keys of a test federation: a certificate authority, the server's certificate, one for nodes' own loopback ports, and
# one key pair for each node.
#   sh make_keys.sh FOLDER NODES [HOST]
# In a real federation every node makes its own key and sends only the .pub file; the authority is your own.
set -eu
folder=$1 nodes=$2 host=${3:-localhost}
umask 077
mkdir -p "$folder"
cd "$folder"
certificate() { # NAME COMMON_NAME ALTERNATIVE_NAMES
  openssl ecparam -genkey -name secp384r1 -noout -out "$1.key"
  openssl req -new -key "$1.key" -subj "/CN=$2" -out "$1.csr"
  printf 'subjectAltName=%s\n' "$3" > "$1.ext"
  openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -sha256 -days 30 -extfile "$1.ext" -out "$1.crt"
  rm -f "$1.csr" "$1.ext"
}
case $host in *[!0-9.]*) name=DNS:$host ;; *) name=IP:$host ;; esac
openssl ecparam -genkey -name secp384r1 -noout -out ca.key
openssl req -x509 -new -key ca.key -sha256 -days 30 -subj "/CN=test federation" -out ca.crt
certificate server "$host" "$name,DNS:localhost,IP:127.0.0.1"
certificate loopback localhost DNS:localhost,IP:127.0.0.1
node=0
while [ "$node" -lt "$nodes" ]; do
  [ -e "node-$node" ] || ssh-keygen -q -t ecdsa -b 384 -N "" -C "node $node" -f "node-$node"
  node=$((node + 1))
done
