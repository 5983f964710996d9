#!/bin/sh
# The server's side, with TLS, and only for nodes that are registered.
#   sh superlink.sh KEYS [HOST] [PORT]
set -eu
keys=$(cd "$1" && pwd) host=${2:-127.0.0.1} port=${3:-8000}
export FLWR_TELEMETRY_ENABLED="${FLWR_TELEMETRY_ENABLED:-0}" FLWR_DISABLE_UPDATE_CHECK="${FLWR_DISABLE_UPDATE_CHECK:-1}"
exec flower-superlink --host "$host" --port "$port" \
  --ssl-ca-certfile "$keys/ca.crt" --ssl-certfile "$keys/server.crt" --ssl-keyfile "$keys/server.key" \
  --enable-supernode-auth --disable-runtime-dependency-installation \
  --database "${FEDKEEL_SUPERLINK_DATABASE:-$keys/superlink.db}"
