#!/bin/sh
# One node: client CLIENT of the federation. It proves who it is with KEYS/node-CLIENT; its training process reaches it
# over TLS, too, with KEYS/loopback.crt.
#   sh supernode.sh KEYS CLIENT SUPERLINK_HOST:PORT [OWN_PORT] [more node settings, such as 'data-dir="/data"']
set -eu
keys=$(cd "$1" && pwd) client=$2 superlink=$3 port=${4:-9094} more=${5:-}
export FLWR_TELEMETRY_ENABLED="${FLWR_TELEMETRY_ENABLED:-0}" FLWR_DISABLE_UPDATE_CHECK="${FLWR_DISABLE_UPDATE_CHECK:-1}"
state=${FEDKEEL_STATE:-$HOME/.fedkeel/state-$client}
exec flower-supernode --superlink "$superlink" --root-certificates "$keys/ca.crt" \
  --auth-supernode-private-key "$keys/node-$client" --host 127.0.0.1 --port "$port" \
  --ssl-ca-certfile "$keys/ca.crt" --ssl-certfile "$keys/loopback.crt" --ssl-keyfile "$keys/loopback.key" \
  --node-config "partition-id=$client state-dir=\"$state\" $more"
